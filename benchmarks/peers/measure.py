"""One run of one system: started, watched by the files of its envs, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.cases import COLLECTS, COMMANDS, TARGET, WARM_S, Case, System
from benchmarks.peers.guard import descendants
from benchmarks.peers.logged import FOLDER
from benchmarks.peers.steps import Steps

ROOT, GUARD = Path(__file__).parents[2], Path(__file__).with_name("guard.py")
EVERY_S, FIRST_STEP_S, END_S = 0.25, 90.0, 60.0
SAMPLES = 5
"""Of memory, one a second."""


@dataclass(frozen=True)
class Measured:
    """A run. `value` is the figure of the case, None where the target was not reached."""

    value: float | None
    first_step_s: float
    env_steps: int
    wall_s: float
    """From the command to the end of the measurement."""
    cpu_s: float
    """Of all processes, with the start and the end."""


class Running:
    """A command whose processes end with this process or at the end of a `with`."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        with log.open("wb") as file:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(GUARD), *command],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        self._out = self._guard.stdout
        self.began = float(self._out.readline())
        self.cpu_s = 0.0

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.terminate()
        try:
            printed, _ = self._guard.communicate(timeout=END_S)
            self.cpu_s = float(printed.split()[-1])
        finally:
            self._guard.kill()

    @property
    def is_alive(self) -> bool:
        """Whether the command runs."""
        return self._guard.poll() is None

    def wait(self, limit_s: float) -> int:
        """Exit code of the command."""
        return self._guard.wait(limit_s)

    def memory_mb(self) -> float:
        """Proportional set size of the command and its descendants, in 10^6 bytes."""
        size = 0
        for pid in descendants(self._guard.pid):
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                size += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
        return size / 1e6


def measure(case: Case, system: System, seed: int) -> Measured:
    """Run `system` once."""
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        steps, log = folder / "steps", folder / "log"
        steps.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), FOLDER: str(steps), "OMP_NUM_THREADS": "1"}
        environment["CUDA_VISIBLE_DEVICES"] = ""
        command = COMMANDS[system](case, seed, folder)
        with Running(command, environment, log) as running:
            found, value = watch(case, system, running, steps)
            wall_s = time.monotonic() - running.began
            if found.first is None or (value is None and case.kind != "target"):
                raise SystemExit(f"{system}, {case.name}: no result\n{' '.join(command)}\n{tail(log)}")
        return Measured(value, found.first - running.began, found.total, wall_s, running.cpu_s)


def watch(case: Case, system: System, running: Running, folder: Path) -> tuple[Steps, float | None]:
    """Wait for the figure; None: the target was not reached, or the run ended."""
    first, limit = None, running.began + (case.seconds if case.kind == "target" else FIRST_STEP_S)
    while running.is_alive and time.monotonic() < limit:
        time.sleep(EVERY_S)  # the pace of the samples
        found = Steps.read(folder, COLLECTS.get(system, ""))
        if case.kind == "target" and (reached := found.reached(TARGET)) is not None:
            return found, reached - running.began if reached < limit else None
        if first is None and case.kind != "target" and (first := found.first) is not None:
            limit = first + WARM_S + case.seconds
    if first is None or not running.is_alive:
        return Steps.read(folder, COLLECTS.get(system, "")), None
    if case.kind == "rate":
        found = Steps.read(folder, COLLECTS.get(system, ""))
        return found, found.rate(first + WARM_S, limit) * case.per_step
    sizes = []
    for _ in range(SAMPLES):
        sizes.append(running.memory_mb())
        time.sleep(1)  # the pace of the samples
    return found, max(sizes)


def tail(log: Path) -> str:
    """The last lines of what a system printed."""
    return log.read_bytes()[-3000:].decode(errors="replace")


def end_on_signals() -> None:
    """End the running system on SIGTERM and SIGHUP, as on Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
