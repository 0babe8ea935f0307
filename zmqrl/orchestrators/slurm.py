"""Slurm: the host agent of each host is the one task of a job step, on the stdin and stdout of `srun`.

From a login node each host is a job. Within `salloc` or `sbatch` each host is a step of that allocation. Slurm itself
confirms the end: it kills every process of a step, and `squeue` lists the steps that are left.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config as RunConfig
from zmqrl.config.sections import HostSection
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.messages.orchestrator import Handshake
from zmqrl.orchestrators import slurm_commands
from zmqrl.orchestrators.agent import KILL_WAIT_S, HostEnd, Warn
from zmqrl.orchestrators.base import Teardown
from zmqrl.orchestrators.host_commands import agent_command, job_name
from zmqrl.orchestrators.host_start import start_fault
from zmqrl.orchestrators.on_hosts import ended_over
from zmqrl.orchestrators.piped import PipedShell
from zmqrl.orchestrators.shell_orchestrator import ShellAgent, ShellOrchestrator
from zmqrl.orchestrators.slurm_access import PROBE_S, SlurmAccess, probe_name
from zmqrl.orchestrators.slurm_commands import Allocation, slurm
from zmqrl.orchestrators.slurm_steps import (
    SlurmConfig,
    check_keys,
    cpus_of,
    nodes_needed,
    nodes_of,
    srun,
    workers_of,
)
from zmqrl.ssh.shell import HostShell

REASON_EVERY_S = 2.0
CANCEL_PENDING = (
    'read _; jobs=$(squeue -h -t PENDING -u "$1" -o "%i %j" | grep -F " $2" | cut -d" " -f1); '
    '[ -z "$jobs" ] || exec scancel $jobs'
)
"""A shell that outlives the launcher: `srun` ignores the end of its stdin while its job is pending."""
_ENDED_BY_SLURM = re.compile(r"\*\*\* ((?:STEP|JOB) .*?) \*\*\*")


class SlurmAgent(ShellAgent):
    """One job step, by its name."""

    def __init__(
        self,
        boot: Boot,
        warn: Warn,
        shell: HostShell,
        access: SlurmAccess,
        log: Path,
        command: str,
        reap: Callable[[str | None], HostEnd],
    ) -> None:
        """`reap` ends what is left of the run on the node that it is given, by another job."""
        self.name = job_name(boot.plan.run_id, boot.host)
        self._reap = reap
        self._node: str | None = None
        super().__init__(boot, warn, shell, access, log, command)

    def on_handshake(self, handshake: Handshake) -> None:
        self._node = handshake.node
        super().on_handshake(handshake)

    def end(self) -> HostEnd:
        """Slurm ends its processes. Without cgroups that does not include what an env started before a kill -9."""
        ended = super().end()
        if not self.is_booted or self.progress.finished is not None or self.cut_off() is not None:
            return ended
        reaped = self._reap(self._node)
        return HostEnd((*ended.killed, *reaped.killed), (*ended.left, *reaped.left))

    def silent_end(self, code: int | None) -> HostFailed:
        fault = start_fault(self.host, self.section, self.log.text())
        if fault is not None:
            return fault.of(self.host)
        cause = slurm_commands.error_text(self.log.text()) or f"srun ended with exit code {code} before the handshake"
        return HostFailed(self.host, cause, f"see {self.log.path}")

    def overdue(self) -> HostFailed | None:
        """A job may wait for resources as long as the run can do without it; its time begins when it has them."""
        if not self.is_booted and slurm_commands.is_queued(self.log.text()):
            self.began = time.monotonic()
        return super().overdue()

    def cut_off(self) -> HostFailed | None:
        found = _ENDED_BY_SLURM.search(self.log.text())
        fix = f"when the node is free: zmqrl scale {self.host}={len(self.boot.workers)}"
        if self.host == self.boot.plan.config.learner.host:
            fix = "the learner was there: resume the run"
        return None if found is None else HostFailed(self.host, f"Slurm: {found[1]}", fix)

    def kill(self) -> None:
        """`srun` ends its job on SIGTERM, also one that is pending."""
        self.pipe.terminate()
        if self.wait(KILL_WAIT_S) is None:
            super().kill()


class SlurmOrchestrator(ShellOrchestrator):
    """A step per host; the host `local`, where it participates, is this machine."""

    Config = SlurmConfig
    returns_checkpoints = True  # its learner writes them to the run directory

    def __init__(self, config: SlurmConfig, plan: RunPlan) -> None:
        """ConfigError, with Slurm's own message, when Slurm would not accept a host's job."""
        if plan.config.code.sync:
            raise ConfigError(
                "the nodes of a Slurm run share the files of this machine", key=("code", "sync"), fix="remove the key"
            )
        super().__init__(config, plan)
        self._access = SlurmAccess(config, plan.config)  # its `run` has the hosts that have joined too
        self._reporter: threading.Thread | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._hosts = nodes_needed(plan.config)
        check_keys(plan.config, self._hosts)
        self._allocation = Allocation.own()
        try:
            self._nodes = nodes_of(self._hosts, self._allocation)
            if self._allocation is None:
                _check_gres(config.gres, plan)
                self._check_accepted()
        except HostFailed as error:
            raise ConfigError(f"{error.cause}\n   {error.fix}", key=("orchestrator", "kind"), value="slurm") from error

    @property
    def job(self) -> str | None:
        return os.environ.get(slurm_commands.OWN_JOB)

    def refusal(self, host: str, section: HostSection) -> str | None:
        if self._allocation is not None:
            return f"it has the nodes of the Slurm job {self._allocation.job}; hosts join runs of a login node"
        try:
            check_keys(replace(self.plan.config, hosts={host: section}), [host])
        except ConfigError as error:
            return str(error)
        return None

    def _step(self, host: str) -> list[str]:
        run, name = self._access.run, job_name(self.plan.run_id, host)
        return list(srun(self.config, run, host, self._nodes[host], name, cpus_of(run, host), self._allocation))

    def _check_accepted(self) -> None:
        """Slurm examines the job of the learner's host, and that of the host with most workers of the others."""
        learner = [host for host in self._hosts if host == self.plan.config.learner.host]
        others = [host for host in self._hosts if host not in learner]
        others.sort(key=lambda host: -workers_of(self.plan.config, host))
        for host in (*learner, *others[:1]):
            try:
                slurm(host, *self._step(host), "--test-only", "true")
            except HostFailed as error:
                argv = " ".join(self._step(host)[1:])
                what = f"Slurm rejects the job of {host}: {error.cause}\n   its options: {argv}\n   {error.fix}"
                raise ConfigError(what, key=("orchestrator",)) from error

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        self._warn_of_few_cpus(boots)
        self._warn_of_preferences()
        for boot in boots.values():
            run = self._access.run
            self._access.run = replace(run, hosts={**run.hosts, **boot.plan.config.hosts})
        super().deploy(boots)
        if self._allocation is None:
            self._watch_pending()

    @classmethod
    def shell(cls, config: SlurmConfig, run: RunConfig, host: str) -> PipedShell:
        prefix = SlurmAccess(config, run).prefixes([host])[host]
        return PipedShell(host, prefix, slurm_commands.environment())

    def shells(self, boots: Mapping[str, Boot]) -> Iterator[tuple[str, PipedShell | HostFailed]]:
        for host in boots:
            try:
                if host not in self._nodes:
                    self._nodes |= nodes_of([host], None)
            except HostFailed as error:
                yield host, HostFailed(host, error.cause, error.fix)
            else:
                yield host, PipedShell(host, self._step(host), slurm_commands.environment())

    def agent(self, boot: Boot, shell: HostShell) -> SlurmAgent:
        """The host writes to the run directory itself: the logs are there, and the checkpoints of its learner."""
        plan = replace(boot.plan, run_dir=self.plan.run_dir)
        boot = replace(boot, plan=plan, streams_logs=False, neighbours=self._access.neighbours())
        command = agent_command(self._access.section(boot.host), boot.plan.run_id, boot.host)
        command = f"{_check_shared(self.plan.run_dir)}; {command}"
        log, reap = self.log_of(boot.host), partial(self._reap, boot.host)
        return SlurmAgent(boot, self.warn, shell, self._access, log, command, reap)

    def _reap(self, host: str, node: str | None) -> HostEnd:
        """`node`: where the agent of a host was whose node Slurm has chosen. It needs no answer of slurmctld."""
        run = self._access.run
        argv = srun(self.config, run, host, self._nodes[host] or node, probe_name(host), 1, self._allocation)
        shell = PipedShell(host, [*argv, f"--immediate={PROBE_S}"], slurm_commands.environment())
        return ended_over(shell, self._access.section(host), self.plan.run_id, host)

    def _warn_of_few_cpus(self, boots: Mapping[str, Boot]) -> None:
        if self._allocation is None:
            return
        for host in [host for host in boots if host != LOCAL]:
            node, workers = self._nodes[host] or "", len(boots[host].workers)
            has = self._allocation.nodes[node]
            if has < workers:
                text = f"the allocation {self._allocation.job} has {has} CPUs on {node} for {workers} workers"
                self.warn(host, f"{text}; allocate more with --cpus-per-task={cpus_of(self.plan.config, host)}")

    def _warn_of_preferences(self) -> None:
        for name, key in slurm_commands.PREFERENCES.items() if self._allocation is None else ():
            if name in os.environ and getattr(self.config, key) is None:
                self.warn(self._hosts[0], f"{name} is not used; set orchestrator.{key}")

    def _watch_pending(self) -> None:
        """Reports why jobs wait, and cancels what is pending when this process ends."""
        if self._reporter is None or not self._reporter.is_alive():
            self._reporter = threading.Thread(target=self._report_pending, name="pending jobs", daemon=True)
            self._reporter.start()
        if self._watchdog is None:
            self._watchdog = subprocess.Popen(
                ["sh", "-c", CANCEL_PENDING, "sh", str(os.getuid()), job_name(self.plan.run_id, "")],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=slurm_commands.environment(),
            )

    def _report_pending(self) -> None:
        """A thread: jobs that wait for resources, each with Slurm's reason, once per reason."""
        reported: dict[str, str] = {}
        while not self.is_ending.wait(REASON_EVERY_S):
            agents = [agent for agent in list(self.agents.values()) if isinstance(agent, SlurmAgent)]
            waiting = [agent for agent in agents if not agent.is_booted and agent.wait(0.0) is None]
            try:
                reasons = slurm_commands.pending_reasons() if waiting else {}
            except HostFailed:
                continue  # slurmctld does not answer: srun reports what it means
            for agent in waiting:
                reason = reasons.get(agent.name)
                if reason is not None and reported.get(agent.host) != reason:
                    reported[agent.host] = reason
                    limit_s = self.plan.config.limits.start_s
                    fix = f"if the run cannot start without it: raise limits.start_s ({limit_s:g} s), or use --submit"
                    self.warn(agent.host, f"the Slurm job {agent.name} is pending ({reason}); {fix}")
            if not waiting and not self.is_connecting:
                return

    def undeploy(self, grace_s: float) -> Teardown:
        teardown = super().undeploy(grace_s)
        if self._watchdog is not None:
            _ended(self._watchdog, slurm_commands.ANSWER_S)
            self._watchdog = None
        return teardown

    @classmethod
    def access(cls, config: SlurmConfig, run: RunConfig) -> SlurmAccess:
        return SlurmAccess(config, run)


def _check_gres(gres: str | None, plan: RunPlan) -> None:
    """Outside of an allocation."""
    if gres is not None and plan.config.learner.host == LOCAL:
        what = "the learner is on this machine, outside of Slurm"
        fix = "set learner.host to a host of the run, or use --submit"
        raise ConfigError(what, key=("orchestrator", "gres"), value=repr(gres), fix=fix, others=(("learner", "host"),))


def _check_shared(run_dir: str) -> str:
    """A line of the shell that ends with 1 and a message where the run directory is not the launcher's."""
    quoted = shlex.quote(run_dir)
    text = shlex.quote(f"the run directory {run_dir} is not shared with this node: choose another --run-dir")
    return f"[ -e {quoted}/run.json ] || {{ echo {text} >&2; exit 1; }}"


def _ended(watchdog: subprocess.Popen[bytes], timeout_s: float) -> None:
    """End the watchdog: by the end of its stdin, and at the deadline by SIGKILL with everything that it started."""
    try:
        watchdog.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(watchdog.pid, signal.SIGKILL)
        watchdog.communicate()
