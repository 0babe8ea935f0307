"""The JSON schema of hosts.yaml and presets, for editors: `python -m generate.hosts_schema` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from zmqrl.config.kinds import OPTIONS, SECTIONS
from zmqrl.config.sections import Config
from zmqrl.planning.configure import kinds
from zmqrl.types import MODES

PATH = Path(__file__).parents[1] / "zmqrl" / "config" / "hosts.schema.json"
OWN = {"properties": {"kind": {"type": "string", "pattern": ":"}}, "required": ["kind"]}
"""A kind by its dotted path, whose keys are not known here."""


def schema() -> dict[str, Any]:
    """Every section of `Config`, and `modes`, whose sections hold the same ones."""
    found = TypeAdapter(Config).json_schema(mode="validation")
    sections, definitions = dict(found.pop("properties")), found["$defs"]
    for section in sections.values():
        section.pop("default", None)
    for name, by_kind in kinds().items():
        plain = definitions.pop(SECTIONS[name].__name__) if name in SECTIONS else sections[name]
        common = {key: value for key, value in plain.get("properties", {}).items() if key != OPTIONS}
        default = getattr(Config(), name).kind if name in SECTIONS else Config().algorithm["kind"]
        common["kind"] = {"type": "string", "default": default, "description": f"{', '.join(by_kind)} or module:Name"}
        sections[name] = {
            "type": "object",
            "description": plain.get("description", f"`kind`, and the keys of that {name}"),
            "properties": common,
            "anyOf": [*(_of_kind(kind, cls, common, default, definitions) for kind, cls in by_kind.items()), OWN],
        }
    once = {name: {"$ref": f"#/$defs/{name}"} for name in sections}  # at the top and in every mode
    definitions.update(sections, sections={"type": "object", "properties": once, "additionalProperties": False})
    modes = {mode: {"$ref": "#/$defs/sections"} for mode in MODES}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "zmqrl: hosts.yaml and presets",
        **{key: value for key, value in found.items() if key not in ("title", "description")},
        "properties": {**once, "modes": {"type": "object", "properties": modes, "additionalProperties": False}},
    }


def _of_kind(
    kind: str, cls: type[Any], common: Mapping[str, Any], default: str, definitions: dict[str, Any]
) -> dict[str, Any]:
    found = TypeAdapter(cls).json_schema(mode="validation")
    definitions.update(found.get("$defs", {}))
    properties = {**dict.fromkeys(common, True), **found.get("properties", {}), "kind": {"const": kind}}
    required = [*([] if kind == default else ["kind"]), *found.get("required", [])]
    return {"properties": properties, "required": required, "additionalProperties": False}


def text() -> str:
    """What the file must hold."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
