"""docs/configuration.md, every key by section: `python -m zmqrl.config.reference` writes it in a checkout."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from zmqrl.config.keys import Key, KeysOf, all_keys

PATH = Path(__file__).parents[2] / "docs" / "configuration.md"
HEAD = """# Configuration

Every key of hosts.yaml, of a preset and of `--set`, with its type, default and bounds.
This page is generated from the configuration types by `python -m zmqrl.config.reference`.
`modes.single`, `modes.sync` and `modes.async` take the same sections, for one mode alone.
A later layer (preset, hosts.yaml, `--set`) changes single keys, also of mappings such as `env.kwargs`.
`{}` as the value of a key empties its mapping (`--set env.kwargs={}`). `null` in `--set` is the default of the key.
"""


def text(kinds: Mapping[str, Mapping[str, type[Any]]]) -> str:
    """The page. `kinds`: sections with kinds, and the config class of each kind."""
    return "\n".join([HEAD, *map(_table, all_keys(kinds))])


def _table(section: KeysOf) -> str:
    head = [
        f"## {section.title}",
        section.meaning,
        "",
        "| key | type | default | bounds | meaning |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(_row, section.keys), ""])


def _row(key: Key) -> str:
    default = key.default if key.default in ("required", "below") else f"`{key.default}`"
    cells = (f"`{key.name}`", key.type, default, key.bounds, key.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Write the page."""
    PATH.write_text(text(import_module("zmqrl.planning.configure").kinds()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
