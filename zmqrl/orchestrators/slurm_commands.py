"""The commands of Slurm: what is requested of it, and command lines of job steps."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zmqrl.errors import ConfigError, HostFailed, unusable

ANSWER_S = 15.0
"""How long slurmctld may take to answer a command."""
LISTED_FOR_S = 0.25
"""All hosts of a run share one listing: `squeue` loads the controller of a whole cluster."""
FAILED_FOR_S = 5.0
"""And one failure: else each host waits `ANSWER_S` for a controller that does not answer."""
OWN_JOB = "ZMQRL_JOB"
"""The variable in which the script of `--submit` passes on the id of the job, which is the launcher's alone."""
ALLOCATION, NODES, CPUS = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE"
COMPLETING, PENDING = "COMPLETING", "PENDING"
SQUEUE = ("squeue", "-h", "-u")
NOTHING = "No error"
OF_SLURM = re.compile(r"(SLURMD?|SBATCH|SALLOC|SRUN|SQUEUE|SINFO|SCANCEL|SCONTROL)_")
KEPT = re.compile(r"SLURM_(CONF|CLUSTERS|JWT|ACCOUNT|WCKEY|ARRAY_\w+|SUBMIT_\w+)|SBATCH_(ACCOUNT|WCKEY)")
"""Variables that select the cluster and who pays, and those that the commands ignore."""
PREFERENCES = {
    "SLURM_PARTITION": "partition",
    "SLURM_QOS": "qos",
    "SLURM_TIMELIMIT": "time",
    "SLURM_CONSTRAINT": "constraint",
}
"""Variables that a user may have set as an option for every job, and the key of the orchestrator for it."""
NOISE = ("srun: ", "sbatch: ", "error: ", "fatal: ", "allocation failure: ")


def environment() -> dict[str, str]:
    """Environment of every command of Slurm.

    The variables of a job around the launcher are left out: the commands read them as options, which would override
    those of the run, such as the format of a list, the memory of a step or what its processes inherit.
    """
    return {name: value for name, value in os.environ.items() if not OF_SLURM.match(name) or KEPT.fullmatch(name)}


def slurm(host: str, *command: str) -> str:
    """Output of a command of Slurm. HostFailed with Slurm's own message, under the name of `host`.

    Names of other jobs may have any encoding: what cannot be decoded is replaced.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=ANSWER_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,  # Ctrl-C is for this process
        )
    except FileNotFoundError as error:
        fix = "run zmqrl on a machine that has the commands of Slurm, such as a login node"
        raise HostFailed(host, f"{command[0]} was not found", fix) from error
    except OSError as error:
        raise unusable(host, error) from error
    except subprocess.TimeoutExpired as error:
        fix = "check the controller: scontrol ping"
        raise HostFailed(host, f"{command[0]} did not answer within {ANSWER_S:g} s", fix) from error
    if done.returncode != 0:
        cause = error_text(done.stderr) or f"{command[0]} ended with exit code {done.returncode}"
        raise HostFailed(host, cause, "`sinfo` and `scontrol show partition` list what there is")
    return done.stdout


def error_text(stderr: str) -> str:
    """What a command of Slurm reported, in one line; empty: nothing."""
    return "; ".join(dict.fromkeys(line for line in map(_plain, stderr.splitlines()) if line not in ("", NOTHING)))


def is_queued(stderr: str) -> bool:
    """Whether the job waits for resources, by what `srun` has reported last."""
    return stderr.rfind("queued and waiting for resources") > stderr.rfind("has been allocated resources")


def _plain(line: str) -> str:
    line = line.strip()
    while (prefix := next((noise for noise in NOISE if line.startswith(noise)), None)) is not None:
        line = line.removeprefix(prefix)
    return line


@dataclass(frozen=True)
class Allocation:
    """The job that this process is part of: `salloc` or `sbatch`."""

    job: str
    nodes: Mapping[str, int]
    """Nodes in Slurm's order, with the CPUs that the job has on each."""

    @classmethod
    def own(cls, environ: Mapping[str, str] = os.environ) -> Allocation | None:
        """Allocation in Slurm's variables; None: outside of a job. ConfigError when Slurm does not know the nodes."""
        job, listed = environ.get(ALLOCATION), environ.get(NODES)
        if job is None or listed is None:
            return None
        try:
            nodes = slurm("slurm", "scontrol", "show", "hostnames", listed).split()
        except HostFailed as error:
            raise ConfigError(f"{NODES}: {listed!r}: {error.cause}\n   {error.fix}") from error
        return cls(job, dict(zip(nodes, cpus_of(environ.get(CPUS, ""), len(nodes)), strict=True)))


def cpus_of(text: str, nodes: int) -> list[int]:
    """`16(x2),8`: 16, 16, 8. One for each node where the text has another form."""
    found: list[int] = []
    for part in text.split(","):
        cpus, _, times = part.removesuffix(")").partition("(x")
        if not cpus.isdigit() or not (times or "1").isdigit():
            return [1] * nodes
        found += [int(cpus)] * int(times or 1)
    return found if len(found) == nodes else [1] * nodes


@dataclass
class Listing:
    """Jobs and steps of this user by name, at most `LISTED_FOR_S` old. Any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _until: float = 0.0
    """Monotonic time for which the answer counts."""
    _answer: Mapping[str, Sequence[str]] | HostFailed = field(default_factory=dict)

    def ids(self, host: str, name: str) -> Sequence[str]:
        """Ids of the jobs with a name, and of steps within other jobs. HostFailed when Slurm does not answer."""
        with self._lock:
            if time.monotonic() > self._until:
                self._request(host)
            if isinstance(self._answer, HostFailed):
                raise HostFailed(host, self._answer.cause, self._answer.fix) from self._answer
            return self._answer.get(name, ())

    def _request(self, host: str) -> None:
        try:
            self._answer, kept_s = _listed(host), LISTED_FOR_S
        except HostFailed as error:
            self._answer, kept_s = error, FAILED_FOR_S
        self._until = time.monotonic() + kept_s


def state_of(job: str) -> str | None:
    """State of a job of this user; None: it has ended, or only the site's epilog runs. HostFailed."""
    jobs, _ = _jobs_and_steps("launcher")
    return next((state for found, state, _ in jobs if found == job), None)


def _jobs_and_steps(host: str) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Jobs (id, state, name) and steps (id, name) of this user.

    A job that is COMPLETING without a step is left out: its processes have ended, and the site's epilog runs.
    """
    user = str(os.getuid())
    rows = [line.strip().partition(" ") for line in slurm(host, *SQUEUE, user, "-o", "%i %T %j").splitlines()]
    steps = [line.strip().partition(" ") for line in slurm(host, *SQUEUE, user, "-s", "-o", "%i %j").splitlines()]
    with_steps = {step.partition(".")[0] for step, _, _ in steps}
    named = [(job, *rest.partition(" ")[::2]) for job, _, rest in rows]  # a name may be empty
    jobs = [(job, state, name) for job, state, name in named if state != COMPLETING or job in with_steps]
    return jobs, [(step, name) for step, _, name in steps]


def _listed(host: str) -> Mapping[str, Sequence[str]]:
    """Steps of a job of the same name are left out: they end with it."""
    jobs, steps = _jobs_and_steps(host)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for job, _, name in jobs:
        found[name].append(job)
    for step, name in steps:
        if step.partition(".")[0] not in found[name]:
            found[name].append(step)
    return found


def signal_script(job: str, name: str) -> None:
    """A signal to the script of a batch job; one that has ended is ignored."""
    with contextlib.suppress(HostFailed):
        slurm("launcher", "scancel", "--quiet", "--batch", f"--signal={name}", job)


def cancel(ids: Sequence[str]) -> None:
    """End jobs and steps without a grace; `Listing` shows the result. What has ended meanwhile is ignored."""
    for how in (("--signal=KILL", "--full"), ()):  # the processes at once, then the allocation
        with contextlib.suppress(HostFailed):
            slurm("slurm", "scancel", "--quiet", *how, *ids)


def pending_reasons() -> Mapping[str, str]:
    """Reasons why jobs of this user wait, by name, as Slurm names them. HostFailed when Slurm does not answer."""
    rows = slurm("slurm", "squeue", "-h", "-u", str(os.getuid()), "-t", "PENDING", "-o", "%j %r").splitlines()
    return {name: reason for name, _, reason in (row.strip().partition(" ") for row in rows)}


def known_nodes() -> set[str]:
    """Names of the nodes of the cluster. HostFailed when Slurm does not answer."""
    return set(slurm("slurm", "sinfo", "-h", "-N", "-o", "%N").split())


def physical_cores() -> Mapping[str, int]:
    """Physical cores of each node of the cluster. HostFailed when Slurm does not answer."""
    rows = (line.split() for line in slurm("slurm", "sinfo", "-h", "-N", "-o", "%N %X %Y").splitlines())
    return {node: int(sockets) * int(cores) for node, sockets, cores in rows}
