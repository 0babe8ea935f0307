"""A lab in which host 1 has the launcher: the laptop shares the network of host 0, host 3 is another laptop."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.lab import Host, Lab, lab_or_skip
from tests.support.running import ROOT, RUN_S, environment
from tests.support.waiting import until

OTHER = 3
CONFIG: Mapping[str, Any] = {
    "run": {"preset": "cartpole-ppo", "stop_at_return": None},
    "env": {"vector_envs": 4},
    "algorithm": {"kind": "tests.stand_ins.tally:Tally", "round_s": 0.2},
    "evaluator": {"episodes": 0},
    "limits": {"host_lease_s": 5.0, "lost_after_s": 2.0, "grace_s": 5.0},
}


class Done(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    err: str


class OnHostLab:
    """`gpu1` is host 1, `n2` is host 2."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.gpu1, self.n2 = lab.hosts[1], lab.hosts[2]
        self.file = lab.folder / "hosts.yaml"
        for host in (self.gpu1, lab.hosts[OTHER]):
            give_ssh(lab, host)

    def write(self, **more: Any) -> Path:
        """hosts.yaml of `CONFIG`; sections in `more` go over it key by key, `gpu1` and `n2` are keys of these hosts."""
        keys = {name: dict(more.pop(name, {})) for name in ("gpu1", "n2")}
        config = {key: {**CONFIG.get(key, {}), **more.get(key, {})} for key in {**CONFIG, **more}}
        hosts = {
            "local": {"workers": 0},
            "gpu1": self.gpu1.hosts_yaml(workers=1, **keys["gpu1"]),
            "n2": self.n2.hosts_yaml(workers=1, **keys["n2"]),
        }
        self.file.write_text(yaml.safe_dump({**config, "hosts": hosts}, sort_keys=False))
        return self.file

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """A `zmqrl` command on the laptop; hosts.yaml is in its directory."""
        return self.lab.run_here(
            [sys.executable, "-m", "zmqrl", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.lab.folder,
            env=environment(variables),
        )

    def zmqrl(self, *words: str, **variables: str) -> Done:
        """Its end."""
        with self.start(*words, **variables) as process:
            out, err = process.communicate(timeout=RUN_S)
        return Done(process.returncode, out, err)

    def elsewhere(self, *words: str) -> Done:
        """The end of a command on the other laptop, in a directory without files."""
        command = f'cd && PYTHONPATH={ROOT} exec {sys.executable} -m zmqrl "$@"'
        done = self.lab.hosts[OTHER].run("sh", "-c", command, "sh", *words, timeout_s=RUN_S)
        return Done(done.returncode, done.stdout, done.stderr)

    def status(self) -> dict[str, Any]:
        """Of the newest run, from the other laptop."""
        done = self.elsewhere("status", "--json", "--on", "gpu1", "--hosts", str(self.file))
        assert done.code == 0, done.err
        found: dict[str, Any] = json.loads(done.out)
        return found

    def run_file(self, run: str, name: str) -> dict[str, Any]:
        """A JSON file of a run directory on gpu1, at no cost; empty if it does not exist."""
        path = self.gpu1.tmp / "zmqrl" / "runs" / run / name
        return json.loads(path.read_text()) if path.is_file() else {}

    def state(self, run: str, host: str) -> str:
        """Of a host, in the run's status.json."""
        rows = self.run_file(run, "status.json").get("hosts", ())
        return next((row["state"] for row in rows if row["host"] == host), "")

    def await_end(self, run: str) -> dict[str, Any]:
        """Until the launcher has written the summary, and has ended; the status, from the other laptop."""
        until(lambda: self.run_file(run, "summary.json"), "the end of the run", RUN_S)
        until(lambda: not self.gpu1.processes("--in-place"), "the end of the launcher", every_s=0.1)
        status = self.status()
        assert not status["live"]
        return status

    def close(self) -> None:
        """What a failed test left."""
        for host in self.lab.hosts:
            for process in host.processes("-m zmqrl"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


def give_ssh(lab: Lab, host: Host) -> None:
    """The lab's ~/.ssh in the home of a host."""
    folder, laptop = host.folder / "home" / ".ssh", lab.known_hosts.parent
    folder.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(lab.known_hosts, folder / "known_hosts")
    text = lab.ssh_config.read_text().replace(str(laptop), str(Path.home() / ".ssh"))
    (folder / "config").write_text(text)


@contextlib.contextmanager
def on_host_lab() -> Iterator[OnHostLab]:
    """A lab of four hosts."""
    with lab_or_skip(4, isolated=True) as lab:
        found = OnHostLab(lab)
        try:
            yield found
        finally:
            found.close()
