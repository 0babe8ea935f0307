"""`zmqrl down`: end a run from any shell, with or without a live launcher: first the launcher, then each host."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zmqrl.agent.reaper import reap
from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL, is_remote, limited
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.launch.stop_signals import SAME_PRESS_S, StopFile
from zmqrl.messages.orchestrator import Reaped
from zmqrl.orchestrators.make import access_of
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.run_files.run_info import RunInfo, check_user, is_live, launcher_state, read_info
from zmqrl.run_files.stored_config import read_config
from zmqrl.run_files.trust import opened
from zmqrl.supervision.process_table import ProcessId, await_gone, is_stopped, kill, send
from zmqrl.supervision.run_owner import OwnerState

GRACE_S = 5.0
"""What an agent may take to end its processes; a run that is to write a checkpoint is stopped, not brought down."""
LAUNCHER_S = 30.0
"""Limit for all hosts, including slow ones."""
POLL_EVERY_S = 0.1
KILL_WAIT_S = 5.0
NOTHING = Reaped()
NO_HOST = "\0"
"""No host's name."""


@dataclass(frozen=True)
class TargetRun:
    """A run to end, as far as it is known on this machine."""

    run_id: str
    run_dir: Path | None = None
    info: RunInfo | None = None
    """None: only processes of it were found."""


@dataclass(frozen=True)
class HostTeardown:
    """What became of one host's part."""

    host: str
    reaped: Reaped = NOTHING
    cause: str | None = None
    """Why it could not be checked."""

    @property
    def is_down(self) -> bool:
        """Nothing is left, as was verified."""
        return self.cause is None and not self.reaped.left


def bring_down(target_run: TargetRun, limit: Sequence[str] = (), grace_s: float = GRACE_S) -> Iterator[HostTeardown]:
    """End the launcher, then what is left on every host; a report per host as it is known, the launcher's first.

    With `limit` only on these hosts; the launcher must have ended.

    Raises:
        ConfigError: The run is of another user, `limit` names no host of it, or it would take the host back.
    """
    if target_run.info is not None and target_run.run_dir is not None:
        check_user(target_run.run_dir, target_run.info)
    config, problem = _config(target_run)
    return _reports(target_run, config, problem, _hosts(target_run, config, limit), bool(limit), grace_s)


def _reports(
    target_run: TargetRun, config: Config | None, problem: str | None, hosts: list[str], limit: bool, grace_s: float
) -> Iterator[HostTeardown]:
    reports = []
    if target_run.info is not None and target_run.run_dir is not None and not limit:
        reports.append(_end_launcher(target_run.run_dir, target_run.info, config))
        yield reports[0]
    if problem is not None:
        reports.append(HostTeardown("hosts", cause=problem))
        yield reports[-1]
    for report in _on_hosts(target_run, config, hosts, grace_s):
        reports.append(report)
        yield report
    if target_run.run_dir is not None and not limit and all(report.is_down for report in reports):
        RunDirectory(target_run.run_dir).mark_ended(time.time())


def _end_launcher(run_dir: Path, info: RunInfo, config: Config | None) -> HostTeardown:
    if info.job is None or config is None:
        return end_launcher(run_dir, info)
    try:
        return HostTeardown("launcher", access_of(config, config.hosts).end_job(info.job, LAUNCHER_S))
    except (ConfigError, HostFailed) as error:
        return HostTeardown("launcher", cause=str(error))


def end_launcher(run_dir: Path, info: RunInfo) -> HostTeardown:
    """Have it kill its run, as a second Ctrl-C does; kill it when it does not answer."""
    who, state = f"launcher (pid {info.pid})", launcher_state(run_dir, info)
    cause = _unseen(run_dir, info, state)
    if cause is not None or state is OwnerState.ENDED:
        return HostTeardown("launcher", cause=cause)
    process = ProcessId(info.pid, info.start_time)
    if info.in_thread:  # of a process of the user; it ends with its hosts at the latest
        StopFile(run_dir).request()
        _waits(run_dir, info, LAUNCHER_S)
        return HostTeardown("launcher")
    if not is_stopped(process):
        send(process, signal.SIGTERM)
        if not _waits(run_dir, info, SAME_PRESS_S + POLL_EVERY_S):
            send(process, signal.SIGTERM)
        if _waits(run_dir, info, LAUNCHER_S):
            return HostTeardown("launcher", Reaped(ended=(who,)))
    kill(process)
    left = await_gone([process], KILL_WAIT_S)
    return HostTeardown("launcher", Reaped(left=(who,)) if left else Reaped(killed=(who,)))


def _unseen(run_dir: Path, info: RunInfo, state: OwnerState) -> str | None:
    """Why this machine cannot verify that a launcher, and what it has started here, has ended; None: it can."""
    if state in (OwnerState.HERE, OwnerState.ENDED):
        return None
    known = "it runs" if state is OwnerState.ELSEWHERE else "it may run"
    return f"{known} {info.place}: use `zmqrl down {run_dir.absolute()}` there"


def _waits(run_dir: Path, info: RunInfo, timeout_s: float) -> bool:
    """Until the launcher has exited or recorded the end of this run."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if not await_gone([ProcessId(info.pid, info.start_time)], POLL_EVERY_S):
            return True
        now = read_info(run_dir)
        if now is not None and now.run_id == info.run_id and now.ended_at is not None:
            return True
    return False


def _config(target_run: TargetRun) -> tuple[Config | None, str | None]:
    if target_run.run_dir is None:
        return None, None
    try:
        config = read_config(target_run.run_dir)
        return (opened(target_run.run_dir) if ":" in config.orchestrator.kind else config), None
    except ConfigError as error:
        return None, f"{error}: only this machine was checked"


def _hosts(target_run: TargetRun, config: Config | None, limit: Sequence[str]) -> list[str]:
    """Which hosts to check: the run's, and this machine."""
    if not limit:
        known = [] if config is None else [*config.hosts, config.learner.host]
        return list(dict.fromkeys([LOCAL, *known]))
    if config is None:
        raise ConfigError("the hosts of this run are unknown on this machine", key=("--limit",), fix="omit --limit")
    without_learner = replace(config, learner=replace(config.learner, host=NO_HOST))  # or it would stay, named or not
    hosts = [name for name in limited(without_learner, limit).hosts if name != NO_HOST]
    if target_run.info is not None and target_run.run_dir is not None and is_live(target_run.run_dir, target_run.info):
        what = f"run {target_run.run_id} is active, and its launcher would reconnect to the host"
        fix = f"remove the host from the run: zmqrl drain {target_run.run_id} HOST"
        raise ConfigError(what, key=("--limit",), fix=fix)
    return hosts


def _on_hosts(
    target_run: TargetRun, config: Config | None, hosts: Sequence[str], grace_s: float
) -> Iterator[HostTeardown]:
    if LOCAL in hosts:
        yield _here(target_run, config, grace_s)
    if config is None:
        return
    remote = [host for host in hosts if host != LOCAL]
    manual = [host for host in remote if not is_remote(host, config.hosts.get(host, HostSection()))]
    for host in manual:
        lease_s = config.limits.host_lease_s
        cause = f"it joined manually, and this machine does not reach it: its agent ends {lease_s:g} s after the broker"
        yield HostTeardown(host, cause=cause)
    reached = [host for host in remote if host not in manual]
    if reached:
        try:
            access = access_of(config, reached)
        except ConfigError as error:
            yield from (HostTeardown(host, cause=str(error)) for host in reached)
            return
        for host, found in access.reap(reached, target_run.run_id, grace_s):
            yield HostTeardown(host, found) if isinstance(found, Reaped) else HostTeardown(host, cause=str(found))


def _here(target_run: TargetRun, config: Config | None, grace_s: float) -> HostTeardown:
    info, run_dir = target_run.info, target_run.run_dir
    if info is not None and run_dir is not None:
        if info.job is not None and info.host != socket.gethostname():
            return HostTeardown(LOCAL)  # it was in the launcher's job
        cause = _unseen(run_dir, info, launcher_state(run_dir, info))
        if cause is not None:
            return HostTeardown(LOCAL, cause=cause)
    alone = config is None or set(config.hosts) <= {LOCAL}
    return HostTeardown(LOCAL, reap(target_run.run_id, grace_s, None if alone else LOCAL))
