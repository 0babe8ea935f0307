"""A launch over the hosts of a lab, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from lab import Lab

ROOT = Path(__file__).parents[2]
ENVS = Path(__file__).parent
"""Where envs of the tests are; far Pythons import them from here."""
RUN_S = 120.0
END_S = 10.0
LOOK_EVERY_S = 0.02
LEASE_S, LOST_S = 5.0, 2.0

SMALL: Mapping[str, Any] = {
    "run": {"preset": "cartpole-ppo", "mode": "sync", "stop_at_return": None, "seed": 3},
    "env": {"num_envs": 2, "vector_envs": 4, "segment_steps": 32},
    "network": {"hidden": [32, 32]},
    "evaluator": {"episodes": 0},
    "limits": {"heartbeat_s": 0.2, "grace_s": 5, "host_lease_s": LEASE_S, "lost_after_s": LOST_S},
    "restart": {"backoff_s": 0.1, "backoff_max_s": 0.2},
}


def small_run(hosts: Mapping[str, Any], steps: int, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """A hosts.yaml: a run of so many env steps; `sections` go over those of `SMALL`."""
    named = {name: {**SMALL.get(name, {}), **sections.get(name, {})} for name in {*SMALL, *sections}}
    named["run"] |= {"total_env_steps": steps, "schedule_env_steps": steps}
    return {**named, "hosts": dict(hosts)}


class LabRun:
    """A `zmqrl launch` on the laptop of a lab, with its run directory in the lab's shared folder."""

    def __init__(self, lab: Lab, name: str, config: Mapping[str, Any]) -> None:
        self.lab, self.run_dir = lab, lab.shared / name
        hosts_yaml = lab.folder / f"{name}.yaml"
        hosts_yaml.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        self._said = lab.folder / f"{name}.out"
        argv = [sys.executable, "-m", "zmqrl", "launch", str(hosts_yaml), "--plain", "--run-dir", str(self.run_dir)]
        paths = [str(ROOT), str(ENVS), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with self._said.open("wb") as said:
            self.process = lab.run_here(argv, stdout=said, stderr=subprocess.STDOUT, env=env, cwd=ROOT)

    @property
    def said(self) -> str:
        """What the user was told so far."""
        return self._said.read_text(errors="replace")

    @property
    def version(self) -> int:
        """n of the newest version that is in the store; -1 before the first."""
        folder = self.run_dir / "checkpoints"
        names = [path.stem for path in folder.glob("v*.safetensors")] if folder.is_dir() else []
        return max((int(name.rpartition("-")[2]) for name in names), default=-1)

    def status(self) -> dict[str, Any]:
        """`status.json`, empty before it is there."""
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.run_dir / "status.json").read_text())
            return found
        return {}

    def host(self, name: str) -> dict[str, Any]:
        """Its row in the status."""
        rows = [row for row in self.status().get("hosts", []) if row["host"] == name]
        return dict(rows[0]) if rows else {}

    def wait_for(self, condition: Callable[[], object], limit_s: float = RUN_S) -> float:
        """Look until it is true; the seconds that took. Fails when the run has ended before."""
        begun = time.monotonic()
        while not condition():
            assert time.monotonic() < begun + limit_s, f"waited for more than {limit_s:g} s\n{self.said}"
            assert self.process.poll() is None or condition(), f"the run ended\n{self.said}"
            time.sleep(LOOK_EVERY_S)
        return time.monotonic() - begun

    def wait_for_version(self, n: int) -> None:
        """Until version n, or a later one, is in the store."""
        self.wait_for(lambda: self.version >= n)

    def processes_on(self, index: int) -> list[int]:
        """Pids of this run's processes on a host."""
        return [p.pid for p in self.lab.hosts[index].processes("zmqrl.entry")]

    def done(self) -> dict[str, Any]:
        """Wait for it to end well; the summary."""
        code = self.process.wait(RUN_S)
        assert code == 0, f"exit {code}\n{self.said}"
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """`summary.json`."""
        loaded: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return loaded


@contextlib.contextmanager
def lab_run(lab: Lab, name: str, config: Mapping[str, Any]) -> Iterator[LabRun]:
    """One that is over at the end of `with`; a test that failed takes its processes along."""
    run = LabRun(lab, name, config)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(END_S)
        run.process.kill()
        run.process.wait(END_S)


def assert_same(summary: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> None:
    """The same bits, and books that balance."""
    assert summary["ledger"]["balanced"], summary["ledger"]
    assert summary["ledger"]["in_flight"] == 0
    names = ("weights_sha256", "env_steps", "updates", "episodes", "train_return_mean_100")
    assert {n: summary[n] for n in names} == {n: undisturbed[n] for n in names}
