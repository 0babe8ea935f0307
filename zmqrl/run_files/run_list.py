"""The runs below a folder, a row each, from as few bytes of each run as have the figures."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from zmqrl.config.codec import replace
from zmqrl.config.paths import content_of, regular
from zmqrl.logs.printable import printable_data
from zmqrl.metrics.jsonl import last_metrics
from zmqrl.run_files.records import damaged_records, read_record, read_summary, state_of
from zmqrl.run_files.run_info import RunInfo, damage_of, launcher_state, read_info
from zmqrl.supervision.host_entry import user_name
from zmqrl.supervision.owner_record import FOLDER
from zmqrl.supervision.run_owner import ACTIVE, OwnerState

RETURN = "train_return_mean_100"
DAMAGED, UNREADABLE = "damaged", "unreadable"
WITHOUT_SUMMARY = "ended without a summary"
BEST = "best-"
HEAD_BYTES = 4096
"""More than the metadata of a checkpoint, which its file begins with."""
WATCHERS = 32
"""Threads that wait at once for launchers elsewhere: each for up to 3 s."""
RENEWED_S = 3_600.0
"""A live launcher renews its record every second; clocks of two hosts differ by less than this."""
_SCORE = re.compile(rb'"score":"([^"]+)"')


class RunRow(msgspec.Struct, frozen=True):
    """A run as the list has it; None: it is not known."""

    run_id: str | None
    run_dir: str
    env: str | None
    algorithm: str | None
    live: bool
    state: str
    """State as `zmqrl status --json` has it, `damaged`, or `unreadable`: this user may not list or read it."""
    env_steps: int | None
    train_return_mean_100: float | None
    best_score: float | None
    """The highest score of the evaluator whose checkpoint is in the run directory."""
    best_by: str | None
    """Number of `env.report` that this score is the mean of; None: it is a return."""
    started_at: float | None
    """Unix time of the last attempt."""
    ended_at: float | None
    host: str | None
    """Host of the launcher."""
    user: str | None
    """Owner of `run.json`, or else of the folder."""
    reason: str | None
    """First line of why it failed, or why something is not known."""
    job: int | None = None
    """Number in the queue."""
    position: int | None = None
    """Place among the waiting jobs of the queue, from 1."""


NO_RUN = RunRow(None, "", None, None, False, "", None, None, None, None, None, None, None, None, None)
"""A row of a run of which nothing is known."""


class _Algorithm(msgspec.Struct, frozen=True):
    kind: str


class _EnvId(msgspec.Struct, frozen=True):
    id: str


class _Evaluator(msgspec.Struct, frozen=True):
    best_by: str | None = None


class _Named(msgspec.Struct, frozen=True):
    env: _EnvId
    algorithm: _Algorithm
    evaluator: _Evaluator = _Evaluator()


class _Config(msgspec.Struct, frozen=True):
    """The part of `config.json` that names a run."""

    config: _Named


def runs_below(*folders: Path) -> list[RunRow]:
    """The runs in and below `folders`, the newest first. A run that cannot be read has a row with the reason."""
    rows, unseen = [], []
    for run_dir in dict.fromkeys(itertools.chain.from_iterable(map(run_dirs, folders))):
        info = read_info(run_dir)
        state = None if info is None else launcher_state(run_dir, info, watch=False)
        if info is not None and state is OwnerState.UNKNOWN and _was_renewed(run_dir):
            unseen.append((run_dir, info))
        else:
            rows.append(row_of(run_dir, info, state))
    if unseen:
        with ThreadPoolExecutor(WATCHERS) as watchers:
            states = watchers.map(lambda run: launcher_state(*run), unseen)
            rows += [row_of(*run, state) for run, state in zip(unseen, states, strict=True)]
    return sorted(rows, key=lambda row: (-(row.started_at or 0.0), row.run_dir))


def run_dirs(folder: Path) -> Iterator[Path]:
    """Run directories in and below `folder`; a folder that cannot be listed counts as one. Links lead to runs alone."""
    waiting = [folder]
    while waiting:
        folder = waiting.pop()
        try:
            entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
        except OSError:
            yield folder
            continue
        names = {entry.name for entry in entries}
        if "run.json" in names or {"config.json", "checkpoints"} <= names:
            yield folder
        else:
            below = (folder / entry.name for entry in entries if _leads_to_runs(entry))
            waiting += sorted(below, reverse=True)


def _leads_to_runs(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.exists(f"{entry.path}/run.json"))


def _was_renewed(run_dir: Path) -> bool:
    """Whether the launcher, which is elsewhere, may still be active."""
    with contextlib.suppress(OSError), os.scandir(run_dir / FOLDER) as records:
        return any(time.time() - record.stat().st_mtime < RENEWED_S for record in records)
    return False


def row_of(run_dir: Path, info: RunInfo | None, launcher: OwnerState | None) -> RunRow:
    """The row of a run whose launcher is in the state `launcher`. `info`: its `run.json`; None: it is damaged."""
    env, algorithm, by = _named(run_dir)
    user = _owner(run_dir)
    row = replace(NO_RUN, run_dir=str(run_dir), env=env, algorithm=algorithm, state=DAMAGED, best_by=by, user=user)
    if info is None and _is_denied(run_dir):
        row = replace(row, state=UNREADABLE, reason="permission denied")
    elif info is None:
        row = replace(row, reason=f"run.json cannot be read: {damage_of(run_dir)}")
    else:
        row = _with_results(row, run_dir, info, launcher)
    row = replace(row, reason=(row.reason or "").partition("\n")[0] or None)
    shown = ("run_id", "env", "algorithm", "state", "best_by", "host", "reason")
    return replace(row, **{name: printable_data(getattr(row, name)) for name in shown})


def _owner(run_dir: Path) -> str | None:
    for path in (run_dir / "run.json", run_dir):
        with contextlib.suppress(OSError):
            return user_name(os.stat(path).st_uid)
    return None


def _is_denied(run_dir: Path) -> bool:
    """Whether this user may not list the folder, or not read its `run.json`."""
    try:
        os.scandir(run_dir).close()
        content_of(run_dir / "run.json")
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _with_results(row: RunRow, run_dir: Path, info: RunInfo, launcher: OwnerState | None) -> RunRow:
    live = launcher in ACTIVE
    summary = None if live else read_summary(run_dir, info.run_id)
    status = None if summary else read_record(run_dir / "status.json")
    status = status if status is not None and status["run_id"] == info.run_id else None
    steps, last_return = _progress(run_dir, summary, status)
    return replace(
        row,
        run_id=info.run_id,
        live=live,
        state=state_of(live, status if live else summary),
        env_steps=steps,
        train_return_mean_100=last_return,
        best_score=best_score(run_dir),
        started_at=info.started_at,
        ended_at=info.ended_at,
        host=info.host,
        reason=_reason(run_dir, info, launcher, summary),
    )


def _named(run_dir: Path) -> tuple[str | None, str | None, str | None]:
    """Env, algorithm, and the number that selects the best version."""
    try:
        named = msgspec.json.decode(content_of(run_dir / "config.json"), type=_Config).config
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None, None, None
    return named.env.id, named.algorithm.kind, named.evaluator.best_by


def _progress(
    run_dir: Path, summary: Mapping[str, Any] | None, status: Mapping[str, Any] | None
) -> tuple[int | None, float | None]:
    """Env steps and the last return."""
    if summary is not None:
        return summary["env_steps"], summary[RETURN]
    if status is not None:
        return status["env_steps"], status["metrics"].get(RETURN)
    with contextlib.suppress(OSError, ValueError, OverflowError):
        row = last_metrics(run_dir / "metrics.jsonl") or {}
        return int(row["env_steps"]) if row else None, row.get(RETURN)
    return None, None


def best_score(run_dir: Path) -> float | None:
    """The score of the best checkpoint, from the first bytes of its file."""
    scores = []
    with contextlib.suppress(OSError, ValueError):
        for name in os.listdir(run_dir / "checkpoints"):
            if name.startswith(BEST):
                with open(run_dir / "checkpoints" / name, "rb", opener=regular) as file:
                    found = _SCORE.search(file.read(HEAD_BYTES))
                scores += [float(found[1])] if found else []
    return max(scores, default=None)


def _reason(run_dir: Path, info: RunInfo, launcher: OwnerState | None, summary: Mapping[str, Any] | None) -> str | None:
    if summary is not None or launcher in ACTIVE:
        return None if summary is None else summary["error"]
    if launcher is OwnerState.UNKNOWN:
        return f"unknown whether it has ended: its launcher is {info.place}"
    return next(damaged_records(run_dir), WITHOUT_SUMMARY)
