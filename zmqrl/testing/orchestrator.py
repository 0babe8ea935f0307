"""What an orchestrator promises, over real runs whose env and algorithm are fakes. A maker returns `Hosts`."""

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
from zmqrl.config.sections import HostSection
from zmqrl.launch.action_runner import ActionRunner
from zmqrl.launch.lease_renewal import LeaseRenewal
from zmqrl.launch.run.boots import boots
from zmqrl.launch.run.host_events import lose
from zmqrl.launch.run.machine import RunMachine
from zmqrl.launch.run.problem_reports import AdvisoryWrites
from zmqrl.launch.run.state import RunState
from zmqrl.launch.start import Prepared, prepare
from zmqrl.messages.agent import Exited, HostFinished, Started, Warned
from zmqrl.messages.command import KillAll, Lease, Stop
from zmqrl.messages.orchestrator import AgentExited, Handshake, HostUnusable, Reaped
from zmqrl.messages.process import FirstStep, LearnerEnded, Ready
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.orchestrators.make import kind_of, make_orchestrator
from zmqrl.planning.start_request import StartRequest
from zmqrl.testing import fakes
from zmqrl.testing.expect import assert_within, is_frozen_config, until
from zmqrl.wire.runtime_folder import private_folder, remove_left_folder

E = TypeVar("E")
START_S = 60.0
"""Within this every process of a check has started."""
DEPLOY_S, COMMAND_S, MONITOR_S = 2.0, 0.5, 1.0
GRACE_S = 12.0
GONE_S = 5.0
"""Within this no process is left, on an idle machine."""
EARLY_GRACE_S = 20.0
"""Of an `undeploy` that needs none."""
REAP_GRACE_S = 1.0
RUN_S = 300.0
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
"""Of every run of the suite; those of `Hosts.settings` go before them."""


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
    """Of the run directories, on this machine."""
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
        settings = _settings(hosts, total_env_steps, {**env, "token": self.token})
        prepared = prepare(StartRequest(overrides=settings, run_dir=hosts.folder / f"run-{secrets.token_hex(4)}"))
        assert isinstance(prepared, Prepared)
        self.plan, self._directory = prepared.plan, prepared.directory
        self.orchestrator: Orchestrator = make_orchestrator(self.plan)
        self._directory.begin(self.plan)
        self.events: list[HostEvent] = []
        self.hosts = tuple(boots(self.plan))
        """Those that participate, the learner's first."""
        self.others = tuple(host for host in self.hosts if host != LOCAL)
        """Those that only the kind reaches."""
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
        """As the launcher does it, once."""
        self._actions.begin(time.monotonic())
        self._leases.start()

    def take(self, timeout_s: float = 0.1) -> None:
        """One turn of the launcher."""
        for event in self.orchestrator.monitor(timeout_s):
            self.events.append(event)
            self._actions.take(event, time.monotonic())
        self._leases.confirm(time.monotonic())
        self._actions.tick(time.monotonic())

    def without_run(self) -> tuple[type[Orchestrator], Any]:
        """The class of the kind and its configuration, as commands have them that know no run."""
        return kind_of(self.plan.config, self.hosts)

    def reap(self) -> dict[str, Any]:
        """As `zmqrl down` does it with the other hosts; the launcher is here, lives and sends nothing more."""
        self._leases.end()
        cls, config = self.without_run()
        found = dict(cls.reap(config, self.plan.config, self.others, self.plan.run_id, REAP_GRACE_S))
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
        _await_gone(self.machines, self.plan.run_id, self.token)

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


def config_is_a_frozen_dataclass(make: HostsMaker) -> None:
    """The keys of hosts.yaml are validated against `Config`, and no process changes them."""
    with deployed(make) as run:
        is_frozen_config(type(run.orchestrator).Config)


def construction_starts_nothing(make: HostsMaker) -> None:
    """No process exists before `deploy`; `undeploy` then has nothing to end, and may be called twice."""
    with deployed(make) as run:
        run.await_gone()
        assert run.undeploy(0.1) == Teardown(ended=0)
        assert run.undeploy(0.1) == Teardown(ended=0)


def no_call_waits_for_a_host(make: HostsMaker) -> None:
    """`deploy` and `command` return at once, `monitor` after its time-out: one thread of the launcher does all this."""
    with deployed(make) as run:
        begun = time.monotonic()
        run.deploy()
        assert_within(time.monotonic() - begun, DEPLOY_S, "deploy")
        begun = time.monotonic()
        run.orchestrator.command(None, Lease())
        run.orchestrator.command(run.hosts[-1], Lease())
        assert_within(time.monotonic() - begun, COMMAND_S, "command")
        begun = time.monotonic()
        run.orchestrator.monitor(0.05)
        assert_within(time.monotonic() - begun, MONITOR_S, "monitor(0.05)")


def an_early_end_leaves_nothing(make: HostsMaker) -> None:
    """`undeploy` directly after `deploy` ends what is being started, on every host, and gives it no grace."""
    with deployed(make) as run:
        run.deploy()
        begun = time.monotonic()
        teardown = run.undeploy(EARLY_GRACE_S)
        took_s = time.monotonic() - begun
        assert teardown.left == (), teardown
        assert_within(took_s, EARLY_GRACE_S / 2, "undeploy")
        run.await_gone()


def events_come_in_order(make: HostsMaker) -> None:
    """Of each host the first event is `Handshake`; the last of the learner's host are `HostFinished`, `AgentExited`."""
    with deployed(make, total_env_steps=256) as run:
        run.deploy()
        ends = run.until(AgentExited, len(run.hosts))
        assert [end.code for end in ends] == [0] * len(run.hosts), str(run)
        for host in run.hosts:
            kinds = [type(event.event) for event in run.events if event.host == host]
            received = [kind for kind in kinds if kind is not Warned]
            assert received[0] is Handshake, f"{host}: {received[:3]}"
            assert received[-1] is AgentExited, f"{host}: {received[-3:]}"
            assert HostFinished in received, f"{host}: no Finished"
        assert len(run.of(Started)) >= run.process_count
        assert [ended.env_steps >= 256 for ended in run.of(LearnerEnded)] == [True]
        (ledger,) = (finished.ledger for finished in run.of(HostFinished) if finished.ledger is not None)
        assert ledger.balanced, ledger
        teardown = run.undeploy()
        assert teardown == Teardown(ended=run.process_count), teardown
        run.await_gone()


def a_stop_command_ends_the_run(make: HostsMaker) -> None:
    """`command(None, Stop())` reaches every agent: the learner ends at a version boundary, each agent with code 0."""
    with deployed(make, step_s=0.005) as run:
        run.deploy()
        run.until(Ready, run.process_count)
        run.orchestrator.command(None, Stop())
        ends = run.until(AgentExited, len(run.hosts))
        assert [end.code for end in ends] == [0] * len(run.hosts), str(run)
        assert run.undeploy().left == ()
        run.await_gone()


def undeploy_ends_a_running_run(make: HostsMaker) -> None:
    """SIGTERM first: every process ends on its own, and is counted."""
    with deployed(make, step_s=0.005) as run:
        run.deploy()
        run.until(Ready, run.process_count)
        teardown = run.undeploy()
        assert teardown == Teardown(ended=run.process_count), teardown
        run.await_gone()


def undeploy_names_what_it_had_to_kill(make: HostsMaker) -> None:
    """A worker that hangs and ignores SIGTERM is killed after the grace, and named `host/worker-index (pid n)`."""
    with deployed(make, fault="hang") as run:
        run.deploy()
        run.until(FirstStep, run.plan.total_workers)
        run.await_child_processes()
        teardown = run.undeploy(0.3)
        assert any("worker-0 (pid" in killed for killed in teardown.killed), teardown
        assert teardown.left == (), teardown
        run.await_gone()


def undeploy_verifies_after_an_agent_was_killed(make: HostsMaker) -> None:
    """When the agent is gone, the orchestrator itself ends what is left, also a process that an env has started."""
    with deployed(make, fault="orphan", step_s=0.001) as run:
        run.deploy()
        run.until(FirstStep, run.plan.total_workers)
        run.await_child_processes()
        run.machines.kill_agents(run.plan.run_id)
        for end in run.until(AgentExited, len(run.hosts)):
            assert end.introduced
            assert end.code != 0
        teardown = run.undeploy(1.0)
        assert teardown.left == (), teardown
        run.await_gone()


def a_killed_worker_is_started_again(make: HostsMaker) -> None:
    """The agent restarts a worker; the orchestrator forwards its events, with the process that they are about."""
    with deployed(make, fault="die") as run:
        run.deploy()
        died = run.until(Exited)[0]
        assert (died.cause, died.expected) == ("signal SIGKILL", False)
        who = next(event.process for event in run.events if isinstance(event.event, Exited))
        assert who[0] == "worker"

        def spawns() -> list[int]:
            run.take()
            events = [event for event in run.events if event.process == who]
            return [event.event.spawn for event in events if isinstance(event.event, Started)]

        until(lambda: 1 in spawns(), f"another start of {who}", START_S)
        assert run.undeploy(1.0).left == ()
        run.await_gone()


def a_lost_host_is_deployed_again(make: HostsMaker) -> None:
    """`deploy` with the boot of one host starts another agent there while the run continues, and its workers step."""
    with deployed(make, step_s=0.005) as run:
        run.deploy()
        run.until(FirstStep, run.plan.total_workers)
        for host in run.others:
            if host == run.plan.config.learner.host:
                continue  # the run ends with it
            run.end_host(host)
            run.until_of(host, Handshake, 2)
            run.until_of(host, FirstStep, 2 * run.plan.workers[host])
        assert run.undeploy().left == ()
        run.await_gone()


def a_refusal_is_a_sentence(make: HostsMaker) -> None:
    """`refusal` of a host that the plan does not have is None, or states why; it starts nothing."""
    with deployed(make) as run:
        begun = time.monotonic()
        why = run.orchestrator.refusal("a-new-host", HostSection(workers=1))
        assert_within(time.monotonic() - begun, COMMAND_S, "refusal")
        assert why is None or (isinstance(why, str) and why.strip()), repr(why)
        run.await_gone()


def cores_answer_for_every_host(make: HostsMaker) -> None:
    """`cores` knows every host without a run (`workers: auto`), and leaves nothing there."""
    with deployed(make) as run:
        cls, config = run.without_run()
        found = cls.cores(config, run.plan.config, run.others)
        assert found.keys() == set(run.others), f"cores of {sorted(found)}, not of {sorted(run.others)}"
        assert all(type(count) is int and count >= 1 for count in found.values()), found
        run.await_gone()


def doctor_examines_every_host(make: HostsMaker) -> None:
    """`shells` leads to every host: an examiner starts there and answers."""
    hosts = make()
    file = hosts.folder / f"doctor-{secrets.token_hex(4)}.yaml"
    file.write_text(json.dumps(_nested(_settings(hosts, ENDLESS))), encoding="utf-8")
    command = [sys.executable, "-m", "zmqrl", "doctor", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.stdout, done.stderr
    for host, found in json.loads(done.stdout)["hosts"].items():
        assert found["failure"] is None and found["machine"] is not None, f"{host}: {found['failure']}"


def down_ends_a_run_and_reports_it(make: HostsMaker) -> None:
    """`reap` without the launcher ends every process of a run on each host, also one of an env, and names them."""
    with deployed(make, fault="orphan", step_s=0.005) as run:
        run.deploy()
        run.until(FirstStep, run.plan.total_workers)
        run.await_child_processes()
        found = run.reap()
        assert found.keys() == set(run.others), f"{sorted(found)}, not {sorted(run.others)}"
        for host, reaped in found.items():
            assert isinstance(reaped, Reaped) and not reaped.left, f"{host}: {reaped}"
            assert reaped.ended or reaped.killed, f"{host}: no process of a running run was found: {reaped}"
        assert run.undeploy(REAP_GRACE_S).left == ()
        run.await_gone()


def the_bits_are_those_of_one_machine(make: HostsMaker) -> None:
    """`zmqrl launch` over the hosts gives the sha256 of mode single, with exit code 0 and a balanced ledger."""
    hosts = make()
    over_hosts = _summary(hosts, _settings(hosts, 1024), "hosts")
    alone = _summary(hosts, {**SETTINGS, "run.total_env_steps": 1024, "run.mode": "single"}, "alone")
    assert over_hosts["exit_code"] == alone["exit_code"] == 0, over_hosts
    assert over_hosts["ledger"]["balanced"], over_hosts["ledger"]
    assert over_hosts["weights_sha256"] == alone["weights_sha256"]


def nothing_outlives_a_killed_launcher(make: HostsMaker) -> None:
    """SIGKILL of `zmqrl launch`: within 5 s no process is left on any host, without any help."""
    hosts = make()
    with _launched(hosts, _settings(hosts, ENDLESS, {"step_s": 0.005}), "killed") as (process, run_dir):
        until(lambda: _env_steps(run_dir) or process.poll() is not None, "env steps", START_S)
        assert process.poll() is None, _output(run_dir)
        run_id = str(json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["run_id"])
        assert hosts.machines.processes((run_id,)), "Hosts.machines finds no process of a running run"
        process.kill()
        process.wait(START_S)
        _await_gone(hosts.machines, run_id)
        remove_left_folder(run_id)


def _command_lines() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield int(path.parent.name), path.read_bytes().decode(errors="replace").rstrip("\0").split("\0")


def _await_gone(machines: Machines, *marks: str) -> None:
    begun = time.monotonic()
    while left := machines.processes(marks):
        assert_within(time.monotonic() - begun, GONE_S, f"the end of {left}")
        time.sleep(0.05)


def _settings(hosts: Hosts, total_env_steps: int, env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Nested, as hosts.yaml has them."""
    found: dict[str, Any] = {**SETTINGS, "run.total_env_steps": total_env_steps, "env.kwargs": dict(env or {})}
    # A fault of an env comes in every worker, so none may have all vector envs before the others are there.
    workers = [host.get("workers") for host in hosts.settings["hosts"].values()]
    known = {"min_workers": sum(workers)} if all(isinstance(count, int) for count in workers) else {}
    return {**known, **hosts.settings, **found}


@contextlib.contextmanager
def _launched(hosts: Hosts, settings: Mapping[str, Any], name: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`zmqrl launch` with these settings, and its run directory; killed at the end of `with`."""
    run_dir = hosts.folder / f"{name}-{secrets.token_hex(4)}"
    file = run_dir.with_suffix(".yaml")
    file.write_text(json.dumps(_nested(settings), indent=2), encoding="utf-8")
    command = [sys.executable, "-m", "zmqrl", "launch", str(file), "--plain", "--run-dir", str(run_dir)]
    with run_dir.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process, run_dir
    finally:
        process.kill()
        process.wait(START_S)


def _output(run_dir: Path) -> str:
    return run_dir.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-4000:]


def _summary(hosts: Hosts, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The summary of a whole run."""
    with _launched(hosts, settings, name) as (process, run_dir):
        code = process.wait(RUN_S)
        assert code == 0, f"exit code {code}:\n{_output(run_dir)}"
        found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        return found


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
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


def _env_steps(run_dir: Path) -> int:
    try:
        return int(json.loads((run_dir / "status.json").read_text(encoding="utf-8")).get("env_steps", 0))
    except (OSError, ValueError):
        return 0


ORCHESTRATOR = (
    config_is_a_frozen_dataclass,
    construction_starts_nothing,
    no_call_waits_for_a_host,
    an_early_end_leaves_nothing,
    events_come_in_order,
    a_stop_command_ends_the_run,
    undeploy_ends_a_running_run,
    undeploy_names_what_it_had_to_kill,
    undeploy_verifies_after_an_agent_was_killed,
    a_killed_worker_is_started_again,
    a_lost_host_is_deployed_again,
    a_refusal_is_a_sentence,
    cores_answer_for_every_host,
    doctor_examines_every_host,
    down_ends_a_run_and_reports_it,
    the_bits_are_those_of_one_machine,
    nothing_outlives_a_killed_launcher,
)
