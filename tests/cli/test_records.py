"""What a run leaves for later: results that are valid under their JSON schemas, and the environment of each attempt."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from generate import run_schemas


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((run_schemas.FOLDER / name).read_text()))


@pytest.fixture
def summary(finished: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((finished / "seed-1" / "summary.json").read_text())
    return loaded


def test_results_are_valid(finished: Path, summary: dict[str, Any]) -> None:
    validator("summary.schema.json").validate(summary)
    rows = (finished / "seed-1" / "metrics.jsonl").read_text().splitlines()
    assert rows
    for row in rows:
        validator("metrics.schema.json").validate(json.loads(row))


def test_a_summary_without_a_field_or_with_another_type_is_invalid(summary: dict[str, Any]) -> None:
    check = validator("summary.schema.json")
    assert not check.is_valid({**summary, "status": "perfect"})
    assert not check.is_valid({**summary, "ledger": {**summary["ledger"], "stored": "all"}})
    assert not check.is_valid({name: value for name, value in summary.items() if name != "schema"})


def test_the_summary_has_schema_versions_and_attempts(summary: dict[str, Any]) -> None:
    assert (summary["schema"], summary["attempts"]) == (1, 1)
    assert set(summary["versions"]) == {"zmqrl", "python", "torch", "gymnasium", "numpy"}
    assert summary["versions"]["python"] == platform.python_version()
    assert summary["versions"]["torch"] == metadata.version("torch")


def test_the_environment_of_the_attempt(finished: Path, summary: dict[str, Any]) -> None:
    record = json.loads((finished / "seed-1" / "environment" / "attempt-1.json").read_text())
    assert (record["schema"], record["attempt"], record["versions"]) == (1, 1, summary["versions"])
    assert record["os"].startswith("Linux") and record["cpu"] and record["cores"] >= 1
    assert isinstance(record["gpus"], list) and isinstance(record["code"], list)
