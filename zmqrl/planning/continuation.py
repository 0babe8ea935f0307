"""How a resume continues: by a number of env steps, or not at all where the run has reached a stop condition."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zmqrl.config.sections import Config
from zmqrl.data_stores import files
from zmqrl.errors import ConfigError
from zmqrl.run_files.lineage import recorded_env_steps
from zmqrl.run_files.records import damaged_records, read_summary
from zmqrl.run_files.run_directory import SUMMARY, resume_command
from zmqrl.run_files.stored_config import read_config
from zmqrl.types import MODES

_log = logging.getLogger(__name__)

TOTAL = "run.total_env_steps"
STOP_CONDITIONS = ("run.stop_at_return", "run.stop_at_updates", "run.max_wall_s")
EXAMPLE_STEPS = 100_000


def for_env_steps(run_dir: Path, env_steps: int) -> Mapping[str, int | None]:
    """Overrides with which a resume trains `env_steps` more; the stop conditions of the stored run are off.

    The horizon of the schedules grows with the total: a learning rate that ended at 0 would train nothing.

    Raises:
        ConfigError: `run_dir` has no configuration of a run.
    """
    stored = read_config(run_dir).run
    if MODES[stored.mode].offline:
        what, fix = "counts env steps, and a run on a data set has none", "use --set run.stop_at_updates=N"
        raise ConfigError(what, key=("--for",), is_subject=True, fix=fix)
    total = recorded_env_steps(run_dir) + env_steps
    horizon = max(stored.schedule_env_steps or 0, total)
    return {TOTAL: total, "run.schedule_env_steps": horizon, **dict.fromkeys(STOP_CONDITIONS)}


def reached(run_dir: Path, config: Config) -> str | None:
    """The stop condition under `config` that the run has reached by its summary: a resume then trains nothing."""
    for text in damaged_records(run_dir):
        _log.warning("%s", text)
    summary, run = _summary(run_dir), config.run
    env_steps, updates, mean = (summary.get(name) for name in ("env_steps", "updates", "train_return_mean_100"))
    if env_steps is not None and env_steps >= run.total_env_steps:
        return f"{TOTAL} ({run.total_env_steps:,})"
    if run.stop_at_return is not None and mean is not None and mean >= run.stop_at_return:
        return f"run.stop_at_return ({run.stop_at_return:g})"
    if run.stop_at_updates is not None and updates is not None and updates >= run.stop_at_updates:
        return f"run.stop_at_updates ({run.stop_at_updates:,})"
    return None


def nothing_to_train(run_dir: Path, condition: str, more: str | None = None) -> str:
    """The message of a resume that trains nothing. `more`: what trains `EXAMPLE_STEPS` more; default: the command."""
    more = more or f"{resume_command(run_dir)} --for {EXAMPLE_STEPS}"
    env_steps = _summary(run_dir).get("env_steps")
    at = "" if env_steps is None else f" at {env_steps:,} env steps"
    return (
        f"nothing was trained: {run_dir} has reached {condition}{at}; to train {EXAMPLE_STEPS:,} more env steps: {more}"
    )


def record_nothing_trained(run_dir: Path) -> None:
    """`trained_env_steps` of the summary becomes 0; all else is of the last attempt that trained."""
    summary, path = _summary(run_dir), run_dir / SUMMARY
    content = json.dumps({**summary, "trained_env_steps": 0}, indent=2) + "\n"
    with contextlib.suppress(OSError):  # a directory that is read-only: the message names what happened
        files.replace(str(path), [(0, content.encode())], str(run_dir / f".{SUMMARY}.{os.getpid()}"), False)


def _summary(run_dir: Path) -> Mapping[str, Any]:
    return read_summary(run_dir) or {}
