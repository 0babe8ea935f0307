"""`summary.json` and `status.json` as commands read them: a damaged file counts as absent, and is named once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from zmqrl.config.codec import object_of
from zmqrl.config.paths import content_of
from zmqrl.messages.files import Moderate
from zmqrl.run_files.run_directory import SUMMARY
from zmqrl.summary import Summary
from zmqrl.types import Severity


class StatusRecord(msgspec.Struct, frozen=True):
    """What a command shows of `status.json`; fields with a default came later."""

    run_id: str
    mode: str
    written_at: Moderate
    wall_s: float
    phase: str
    progress: float
    eta_s: float | None
    env_steps: int
    total_env_steps: int
    metrics: dict[str, float]
    score: dict[str, Any]
    bottleneck: str | None
    workers: list[dict[str, Any]]
    problems: list[str]
    checkpoint_every_s: float = 0.0
    hosts: list[dict[str, Any]] = []
    refused: dict[str, int] = {}
    severities: list[Severity] = []
    """The severity of each of the problems."""


RECORDS: Mapping[str, Any] = {SUMMARY: Summary, "status.json": StatusRecord}


def read_record(path: Path) -> dict[str, Any] | None:
    """The content of `summary.json` or `status.json`; None when there is none, or it is damaged."""
    try:
        return _valid(path)
    except (OSError, ValueError):
        return None


def read_summary(run_dir: Path, run_id: str | None = None) -> dict[str, Any] | None:
    """The summary of a run, with `run_id` that of this attempt alone; None when there is none, or it is damaged."""
    summary = read_record(run_dir / SUMMARY)
    return summary if summary is not None and run_id in (None, summary["run_id"]) else None


def state_of(live: bool, record: Mapping[str, Any] | None) -> str:
    """The phase of a live run, by its status; of another one how it ended, by its summary: `unknown` without one."""
    state = str((record or {}).get("phase" if live else "status", "starting" if live else "unknown"))
    return "ending" if live and state == "ended" else state  # its processes have ended; the launcher sums up


def damaged_records(run_dir: Path) -> Iterator[str]:
    """A line for each record that is there and cannot be used."""
    for name in RECORDS:
        try:
            _valid(run_dir / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield f"{run_dir / name} cannot be read: {error.strerror}"
        except ValueError as error:
            yield f"{run_dir / name} is damaged and is ignored: {error}"


def _valid(path: Path) -> dict[str, Any]:
    data = object_of(content_of(path))
    msgspec.convert(data, RECORDS[path.name])
    return data
