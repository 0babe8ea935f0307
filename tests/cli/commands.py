"""A command's end, and a run that lives, for the tests of the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import WAIT_S
from zmqrl.agent.run_processes import processes_of
from zmqrl.errors import ZmqrlError
from zmqrl.run_files.run_info import RunInfo, read_info
from zmqrl.supervision.process_table import ProcessId, await_gone, kill

IDLE = ("--set", "algorithm.kind=zmqrl.bench.noop:NoUpdate")
RUN = ("train", "cartpole-ppo", "--mode", "single", "--plain", "--set", "run.total_env_steps=2048", *IDLE)
"""Learns nothing and needs no torch: it is there sooner."""
SLOW = {"env.id": "tests.stand_ins.slow_envs:Slow", "env.kwargs.step_s": 0.001, "env.max_episode_steps": 50}
"""An env that leaves the cores to the tests."""
ENDLESS = (
    *IDLE,
    *(word for key, value in SLOW.items() for word in ("--set", f"{key}={value}")),
    *("--set", "run.stop_at_return=null", "--set", "run.total_env_steps=1e9", "--workers", "1"),
)


def with_constant(module: str, name: str, value: float) -> tuple[str, ...]:
    """The start of a command line of `zmqrl` that waits for less than in a terminal."""
    code = f"import {module} as module; module.{name} = {value}; from zmqrl.cli.main import main; main()"
    return (sys.executable, "-c", code)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    error: ZmqrlError | None = None
    """What ended the command, whose sentence is `err`."""


Command = Callable[..., Ended]


@contextmanager
def live_run(directory: Path) -> Iterator[RunInfo]:
    """A sync run without an end, started detached; killed afterwards, whatever became of its start."""
    command = [sys.executable, "-m", "zmqrl", "train", "cartpole-ppo", *ENDLESS, "--run-dir", directory, "--detach"]
    info = None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        info = read_info(directory)
        assert done.returncode == 0 and info is not None, done.stderr
        yield info
    finally:
        info = info or read_info(directory)  # the test may have removed it
        if info is not None:
            launcher = ProcessId(info.pid, info.start_time)
            everything = (launcher, *processes_of(info.run_id))
            kill(launcher)
            left = await_gone(everything, WAIT_S)
            for process in left:  # a test that failed may have left them stopped
                kill(process)
            assert not left
