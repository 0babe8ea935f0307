"""Which kind a run gets, what its constructor may refuse, and hosts that the command of a kind does not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.agent.plans import stand_in_plan
from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import replace
from zmqrl.config.kinds import NO_KEYS, NoKeys
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import CodeSection, Config, HostSection, LearnerSection, OrchestratorSection, StoreSection
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.launch.run.boots import boots
from zmqrl.messages.orchestrator import HostUnusable
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.orchestrators.local import LocalOrchestrator
from zmqrl.orchestrators.make import kind_of, make_orchestrator
from zmqrl.orchestrators.piped import PipedShell
from zmqrl.orchestrators.shell_orchestrator import ShellOrchestrator
from zmqrl.orchestrators.ssh import SshOrchestrator


class Absent(ShellOrchestrator):
    """Its command is not installed."""

    @classmethod
    def shell(cls, config: NoKeys, run: Config, host: str) -> PipedShell:
        return PipedShell(host, ["/no/such/engine"])


class Down(Absent):
    """Its engine does not answer."""

    def __init__(self, config: NoKeys, plan: RunPlan) -> None:
        super().__init__(config, plan)
        raise HostFailed("engine", "Unable to contact the controller (connect failure)", "start it")


class Unknown(Absent):
    """Its engine does not know the host."""

    @classmethod
    def shell(cls, config: NoKeys, run: Config, host: str) -> PipedShell:
        raise HostFailed(host, "Invalid node name specified", "see `sinfo`")


def plan_of(tmp_path: Path, kind: type[Orchestrator] = Absent, **sections: Any) -> RunPlan:
    plan = stand_in_plan(tmp_path / "run")
    hosts = {"local": HostSection(workers=1), "b": HostSection(workers=2)}
    orchestrator = OrchestratorSection(kind=f"{__name__}:{kind.__name__}")
    config = replace(plan.config, hosts=hosts, orchestrator=orchestrator, **sections)
    return replace(plan, config=config, workers={"local": 1, "b": 2})


def test_auto_is_ssh_where_a_host_is_remote() -> None:
    hosts = {"local": HostSection(), "b": HostSection(), "own": HostSection(manual=True)}
    run = Config(hosts=hosts)
    found = {names: kind_of(run, names)[0] for names in (("local",), ("local", "own"), ("local", "b"), ("c",))}
    assert list(found.values()) == [LocalOrchestrator, LocalOrchestrator, SshOrchestrator, SshOrchestrator]
    assert kind_of(replace(run, orchestrator=OrchestratorSection(kind="local")), ["b"])[0] is LocalOrchestrator


def test_an_engine_that_does_not_answer_is_bad_configuration_with_its_own_message(tmp_path: Path) -> None:
    with raises(ConfigError, key=("orchestrator", "kind"), value="'tests.orchestrators.test_make:Down'"):
        make_orchestrator(plan_of(tmp_path, Down))


def test_the_checkpoints_of_a_remote_learner_need_a_way_back(tmp_path: Path) -> None:
    learner = LearnerSection(host="b")
    with raises(ConfigError, key=("learner", "host"), value="'b'"):
        make_orchestrator(plan_of(tmp_path, learner=learner))
    shared = StoreSection(options={"path": str(tmp_path)})
    assert isinstance(make_orchestrator(plan_of(tmp_path, learner=learner, store=shared)), Absent)
    plan = plan_of(tmp_path, learner=learner)
    by_ssh = replace(plan.config, orchestrator=OrchestratorSection())
    assert isinstance(make_orchestrator(replace(plan, config=by_ssh)), SshOrchestrator)


def test_a_command_sends_no_modules(tmp_path: Path) -> None:
    with raises(ConfigError, key=("code", "sync"), others=(("orchestrator", "kind"),)):
        make_orchestrator(plan_of(tmp_path, code=CodeSection(sync=(str(tmp_path),))))


def test_a_command_that_cannot_be_started_costs_only_its_host(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    orchestrator = make_orchestrator(plan)
    orchestrator.deploy({"b": boots(plan)["b"]})
    (event,) = orchestrator.monitor(WAIT_S)
    assert event.host == "b" and isinstance(event.event, HostUnusable)
    assert "/no/such/engine cannot be started: No such file" in event.event.cause
    assert orchestrator.undeploy(0.1).left == ()


def test_a_kind_without_shells_reports_each_host(tmp_path: Path) -> None:
    run = plan_of(tmp_path).config
    assert LocalOrchestrator.access(NO_KEYS, run).cores([]) == {}
    (b, c) = Orchestrator.access(NO_KEYS, run).shells(["b", "c"])
    assert [b[0], c[0]] == ["b", "c"] and isinstance(b[1], HostFailed)
    assert Orchestrator.access(NO_KEYS, run).cores(["b"]) == {}
    assert [host for host, _ in Orchestrator.access(NO_KEYS, run).reap(["b", "c"], "r-1", 0.1)] == ["b", "c"]
    ((host, found),) = Unknown.access(NO_KEYS, run).shells(["b"])
    assert host == "b" and isinstance(found, HostFailed) and found.cause == "Invalid node name specified"
    ((host, found),) = Absent.access(NO_KEYS, run).reap(["b"], "r-1", 0.1)
    assert host == "b" and isinstance(found, HostFailed) and "cannot be started" in found.cause
