"""The JSON schema of hosts.yaml and presets, for editors: `python -m zmqrl.config.schema` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from zmqrl.config.sections import Config
from zmqrl.types import MODES

PATH = Path(__file__).with_name("hosts.schema.json")


def schema() -> dict[str, Any]:
    """Every section of `Config`, and `modes`, whose sections hold the same ones."""
    found = TypeAdapter(Config).json_schema(mode="validation")
    sections = dict(found.pop("properties"))
    for option in sections.values():
        option.pop("default", None)
    algorithm = {"type": "object", "properties": {"kind": {"type": "string", "default": "ppo"}}}
    sections["algorithm"] = {**algorithm, "description": "`kind`, and the fields of that algorithm's own config class"}
    inner = {"type": "object", "properties": sections, "additionalProperties": False}
    modes = {"type": "object", "properties": dict.fromkeys(MODES, inner), "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "zmqrl: hosts.yaml and presets",
        **{key: value for key, value in found.items() if key not in ("title", "description")},
        "properties": {**sections, "modes": modes},
    }


def text() -> str:
    """What the file must hold."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
