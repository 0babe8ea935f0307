"""docs/configuration.md, every key by section: `python -m generate.configuration` writes it in a checkout."""

from __future__ import annotations

from pathlib import Path

from zmqrl.config.keys import Key, KeysOf, all_keys
from zmqrl.planning.configure import kinds

PATH = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """# Configuration

Every key of hosts.yaml, of a preset and of `--set`, with its type, default and bounds.
This page is generated from the configuration types by `python -m generate.configuration`.
`modes.single`, `modes.sync`, `modes.pipelined` and `modes.async` take the same sections, for one mode alone.
A later layer (preset, hosts.yaml, `--set`) changes single keys, also of mappings such as `env.kwargs`.
`{}` as the value of a key empties its mapping (`--set env.kwargs={}`). `null` in `--set` is the default of the key.
"""


def text() -> str:
    """The page."""
    return "\n".join([HEAD, *map(_table, all_keys(kinds()))])


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


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
