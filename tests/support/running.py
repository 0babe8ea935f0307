"""A launcher process and what can be seen of its run from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.waiting import WAIT_S, until
from zmqrl.drill.run_under_test import processes_below
from zmqrl.supervision.process_table import ProcessId, await_gone

ROOT = Path(__file__).parents[2]
RUN_S = 300.0
"""As `WAIT_S`, of a whole run."""
END_S = 5.0
"""Within which docs and messages promise that nothing is left, on an idle machine."""
LOOK_EVERY_S = 0.01


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, in which `zmqrl` and `tests` are those of this checkout."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(changes or {})}


class Run:
    """A launcher process. Kinds of runs differ in how they are started."""

    run_s = RUN_S
    """How long it is waited for."""

    def __init__(self, process: subprocess.Popen[str], run_dir: Path) -> None:
        self.process, self.run_dir = process, run_dir

    @staticmethod
    def start(*arguments: object) -> subprocess.Popen[str]:
        """A Python process with these arguments, whose output is kept."""
        command = [sys.executable, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())

    def end(self) -> tuple[int, str, str]:
        """Wait for it: exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=self.run_s)
        return self.process.returncode, out, err

    def done(self) -> dict[str, Any]:
        """Wait for it to end well; the summary."""
        code, out, err = self.end()
        assert code == 0, f"exit {code}\n{out}\n{err}"
        return self.summary()

    def cut_short(self) -> None:
        """Kill whatever is left of it."""
        held = list(self.processes().values())
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.end()
        self.process.wait(WAIT_S)
        await_gone(held, WAIT_S)

    def summary(self) -> dict[str, Any]:
        """`summary.json`."""
        loaded: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return loaded

    def status(self) -> dict[str, Any]:
        """`status.json`; empty before there is one."""
        try:
            loaded: dict[str, Any] = json.loads((self.run_dir / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return loaded

    def processes(self) -> dict[str, ProcessId]:
        """`role-index` to process, as `/proc` shows them below the launcher; `agent-0` is the agent."""
        return processes_below(self.process.pid)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Look until it is true; fails when the run has ended before."""

        def look() -> object:
            true = condition()
            assert true or self.process.poll() is None, f"the run ended: {self.process.communicate()}"
            return true

        until(look, "what the test waits for", self.run_s, LOOK_EVERY_S)

    def kill(self, place: str) -> None:
        """SIGKILL `role-index` once it is there."""
        self.wait_for(lambda: place in self.processes())
        os.kill(self.processes()[place].pid, signal.SIGKILL)

    def wait_for_successor(self, place: str, before: ProcessId) -> None:
        """Until another process is in its place."""
        self.wait_for(lambda: self.processes().get(place, before) != before)
