"""A whole run in processes of its own, watched from outside."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zmqrl.config.codec import to_json
from zmqrl.config.plan import RunPlan
from zmqrl.supervision.process_table import ProcessId, await_gone, identify

LAUNCH = str(Path(__file__).with_name("launch_plan.py"))
SAME = ("weights_sha256", "env_steps", "updates", "episodes", "train_return_mean_100")
"""Of a summary: what no death and no other spread over hosts may change."""
RUN_S = 60.0
END_S = 5.0
LOOK_EVERY_S = 0.01


def assert_same(summary: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Both learned the same, and the books of the first balance."""
    assert summary["ledger"]["balanced"] and summary["ledger"]["in_flight"] == 0, summary["ledger"]
    assert {n: summary[n] for n in SAME} == {n: other[n] for n in SAME}


class Run:
    """A launcher process and what can be seen of it."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.run_dir = Path(plan.run_dir)
        path = self.run_dir.with_name(f"{self.run_dir.name}-plan.json")
        path.write_text(json.dumps(to_json(plan)))
        here = Path(__file__).parent
        # the launcher is a script: without the second it may be of another checkout than its agent
        paths = [str(here), str(here.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, LAUNCH, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def end(self) -> tuple[int, str, str]:
        """Wait for it: exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=RUN_S)
        return self.process.returncode, out, err

    def cut_short(self) -> None:
        """Kill whatever is left of it."""
        held = list(self.processes().values())
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        await_gone(held, END_S)

    def done(self) -> dict[str, Any]:
        """Wait for it to end well; the summary."""
        code, out, err = self.end()
        assert code == 0, f"exit {code}\n{out}\n{err}"
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """`summary.json`."""
        loaded: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return loaded

    def processes(self) -> dict[str, ProcessId]:
        """`role-index` to process, as `/proc` shows them below the launcher; `agent-0` is the agent."""
        found: dict[str, ProcessId] = {}
        todo = [self.process.pid]
        while todo:
            pid = todo.pop()
            try:
                todo += [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            process = identify(pid)
            if process is not None and len(arguments) > 5 and arguments[3].startswith("zmqrl."):
                found[f"{arguments[3].removeprefix('zmqrl.')}-{arguments[5]}"] = process
        return found

    def wait_for_updates(self, version: int = 1) -> None:
        """Until version `version` or a later one is in the store."""
        self.wait_for(lambda: newest_n(Path(self.plan.store_path)) >= version)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Look until it is true; fails when the run has ended before."""
        until = time.monotonic() + RUN_S
        while not condition():
            assert time.monotonic() < until, "waited too long"
            assert self.process.poll() is None, f"the run ended: {self.process.communicate()}"
            time.sleep(LOOK_EVERY_S)

    def kill(self, place: str) -> None:
        """SIGKILL `role-index` once it is there."""
        self.wait_for(lambda: place in self.processes())
        os.kill(self.processes()[place].pid, signal.SIGKILL)

    def wait_for_successor(self, place: str, before: ProcessId) -> None:
        """Until another process is in its place."""
        self.wait_for(lambda: self.processes().get(place, before) != before)


def newest_n(folder: Path, kind: str = "") -> int:
    """The highest version in a store, of those whose names begin with `kind`; -1: there is none."""
    numbers = [path.stem.rpartition("-")[2] for path in folder.glob(f"{kind}*.safetensors")]
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def limit_files(process: ProcessId, nbytes: int | None) -> None:
    """What a full disk is to one process: no file may grow beyond `nbytes`."""
    hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard if nbytes is None else nbytes, hard))
