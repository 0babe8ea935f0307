"""Whole runs in the pods of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.kubernetes.cluster import IMAGE, Kubernetes
from tests.support.running import Run, environment
from tests.support.runs import slurm_runs
from tests.support.waiting import WAIT_S, until
from zmqrl.wire.runtime_folder import remove_left_folder


def configuration(folder: Path, **sections: Any) -> dict[str, Any]:
    """hosts.yaml: the learner in the pod trainer, and w1 and w2 with a worker each; further keys of sections."""
    host = {"python": sys.executable, "workdir": str(folder / "pods")}
    given: dict[str, Any] = {
        "orchestrator": {"kind": "kubernetes", "image": IMAGE},
        "learner": {"host": "trainer"},
        "hosts": {"trainer": {"workers": 0}, "w1": {"workers": 1}, "w2": {"workers": 1}},
        "defaults": host,
        "min_workers": 2,
        "limits": {"host_lease_s": WAIT_S, "start_s": WAIT_S},
    }
    for key, value in sections.items():
        given[key] = {**given.get(key, {}), **value} if isinstance(value, Mapping) and key != "hosts" else value
    return slurm_runs.configuration(**given)


class PodRun(Run):
    """`zmqrl launch` with a kubectl that reaches the cluster."""

    def __init__(self, cluster: Kubernetes, run_dir: Path, config: Mapping[str, Any], *options: object) -> None:
        self.cluster, self.config = cluster, config
        file = run_dir.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        super().__init__(self.command_of("launch", file, "--plain", "--run-dir", run_dir, *options), run_dir)

    def command_of(self, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "zmqrl", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(self.cluster.environment),
        )

    def command(self, *words: object) -> tuple[int, str, str]:
        """Another `zmqrl` command: exit code, stdout, stderr."""
        with self.command_of(*words) as process:
            out, err = process.communicate(timeout=self.run_s)
        return process.returncode, out, err

    def pod_of(self, host: str) -> str:
        """Name of the newest pod of a host that runs."""
        pods = [pod for pod in self.cluster.list("pods") if pod["metadata"]["labels"]["zmqrl.host"] == host]
        running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        name: str = running[-1]["metadata"]["name"]
        return name

    def wait_for_steps(self, env_steps: int) -> None:
        """Until so many are stored."""
        until(lambda: self.status().get("env_steps", 0) >= env_steps, self.told, self.run_s)

    def wait_for_problem(self, text: str) -> None:
        """Until the status reports it."""
        until(lambda: text in str(self.status().get("problems")), self.told, self.run_s)

    def wait_for_host(self, host: str) -> None:
        """Until its workers are ready."""
        until(lambda: self._ready_workers(host), self.told, self.run_s)

    def _ready_workers(self, host: str) -> int:
        return sum(row["ready"] for row in self.status().get("hosts", ()) if row["host"] == host)

    def release(self) -> None:
        """It may come to its end."""
        self.run_dir.with_suffix(".hold").unlink()

    @property
    def run_id(self) -> str:
        """Of the last attempt, once it has begun."""
        return str(json.loads((self.run_dir / "run.json").read_text())["run_id"])

    def told(self) -> str:
        """What is known of a run that does not come on."""
        logs = "\n".join(path.read_text()[-1000:] for path in self.run_dir.glob("logs/*-agent-0.log"))
        ended = self.process.communicate() if self.process.poll() is not None else ""
        return f"{self.status()}\n{logs}\n{ended}\n{self.cluster.list('pods')}"

    def close(self) -> None:
        """Whatever became of the test: nothing of it is left."""
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(ValueError):
            self.process.communicate()
        self.cluster.kubectl("delete", "jobs", "--all", "--wait=false")
        self.cluster.await_empty()
        with contextlib.suppress(FileNotFoundError):  # it was refused
            remove_left_folder(self.run_id)


@contextlib.contextmanager
def held_run(cluster: Kubernetes, run_dir: Path, config: Mapping[str, Any], *options: object) -> Iterator[PodRun]:
    """A run whose env steps take 10 ms each until `release`."""
    hold = run_dir.with_suffix(".hold")
    hold.touch()
    run = PodRun(cluster, run_dir, {**config, "env": {**config["env"], "kwargs": {"hold": str(hold)}}}, *options)
    try:
        yield run
    finally:
        run.close()


def processes_of(run_id: str) -> list[str]:
    """Command lines of processes of a run, in pods and here."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if "zmqrl.entry" in argv and run_id in argv and not argv[0].endswith("kubectl"):
                found.append(" ".join(argv))
    return found
