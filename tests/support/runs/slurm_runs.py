"""Whole runs on the nodes of a Slurm cluster."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.lab.slurm import Slurm
from tests.support.running import Run
from tests.support.waiting import until

STEPS = 6_528
"""The count at a boundary of a round: some rows are resets."""


def configuration(**sections: Any) -> dict[str, Any]:
    """hosts.yaml: the nodes n1 and n2 with 2 workers each; further keys of sections."""
    config: dict[str, Any] = {
        "run": {"name": "tally", "mode": "sync", "total_env_steps": STEPS, "stop_at_return": None},
        "env": {
            "id": "tests.stand_ins.held_envs:Held",
            "num_envs": 2,
            "vector_envs": 4,
            "segment_steps": 32,
            "max_episode_steps": 50,
        },
        "algorithm": {"kind": "tests.stand_ins.tally:Tally"},
        "evaluator": {"episodes": 0},
        "limits": {"heartbeat_s": 0.2, "host_lease_s": 10.0, "grace_s": 3.0},
        "orchestrator": {"kind": "slurm"},
        "hosts": {"local": {"workers": 0}, "n1": {"workers": 2}, "n2": {"workers": 2}},
        "min_workers": 4,
    }
    for key, value in sections.items():
        replaces = key == "hosts" or not isinstance(value, Mapping)
        config[key] = value if replaces else {**config.get(key, {}), **value}
    return config


class SlurmRun(Run):
    """`zmqrl launch` with the cluster's commands, after the words `prefix` (salloc)."""

    def __init__(
        self,
        cluster: Slurm,
        run_dir: Path,
        config: Mapping[str, Any],
        *options: object,
        held: bool = False,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`held`: its env steps take 10 ms each until `release`."""
        self.cluster, self.file, self._hold = cluster, run_dir.with_suffix(".yaml"), run_dir.with_suffix(".hold")
        if held:
            self._hold.touch()
            config = {**config, "env": {**config["env"], "kwargs": {"hold": str(self._hold)}}}
        self.file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        self._environ = cluster.environment(environ)
        words = ["launch", self.file, "--plain", "--run-dir", run_dir, *options]
        super().__init__(self._started(words, prefix), run_dir)

    def _started(self, words: Sequence[object], prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "zmqrl", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environ,
        )

    def command(self, *words: object) -> tuple[int, str, str]:
        """Another `zmqrl` command: exit code, stdout, stderr."""
        with self._started(words) as process:
            out, err = process.communicate(timeout=self.run_s)
        return process.returncode, out, err

    @property
    def run_id(self) -> str:
        """Of the last attempt, once it has begun."""
        return str(json.loads((self.run_dir / "run.json").read_text())["run_id"])

    @property
    def env_steps(self) -> int:
        """As the status has them."""
        return int(self.status().get("env_steps", 0))

    def host(self, name: str) -> dict[str, Any]:
        """A host's row of the status."""
        rows = [row for row in self.status().get("hosts", ()) if row["host"] == name]
        return rows[0] if rows else {}

    def wait_for_steps(self, env_steps: int) -> None:
        """Until so many are stored."""
        until(lambda: self.env_steps >= env_steps, self.told, self.run_s)

    def release(self) -> None:
        """It may come to its end."""
        self._hold.unlink()

    def told(self) -> str:
        """What is known of a run that does not come on."""
        logs = "\n".join(path.read_text()[-1000:] for path in self.run_dir.glob("logs/*-agent-0.log"))
        return f"{self.status()}\n{logs}\n{self.process.poll()}\n{self.cluster.run('squeue')}"

    def close(self) -> None:
        """Whatever became of the test: nothing of it is left."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        jobs = self.cluster.run("squeue", "-h", "-o", "%i").split()
        if jobs:
            self.cluster.run("scancel", "--quiet", "--full", "--signal=KILL", *jobs, code=None)
            self.cluster.run("scancel", "--quiet", *jobs, code=None)
        self.cluster.await_idle()


@contextlib.contextmanager
def closed_at_the_end() -> Iterator[list[SlurmRun]]:
    """A list for the runs of a test."""
    runs: list[SlurmRun] = []
    try:
        yield runs
    finally:
        for run in runs:
            run.close()


def processes(run_id: str, module: str = "zmqrl.entry") -> dict[int, list[str]]:
    """Processes of a run on this machine, which is every node: pid to arguments."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            argv = path.read_bytes().decode(errors="replace").split("\0")[:-1]
            if module in argv and run_id in argv and argv[0] != "srun":
                found[int(path.parent.name)] = argv
    return found


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with."""
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)
