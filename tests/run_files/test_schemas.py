"""The JSON schemas of results are those of the types, and real output is valid under them."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from generate import run_schemas

NAMES = list(run_schemas.SCHEMAS)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((run_schemas.FOLDER / name).read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_current(name: str) -> None:
    assert (run_schemas.FOLDER / name).read_text() == run_schemas.text(name), "run: python -m generate.run_schemas"
    Draft202012Validator.check_schema(run_schemas.SCHEMAS[name]())


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_a_meaning(name: str) -> None:
    properties = run_schemas.SCHEMAS[name]()["properties"]
    assert [field for field, kind in properties.items() if not kind["description"]] == []


@pytest.mark.parametrize(
    "row",
    [
        {"wall_s": 1.0},
        {"wall_s": 1.0, "env_steps": 1.5},
        {"wall_s": 1.0, "env_steps": 1, "loss": "high"},
        {"wall_s": 1.0, "env_steps": 1, "updates": None},
    ],
)
def test_an_invalid_line_of_metrics(row: object) -> None:
    assert not validator("metrics.schema.json").is_valid(row)
