"""JSON schemas of `summary.json` and of a line of `metrics.jsonl`: `python -m generate.run_schemas` writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from zmqrl.config.keys import field_docs
from zmqrl.summary import RestartCause, Summary
from zmqrl.types import Ledger

FOLDER = Path(__file__).parents[1] / "zmqrl" / "run_files"
WORKER = r"^worker_\d+_(env_steps_per_s|wait_fraction)$"
"""Names of the figures of each worker, which are recorded once a minute and at the end of the run."""
DRAFT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class MetricsRow:
    """One line: `wall_s`, `env_steps`, and what was measured then. TensorBoard has the same names.

    An algorithm adds its own figures, such as losses, and the values of its schedules.
    """

    wall_s: float
    """Seconds from the start of the command that this attempt is of."""
    env_steps: int
    """Valid rows stored by then; of a score: those of its version."""
    attempt: int | None = None
    """Number of the attempt. Where two overlap, the rows of the last one count. Rows before 0.3 have none."""
    updates: float | None = None
    """Optimiser steps. This and what follows is of the learner."""
    version: float | None = None
    """Number of the newest published version."""
    episodes: float | None = None
    """Finished training episodes."""
    train_return_mean_100: float | None = None
    """Mean return of the last 100 training episodes."""
    train_length_mean_100: float | None = None
    """Their mean length."""
    env_steps_per_s: float | None = None
    """Over the last 5 s."""
    updates_per_s: float | None = None
    """Over the last 5 s."""
    wait_fraction: float | None = None
    """Share of time in which the learner waited for segments."""
    store_wait_fraction: float | None = None
    """Share of time in which it wrote to the store."""
    policy_lag_mean: float | None = None
    """Versions published between the version of a segment and its use."""
    policy_lag_max: float | None = None
    """The greatest one."""
    replay_ratio: float | None = None
    """Off-policy: updates / (env_steps - `replay.learning_starts`)."""
    checkpoint_interval_s: float | None = None
    """Seconds between two durable full checkpoints."""
    loaded_env_steps: float | None = None
    """With `replay.load`: env steps of the data set, which are in no other count."""
    eval_return_mean: float | None = None
    """Mean return of a score of the evaluator."""
    eval_return_std: float | None = None
    """Standard deviation of its returns."""


def summary() -> dict[str, Any]:
    """Every field is there; further ones may follow in later versions."""
    found = _of(Summary)
    ledger = _of(Ledger)
    ledger["properties"]["balanced"] = {"type": "boolean"}
    properties: dict[str, Any] = found["properties"]
    properties["ledger"] = {"anyOf": [ledger, {"type": "null"}], "description": properties["ledger"]["description"]}
    properties["restart_causes"]["items"] = _of(RestartCause)
    return {"$schema": DRAFT, "title": "zmqrl: summary.json", **found, "required": list(properties)}


def metrics() -> dict[str, Any]:
    """All values are numbers; those of other names are the algorithm's."""
    found = _of(MetricsRow)
    numbers = {
        name: {**_number(kind), "description": kind["description"]} for name, kind in found["properties"].items()
    }
    return {
        "$schema": DRAFT,
        "title": "zmqrl: a line of metrics.jsonl",
        **found,
        "properties": numbers,
        "patternProperties": {WORKER: {"type": "number", "description": "Of one worker, once a minute."}},
        "additionalProperties": {"type": "number"},
    }


def _of(cls: type[Any]) -> dict[str, Any]:
    """The schema of a type without references, with the string below each field."""
    schema = msgspec.json.schema(cls)
    found: dict[str, Any] = schema["$defs"][cls.__name__]
    docs = field_docs(cls)
    for name, kind in found["properties"].items():
        kind.pop("default", None)
        kind["description"] = " ".join(docs.get(name, "").split())
    return {key: value for key, value in found.items() if key != "title"}


def _number(kind: dict[str, Any]) -> dict[str, str]:
    """A row leaves out what it does not have."""
    return {"type": kind.get("type", "number")}


SCHEMAS = {"summary.schema.json": summary, "metrics.schema.json": metrics}
"""File to its content."""


def text(name: str) -> str:
    """What the file must hold."""
    return json.dumps(SCHEMAS[name](), indent=2) + "\n"


if __name__ == "__main__":
    for file in SCHEMAS:
        (FOLDER / file).write_text(text(file), encoding="utf-8")
