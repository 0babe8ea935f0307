"""Runs with curves, for the tests of the page."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.queue.samples import record
from tests.support.stored_runs import summary_data
from tests.sweeps.samples import RATES, made
from zmqrl.config.codec import replace, to_json
from zmqrl.run_files.run_info import RunInfo
from zmqrl.supervision.process_table import identify
from zmqrl.sweeps.folder import SweepFolder, ValueRecord


def rows(returns: Iterable[float], start: int = 0) -> str:
    """Lines of metrics.jsonl, a row per 10 env steps and second."""
    found = (
        {"wall_s": k, "env_steps": 10 * k, "train_return_mean_100": value, "entropy": 1 / (k + 1)}
        for k, value in enumerate(returns, start)
    )
    return "".join(json.dumps(row) + "\n" for row in found)


def store(
    path: Path, returns: Iterable[float] = range(50), live: bool = False, gamma: float = 0.9, **more: Any
) -> Path:
    """A run with these returns; a live one is of this process."""
    (path / "checkpoints").mkdir(parents=True)
    (path / "logs").mkdir()
    me = identify(os.getpid())
    assert me is not None
    ended_at = None if live else time.time()
    info = RunInfo(path.name, me.pid, me.start_time, socket.gethostname(), time.time() - 90, None, ended_at)
    config = {"env": {"id": "CartPole-v1"}, "algorithm": {"kind": "ppo", "gamma": gamma}}
    (path / "run.json").write_text(json.dumps(to_json(info)))
    (path / "config.json").write_text(json.dumps({"format_version": 2, "config": config}))
    if not live:
        (path / "summary.json").write_text(json.dumps(summary_data(run_id=path.name, env_steps=490, **more)))
    (path / "metrics.jsonl").write_text(rows(returns))
    (path / "logs" / "local-learner-0.log").write_text("first\nlast\n")
    return path


def stored_sweep(folder: Path) -> SweepFolder:
    """Three trials with a run each: two are complete, the second one is the best."""
    sweep, queue = made(folder)
    for trial, value in enumerate([5.0, 9.0, None]):
        sweep.create_record(f"trial-{trial}", {"algorithm.learning_rate": RATES[trial]})
        run_dir = store(sweep.run_dir(trial, 0))
        queue.add(replace(record(os.geteuid()), run_dir=str(run_dir)), is_numbered=False)
        if value is not None:
            sweep.create_record(f"value-{trial}-0-0", ValueRecord(value))
    return sweep
