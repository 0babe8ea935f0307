"""A real Slurm cluster on this machine: munged, slurmctld and a slurmd per node; no systemd, cgroups or database.

    with Slurm(3) as cluster:
        cluster.run("srun", "-w", "n1", "hostname")
        cluster.environment()          # for processes that use its commands

Every process of it ends with the one that made it, also when that is killed (`init.py`). The nodes are this machine
under several names: they share its files, its addresses and its processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.running import environment
from tests.support.waiting import WAIT_S, until

from .host import INIT
from .kernel import LabUnavailable

SERVERS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("srun", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
LOOK_EVERY_S = 0.1
"""A look starts one process or two, and has slurmctld answer."""
JOB_SUBMIT = """
function slurm_job_submit(job, partitions, user)
    if job.account ~= nil and job.account ~= "physics" then return slurm.ESLURM_INVALID_ACCOUNT end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""
"""A site's rule for accounts: without one and without a database, Slurm takes every account."""
GRACE_S = 15
"""What a job of main has to end when it is preempted."""
CPUS = 8
"""Of each node, as Slurm is told: the runs of the tests are small."""


class Slurm:
    """Nodes n1 ... nN; partitions main and urgent, whose jobs have jobs of main requeued; account physics."""

    def __init__(self, nodes: int) -> None:
        """Start it. LabUnavailable names what is missing."""
        path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
        missing = [name for name in (*SERVERS, *COMMANDS) if shutil.which(name, path=path) is None]
        if missing:
            raise LabUnavailable(f"{', '.join(missing)} missing: apt-get install slurm-wlm munge (bin/lab-setup)")
        if os.geteuid() != 0:
            raise LabUnavailable("slurmd needs root")
        self.nodes = tuple(f"n{number + 1}" for number in range(nodes))
        self.folder = Path(tempfile.mkdtemp(prefix="zmqrl-slurm-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        self._path = path
        self._init = self._started_init()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environment(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        """With the cluster's configuration, and no job of a cluster around these tests."""
        outer = {name: value for name, value in environment().items() if not name.startswith("SLURM_")}
        return {**outer, "SLURM_CONF": str(self.folder / "slurm.conf"), **(changes or {})}

    def run(self, *command: str, code: int | None = 0) -> str:
        """Output of a command of Slurm; `code`: how it has to end, None: in any way."""
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=WAIT_S)
        assert code is None or done.returncode == code, (command, done)
        return done.stdout

    @contextlib.contextmanager
    def occupied(self, node: str) -> Iterator[None]:
        """All CPUs of a node are in use, by a job `sleep`."""
        with subprocess.Popen(
            ["srun", "--quiet", f"-w{node}", f"-c{CPUS}", "sleep", "600"],
            env=self.environment(),
            stderr=subprocess.DEVNULL,
        ) as blocker:
            running = ["sleep", "RUNNING"]
            look = lambda: self.run("squeue", "-h", "-w", node, "-o", "%j %T").split() == running  # noqa: E731
            until(look, self.log, every_s=LOOK_EVERY_S)
            try:
                yield
            finally:
                blocker.terminate()

    def start_requeued(self, job: str) -> None:
        """Without the 2 minutes for which Slurm holds back a job that was requeued.

        Not in the same second: slurmd would take the job's new credential for the revoked one.
        """
        until(
            lambda: self.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "PENDING",
            self.log,
            WAIT_S,
            LOOK_EVERY_S,
        )
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+2seconds")

    def jobs(self) -> list[str]:
        """Jobs and steps that are pending, running or ending; `extern` and `batch` steps are the job's own."""
        steps = self.run("squeue", "-h", "-s", "-o", "%i").split()
        return self.run("squeue", "-h", "-o", "%i").split() + [step for step in steps if step.split(".")[1].isdigit()]

    def await_idle(self) -> None:
        """Until every job and step has ended, and the processes that held them."""
        until(lambda: not self.jobs() and not self._holders(), self.log, WAIT_S, LOOK_EVERY_S)

    def _holders(self) -> list[str]:
        """What slurmd has started."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                is_ours = f"SLURM_CONF={self.folder}".encode() in path.with_name("environ").read_bytes()
                if is_ours and b"slurmstepd" in (text := path.read_bytes()):
                    found.append(text.decode(errors="replace"))
        return found

    def close(self) -> None:
        """End every process of it."""
        assert self._init.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._init.stdin.close()
        try:
            self._init.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._init.kill()
            self._init.wait(WAIT_S)
        assert self._init.stdout is not None
        self._init.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """The end of what its servers wrote."""
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))

    def _started_init(self) -> subprocess.Popen[bytes]:
        setup = json.dumps({"name": "slurm", "mounts": []})
        environ = {**self.environment(), "PATH": self._path}
        with (self.folder / "init.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-ISu", INIT, setup],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
                start_new_session=True,
            )

    def _start(self) -> None:
        folder = self.folder
        for name in ("state", "munge", *(f"spool/{node}" for node in self.nodes)):
            (folder / name).mkdir(parents=True)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        sockets = [socket.socket() for _ in range(len(self.nodes) + 1)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        controller, *ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        (folder / "slurm.conf").write_text("\n".join(self._configuration(controller, ports)) + "\n")
        (folder / "job_submit.lua").write_text(JOB_SUBMIT)
        (folder / "gres.conf").write_text("".join(_gres(node, number) for number, node in enumerate(self.nodes)))
        munge = {
            "key-file": key,
            **{f"{name}": folder / "munge" / name for name in ("socket", "pid-file", "seed-file")},
        }
        self._serve("munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in munge.items()))
        until((folder / "munge" / "socket").exists, self.log, WAIT_S)
        self._serve("slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        for node in self.nodes:
            self._serve("slurmd", "-D", "-f", str(folder / "slurm.conf"), "-N", node)
        until(self._is_up, self.log, WAIT_S, LOOK_EVERY_S)

    def _is_up(self) -> bool:
        return self.run("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D", code=None).strip() == str(
            len(self.nodes)
        )

    def _serve(self, name: str, *arguments: str) -> None:
        command = shutil.which(name, path=self._path)
        assert self._init.stdin is not None and command is not None
        self._init.stdin.write(json.dumps([command, *arguments]).encode() + b"\n")
        self._init.stdin.flush()

    def _configuration(self, controller: int, ports: list[int]) -> Iterator[str]:
        folder, host = self.folder, socket.gethostname().partition(".")[0]
        settings = {
            "ClusterName": "lab",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": controller,
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={folder}/munge/socket",
            "CredType": "cred/munge",
            "SlurmctldPidFile": f"{folder}/slurmctld.pid",
            "SlurmdPidFile": f"{folder}/%n.pid",
            "StateSaveLocation": f"{folder}/state",
            "SlurmdSpoolDir": f"{folder}/spool/%n",
            "SlurmctldLogFile": f"{folder}/slurmctld.log",
            "SlurmdLogFile": f"{folder}/%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "MpiDefault": "none",
            "SwitchType": "switch/none",
            "ReturnToService": 2,
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_min_interval=0,batch_sched_delay=0,sched_interval=1,bf_interval=1",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "KillWait": 15,
            "SlurmctldTimeout": 30,
            "SlurmdTimeout": 30,
            "InactiveLimit": 0,
            "GresTypes": "gpu",
            "SlurmdParameters": "config_overrides",
            "JobSubmitPlugins": "lua",
        }
        yield from (f"{name}={value}" for name, value in settings.items())
        for node, port in zip(self.nodes, ports, strict=True):
            where = f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
            yield f"{where} CPUs={CPUS} RealMemory=4000 Gres=gpu:1 State=UNKNOWN"
        common = "Nodes=ALL MaxTime=INFINITE State=UP"
        yield f"PartitionName=main Default=YES PriorityTier=1 GraceTime={GRACE_S} {common}"
        yield f"PartitionName=urgent PriorityTier=10 {common}"


def _gres(node: str, number: int) -> str:
    """A device file that every machine has; Slurm numbers them as it does GPUs."""
    return f"NodeName={node} Name=gpu File={('/dev/null', '/dev/zero', '/dev/full')[number % 3]}\n"


@contextlib.contextmanager
def slurm_or_skip(nodes: int) -> Iterator[Slurm]:
    """A cluster until the end of `with`; skips the test with the reason where there can be none."""
    try:
        cluster = Slurm(nodes)
    except LabUnavailable as reason:
        pytest.skip(f"no Slurm: {reason}")
    with cluster:
        yield cluster
