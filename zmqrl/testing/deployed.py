"""Hosts on which the suite of orchestrators runs, and an orchestrator with a plan on them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from zmqrl.config.hosts import LOCAL
from zmqrl.launch.action_runner import ActionRunner
from zmqrl.launch.lease_renewal import LeaseRenewal
from zmqrl.launch.run.boots import boots
from zmqrl.launch.run.host_events import lose
from zmqrl.launch.run.machine import RunMachine
from zmqrl.launch.run.problem_reports import AdvisoryWrites
from zmqrl.launch.run.state import RunState
from zmqrl.launch.start import Prepared, prepare
from zmqrl.messages.command import KillAll
from zmqrl.messages.orchestrator import AgentExited, HostUnusable
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.orchestrators.make import access_of, make_orchestrator
from zmqrl.planning.start_request import StartRequest
from zmqrl.testing import fakes
from zmqrl.testing.expect import assert_within, until
from zmqrl.wire.runtime_folder import private_folder, remove_left_folder

E = TypeVar("E")
START_S = 60.0
"""Within this every process of a check has started."""
GRACE_S = 12.0
GONE_S = 5.0
"""Within this no process is left, on an idle machine."""
REAP_GRACE_S = 1.0
ENDLESS = 1_000_000_000
SETTINGS: Mapping[str, Any] = {
    "run.name": "testing",
    "run.mode": "sync",
    "run.total_env_steps": ENDLESS,
    "env.id": fakes.ENV,
    "env.num_envs": 2,
    "env.vector_envs": 4,
    "env.segment_steps": 8,
    "env.max_episode_steps": fakes.EPISODE_STEPS,
    "network.hidden": [4],
    "algorithm.kind": fakes.ALGORITHM,
    "evaluator.episodes": 0,
    "limits.start_s": START_S,
    "limits.grace_s": 10.0,
    "restart.backoff_s": 0.05,
}
"""Settings of every run of the suite, merged after those of `Hosts.settings`."""


class Machines:
    """The processes of all hosts.

    This one sees hosts that share the kernel of this machine: local processes, containers, and tests of a cluster on
    one machine. Override both methods where the hosts are elsewhere.
    """

    def processes(self, marks: Collection[str]) -> Sequence[str]:
        """Processes with one of `marks` in an argument of their command line, as text for messages."""
        found = []
        for pid, argv in _command_lines():
            if any(mark in argument for argument in argv for mark in marks):
                found.append(f"{pid}: {' '.join(argv)}")
        return found

    def kill_agents(self, run_id: str) -> None:
        """SIGKILL every host agent of the run: `python -m zmqrl.entry zmqrl.agent RUN 0`."""
        for pid, argv in _command_lines():
            if argv[1:5] == ["-m", "zmqrl.entry", "zmqrl.agent", run_id]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Hosts:
    """Where the checks run."""

    folder: Path
    """Folder of the run directories, on this machine."""
    settings: Mapping[str, Any]
    """What hosts.yaml has: the sections `orchestrator` and `hosts`, with at most four workers."""
    machines: Machines = field(default_factory=Machines)


HostsMaker: TypeAlias = Callable[[], Hosts]
"""For example `lambda: Hosts(tmp_path, {"orchestrator": {"kind": "mine:Mine"}, "hosts": {"a": {"workers": 1}}})`."""


class Deployed:
    """An orchestrator and what it has reported. The launcher's part is here: leases, and the broker's address."""

    def __init__(self, hosts: Hosts, total_env_steps: int = ENDLESS, **env: Any) -> None:
        """`env`: `kwargs` of the fake env."""
        self.token = f"token-{secrets.token_hex(6)}"
        settings = settings_of(hosts, total_env_steps, {**env, "token": self.token})
        prepared = prepare(StartRequest(overrides=settings, run_dir=hosts.folder / f"run-{secrets.token_hex(4)}"))
        assert isinstance(prepared, Prepared)
        self.plan, self._directory = prepared.plan, prepared.directory
        self.orchestrator: Orchestrator = make_orchestrator(self.plan)
        self._directory.begin(self.plan)
        self.events: list[HostEvent] = []
        self.hosts = tuple(boots(self.plan))
        """Hosts that participate, the learner's first."""
        self.others = tuple(host for host in self.hosts if host != LOCAL)
        """Hosts that only the orchestrator kind reaches."""
        self._state, self.machines = RunState(self.plan), hosts.machines
        machine = RunMachine(self.plan, self._state, self.orchestrator.refusal, time.monotonic())
        files = AdvisoryWrites(self._directory.path, self._state.note)
        private = private_folder(self.plan.run_id)
        self._actions = ActionRunner(machine, self.plan, self.orchestrator, files, private)
        self._leases = LeaseRenewal(self.orchestrator, START_S)

    @property
    def process_count(self) -> int:
        """Processes that the agents start: broker, learner and workers."""
        return 2 + self.plan.total_workers

    def deploy(self) -> None:
        """Deploy as the launcher does it, once."""
        self._actions.begin(time.monotonic())
        self._leases.start()

    def take(self, timeout_s: float = 0.1) -> None:
        """One turn of the launcher."""
        for event in self.orchestrator.monitor(timeout_s):
            self.events.append(event)
            self._actions.take(event, time.monotonic())
        self._leases.confirm(time.monotonic())
        self._actions.tick(time.monotonic())

    @property
    def access(self) -> HostAccess:
        """What commands reach the hosts by."""
        return access_of(self.plan.config, self.hosts)

    def reap(self) -> dict[str, Any]:
        """Reap the other hosts as `zmqrl down` does; the launcher is here, lives and sends nothing more."""
        self._leases.end()
        found = dict(self.access.reap(self.others, self.plan.run_id, REAP_GRACE_S))
        ended: set[str] = set()

        def all_have_ended() -> bool:
            self.events += (new := self.orchestrator.monitor(0.1))
            ended.update(event.host for event in new if isinstance(event.event, AgentExited))
            return ended >= set(self.others)

        until(all_have_ended, f"the agents of {self.others} to end", START_S)
        return found

    def end_host(self, host: str) -> None:
        """End the agent of a host, which the launcher then takes for lost."""
        self.orchestrator.command(host, KillAll())
        self.until_of(host, AgentExited)
        lose(self._state, self._state.hosts[host], "lost", "ended by the check")

    def until_of(self, host: str, kind: type[E], count: int = 1) -> None:
        """Wait for events of a type of one host."""

        def are_there() -> bool:
            self.take()
            return sum(event.host == host and isinstance(event.event, kind) for event in self.events) >= count

        until(are_there, f"{count} {kind.__name__} of {host}", START_S)

    def of(self, kind: type[E]) -> list[E]:
        """The events of a type, so far."""
        return [event.event for event in self.events if isinstance(event.event, kind)]

    def until(self, kind: type[E], count: int = 1) -> list[E]:
        """Wait for events of a type. AssertionError after `START_S`, or when a host fails before."""
        end = time.monotonic() + START_S
        while len(found := self.of(kind)) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} {kind.__name__} within {START_S:g} s: {self}"
            unusable = self.of(HostUnusable)
            assert not unusable or kind is HostUnusable, f"a host is not usable: {unusable}"
            self.take()
        return found

    def await_child_processes(self) -> None:
        """Until every worker has an env that has started a child process."""

        def count() -> int:
            self.take()
            return len(self.machines.processes((self.token,)))

        until(lambda: count() >= self.plan.total_workers, "the child processes of the envs", START_S)

    def undeploy(self, grace_s: float = GRACE_S) -> Teardown:
        """End it; the events of the end are taken too."""
        self._leases.end()
        teardown = self.orchestrator.undeploy(grace_s)
        self.events += self.orchestrator.monitor(0.0)
        return teardown

    def await_gone(self) -> None:
        """AssertionError when a process of the run remains on any host."""
        await_gone(self.machines, self.plan.run_id, self.token)

    def close(self) -> None:
        """Whatever became of the check."""
        self._leases.end()
        self.orchestrator.undeploy(0.1)
        self._directory.release()
        remove_left_folder(self.plan.run_id)

    def __str__(self) -> str:
        logs = Path(self.plan.run_dir, "logs").glob("*.log")
        tails = [f"{log.name}: {log.read_text(encoding='utf-8', errors='replace')[-1000:]}" for log in logs]
        return "\n".join([*(f"{event.where}: {event.event!r:.300}" for event in self.events), *tails])


@contextlib.contextmanager
def deployed(make: HostsMaker, total_env_steps: int = ENDLESS, **env: Any) -> Iterator[Deployed]:
    """An orchestrator with a plan, not deployed yet; it is undeployed at the end of `with`."""
    held = Deployed(make(), total_env_steps, **env)
    try:
        yield held
    finally:
        held.close()


def await_gone(machines: Machines, *marks: str) -> None:
    """AssertionError when a process with one of `marks` remains."""
    begun = time.monotonic()
    while left := machines.processes(marks):
        assert_within(time.monotonic() - begun, GONE_S, f"the end of {left}")
        time.sleep(0.05)


def settings_of(hosts: Hosts, total_env_steps: int, env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sections and dotted keys of hosts.yaml."""
    found: dict[str, Any] = {**SETTINGS, "run.total_env_steps": total_env_steps, "env.kwargs": dict(env or {})}
    # A fault of an env comes in every worker, so none may have all vector envs before the others are there.
    workers = [host.get("workers") for host in hosts.settings["hosts"].values()]
    known = {"min_workers": sum(workers)} if all(isinstance(count, int) for count in workers) else {}
    return {**known, **hosts.settings, **found}


@contextlib.contextmanager
def launched(hosts: Hosts, settings: Mapping[str, Any], name: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`zmqrl launch` with these settings, and its run directory; killed at the end of `with`."""
    run_dir = hosts.folder / f"{name}-{secrets.token_hex(4)}"
    file = run_dir.with_suffix(".yaml")
    file.write_text(json.dumps(nested(settings), indent=2), encoding="utf-8")
    command = [sys.executable, "-m", "zmqrl", "launch", str(file), "--plain", "--run-dir", str(run_dir)]
    with run_dir.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process, run_dir
    finally:
        process.kill()
        process.wait(START_S)


def output_of(run_dir: Path) -> str:
    """The end of what a launcher has printed."""
    return run_dir.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-4000:]


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as sections."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        if isinstance(value, Mapping) and isinstance(node.get(last), dict):
            node[last].update(value)
        else:
            node[last] = dict(value) if isinstance(value, Mapping) else value
    return tree


def _command_lines() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield int(path.parent.name), path.read_bytes().decode(errors="replace").rstrip("\0").split("\0")
