"""Whole runs of `zmqrl launch` over the hosts of a lab."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.lab import Host, Lab, Process
from tests.support.running import ROOT, RUN_S, Run, environment
from tests.support.waiting import until
from tests.support.runs.command_runs import summary, zmqrl


class FarRun(Run):
    """A launcher on the lab's laptop."""

    def __init__(self, lab: Lab, name: str, config: Mapping[str, Any], *options: str) -> None:
        self.lab = lab
        run_dir = lab.shared / name
        file = lab.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        super().__init__(self._zmqrl("launch", str(file), "--plain", "--run-dir", str(run_dir), *options), run_dir)

    def _zmqrl(self, *words: str) -> subprocess.Popen[str]:
        return self.lab.run_here(
            [sys.executable, "-m", "zmqrl", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )

    def command(self, *words: str) -> tuple[int, str, str]:
        """Another `zmqrl` command from the laptop: exit code, stdout, stderr."""
        with self._zmqrl(*words) as process:
            out, err = process.communicate(timeout=RUN_S)
        return process.returncode, out, err

    def host(self, name: str) -> dict[str, Any]:
        """A host's row of the status."""
        rows = [row for row in self.status().get("hosts", ()) if row["host"] == name]
        return rows[0] if rows else {}

    @property
    def run_id(self) -> str:
        """Once it has begun."""
        return str(json.loads((self.run_dir / "run.json").read_text())["run_id"])

    def wait_for_steps(self, env_steps: int) -> None:
        """Until so many are stored."""
        self.wait_for(lambda: self.status().get("env_steps", 0) >= env_steps)

    def close(self) -> None:
        """Whatever became of the test: the launcher is killed, and what it started here ends by itself."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        if (self.run_dir / "run.json").is_file():
            until(lambda: not here(self.run_id), "the agent of this machine to end")


@contextlib.contextmanager
def closed_at_the_end() -> Iterator[list[FarRun]]:
    """A list for the runs of a test."""
    runs: list[FarRun] = []
    try:
        yield runs
    finally:
        for run in runs:
            run.close()


def sha256_of_one_process(run_dir: Path, settings: Sequence[str], *options: object) -> str:
    """What cartpole-ppo comes to in mode single with `settings` (KEY=VALUE) and `options`."""
    words = [word for setting in settings for word in ("--set", setting)]
    command = ("train", "cartpole-ppo", "--mode", "single", "--plain", *options)
    zmqrl(*command, "--run-dir", run_dir, *words, at=run_dir.parent)
    return str(summary(run_dir)["weights_sha256"])


def sha256_of_the_same_run(run_dir: Path, config: Mapping[str, Any], env_steps: int) -> str:
    """What `config` (of Tally) comes to in one process that nothing holds up."""
    settings = {"run.stop_at_return": "null", "run.total_env_steps": env_steps, "evaluator.episodes": 0}
    settings |= {f"env.{key}": value for key, value in config["env"].items()}
    settings["algorithm.kind"] = config["algorithm"]["kind"]
    return sha256_of_one_process(run_dir, [f"{key}={value}" for key, value in settings.items()])


def here(run_id: str, role: str = "zmqrl.entry") -> list[int]:
    """Pids of the run's processes on the laptop: all, or those of a role."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            argv = path.read_bytes().decode(errors="replace").split("\0")
            if run_id in argv and role in argv and "zmqrl.entry" in argv:
                found.append(int(path.parent.name))
    return found


def processes(host: Host, run_id: str) -> list[Process]:
    """A run's processes on a host."""
    return [process for process in host.processes() if run_id in process.argv]


def roles(host: Host, run_id: str) -> list[str]:
    """Roles of a run's processes on a host, in alphabetical order."""
    found = [process.argv for process in processes(host, run_id)]
    return sorted(argv[argv.index("zmqrl.entry") + 1].removeprefix("zmqrl.") for argv in found)


def role(host: Host, run_id: str, name: str) -> Process:
    """The first process of that role."""
    return next(process for process in processes(host, run_id) if f"zmqrl.{name}" in process.argv)
