"""A run's lineage: what its attempts share, and what earlier attempts left."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.config.paths import content_of
from zmqrl.config.plan import Lineage
from zmqrl.config.sections import Config
from zmqrl.metrics.jsonl import last_metrics
from zmqrl.run_files.run_info import read_info, refuse_damaged_info


@dataclass(frozen=True)
class LastSeen:
    """Recorded progress of a run's earlier attempts."""

    env_steps: int
    at: float
    """Unix time."""


def lineage_of(config: Config, run_dir: Path, resume: bool) -> Lineage:
    """The lineage that the next attempt in `run_dir` belongs to; a new one unless it is a resume.

    ConfigError: `run.json` is damaged: the checkpoints belong to the lineage that it named.
    """
    if resume and (run_dir / "run.json").exists():
        refuse_damaged_info(run_dir)
    info = read_info(run_dir) if resume else None
    here = socket.gethostname()
    if info is None:
        return Lineage(f"{config.run.name}-{secrets.token_hex(6)}", 1, here, str(run_dir))
    # The run id of an attempt of 0.1 stays known until the next attempt has begun, also when that dies half-way.
    return Lineage(info.lineage or info.run_id, info.attempt + 1, here, str(run_dir))


def last_seen(run_dir: Path) -> LastSeen | None:
    """The last readable line of `metrics.jsonl`; None when there is none."""
    info, path = read_info(run_dir), run_dir / "metrics.jsonl"
    try:
        row, written_at = last_metrics(path), path.stat().st_mtime
        if row is None:
            return None
        # An attempt that ended before its first line left the file as it was: the line counts from an earlier start.
        at = written_at if info is None or info.started_at > written_at else info.started_at + row["wall_s"]
        return LastSeen(int(row["env_steps"]), round(at, 3))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def recorded_env_steps(run_dir: Path) -> int:
    """The most env steps that the run's own records name; 0 when none of them does."""
    seen = last_seen(run_dir)
    stored = [_read(run_dir / name).get("env_steps") for name in ("summary.json", "status.json")]
    return max([seen.env_steps if seen else 0, *(int(steps) for steps in stored if isinstance(steps, (int, float)))])


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(content_of(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
