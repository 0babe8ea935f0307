"""When a run ends and with which outcome: events and requests in, actions and exit codes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_host_links import plan_of
from tests.messages.samples import host_event
from zmqrl.config.codec import replace
from zmqrl.config.sections import LearnerSection, LimitsSection
from zmqrl.launch.run.actions import Action, Leave, Send, Show
from zmqrl.launch.run.end_policy import HOST_CAUSE_S, KILL_GRACE_S, SETTLE_S, TEARDOWN_SLACK_S, EndPolicy
from zmqrl.launch.run.events import take
from zmqrl.launch.run.state import RunState
from zmqrl.launch.stop_signals import StopRequest
from zmqrl.messages.command import KillAll, Stop
from zmqrl.orchestrators.base import Teardown

STOP, STOP_FAILED = (Send("local", Stop(failed)) for failed in (False, True))
KILL = Send(None, KillAll())
CLEAN, LEFT = Teardown(1), Teardown(1, left=("b/worker-1 (pid 7)",))
EXIT = {"code": 0, "introduced": True}


class Run:
    """A run with one worker on this machine and two on b, from second 1000 on."""

    def __init__(self, folder: Path, learner: str = "local", least: int = 3, **run: Any) -> None:
        plan = plan_of(folder, learner=LearnerSection(host=learner), min_workers=least, limits=LimitsSection())
        config = replace(plan.config, run=replace(plan.config.run, **run))
        self.plan = replace(plan, config=config, began=1000.0)
        self.state, self.policy = RunState(self.plan), EndPolicy(self.plan, 1000.0)
        self.limits, self.request, self.same_presses = config.limits, StopRequest.NONE, 0

    def tell(self, host: str, name: str, /, **data: Any) -> None:
        take(self.state, host_event(host, name, **data))

    def start(self, workers: int = 3) -> None:
        """Agents, learner and workers report that they work."""
        for host in ("local", "b"):
            self.tell(host, "agent", public=host)
        self.tell("b", "joined", address="a", milliseconds=1.0, store=True)
        self.tell(self.plan.config.learner.host, "ready", role="learner", index=0)
        for index in range(workers):
            self.tell("b" if index else "local", "ready", role="worker", index=index)

    def finish(self, reason: str = "total_env_steps") -> None:
        """The learner reports its end, and its host the end of all processes."""
        host = self.plan.config.learner.host
        self.tell(host, "ended", role="learner", index=0, reason=reason)
        self.tell(host, "finished")
        self.tell(host, "agent_exit", **EXIT)

    def step(self, after_s: float) -> list[Action]:
        """What follows `after_s` after the start of the launcher."""
        return self.policy.step(self.state, self.request, self.same_presses, 1000.0 + after_s)

    def outcome(self, teardown: Teardown = CLEAN) -> tuple[str, int]:
        found = self.policy.outcome(self.state, self.request, teardown, is_taken_over=False)
        return found.status, found.exit_code

    @property
    def clean_end_s(self) -> float:
        return 3 * self.limits.grace_s + self.plan.config.evaluator.final_limit_s + TEARDOWN_SLACK_S


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.parametrize("request_", [StopRequest.STOP, StopRequest.INTERRUPT])
def test_a_stop_is_sent_once_and_waited_for_within_its_bound(run: Run, request_: StopRequest) -> None:
    run.start()
    assert run.step(1.0) == []
    run.request = request_
    assert [action for action in run.step(2.0) if not isinstance(action, Show)] == [STOP]
    assert run.step(3.0) == [] and run.step(2.0 + run.clean_end_s - 0.1) == []
    assert run.step(2.0 + run.clean_end_s) == [Leave()]


@pytest.mark.parametrize(("request_", "outcome"), [
    (StopRequest.INTERRUPT, ("interrupted", 130)),
    (StopRequest.STOP, ("stopped", 0)),
    (StopRequest.KILL, ("interrupted", 130)),
])  # fmt: skip
def test_a_stop_before_the_learners_host_has_started_waits_for_nothing(
    tmp_path: Path, request_: StopRequest, outcome: tuple[str, int]
) -> None:
    """Such as a job that is queued: the run took 68 s to end, with the status failed."""
    run = Run(tmp_path, learner="b")
    run.tell("local", "agent", public="local")
    run.request = request_
    actions = run.step(6.0)
    if request_ is StopRequest.KILL:
        assert KILL in actions and run.step(6.0 + KILL_GRACE_S) == [Leave()]
    else:
        assert actions[-2:] == [Send("b", Stop()), Leave()]
    run.tell("b", "host_failed", cause="the job was cancelled", fix="")
    run.tell("b", "agent_exit", code=2, introduced=False)
    assert run.outcome() == outcome
    assert run.outcome(LEFT) == ("failed", 3)


def test_a_learners_host_that_does_not_start_ends_the_run_after_the_start_limit(tmp_path: Path) -> None:
    run = Run(tmp_path, learner="b")
    run.tell("local", "agent", public="local")
    assert run.step(run.limits.start_s - 0.1) == []
    assert run.step(run.limits.start_s) == [Send("b", Stop())]
    assert run.step(run.limits.start_s + HOST_CAUSE_S) == [Leave()]
    run.tell("b", "host_failed", cause="the job is pending", fix="")
    run.tell("b", "agent_exit", code=-1, introduced=False)
    found = run.policy.outcome(run.state, StopRequest.NONE, CLEAN, is_taken_over=False)
    assert (found.status, found.exit_code) == ("failed", 4)
    first, cause = str(found.error).splitlines()
    assert "the learner's host b did not start within limits.start_s" in first and cause == "the job is pending"


@pytest.mark.parametrize("is_seen", [False, True])
@pytest.mark.parametrize("code", [-1, 1, 2, 137, 255, None])
def test_a_learners_host_that_is_lost_before_the_handshake_is_not_a_failure_of_the_run(
    tmp_path: Path, code: int | None, is_seen: bool
) -> None:
    """The command of each kind ends with another exit code. `is_seen`: the machine has a turn before the end."""
    run = Run(tmp_path, learner="b")
    run.tell("b", "host_failed", cause="the connection has ended", fix="")
    if is_seen:
        assert run.step(1.0) == [Leave()]
    run.tell("b", "agent_exit", code=code, introduced=False)
    assert run.outcome() == ("failed", 4)


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("learner", ["local", "b"])
def test_a_learners_host_that_gave_the_launcher_up_is_not_a_failure_of_the_run(
    tmp_path: Path, learner: str, is_finished: bool
) -> None:
    """Such as that of a launcher that was suspended for longer than the lease."""
    run = Run(tmp_path, learner=learner)
    run.start()
    run.tell(learner, "lease_lost", source="launcher")
    assert run.step(1.0) == [], "the learner writes its last checkpoint"
    if is_finished:
        run.tell(learner, "finished")
    run.tell(learner, "agent_exit", **EXIT)
    assert run.outcome() == ("failed", 4)


def test_a_failure_before_the_loss_of_the_learners_host_is_the_cause(run: Run) -> None:
    run.start()
    run.tell("local", "failed", cause="the wheel came off")
    run.tell("local", "lease_lost", source="launcher")
    run.tell("local", "agent_exit", code=-1, introduced=True)
    assert run.outcome() == ("failed", 1)


def test_the_cause_of_an_agent_that_starts_too_late_is_the_error(run: Run) -> None:
    run.tell("local", "host_failed", cause="no handshake", fix="raise limits.start_s")
    assert run.step(run.limits.start_s) == [Leave()]
    found = run.policy.outcome(run.state, StopRequest.NONE, CLEAN, is_taken_over=False)
    assert (found.exit_code, found.error) == (4, "the host agent of local failed: no handshake\nraise limits.start_s")


def test_a_learner_that_is_not_ready_is_stopped_after_the_start_limit(run: Run) -> None:
    run.tell("local", "agent", public="local")
    assert run.step(run.limits.start_s) == [STOP]
    run.tell("local", "finished")
    run.tell("local", "agent_exit", **EXIT)
    assert run.outcome() == ("failed", 4) and run.outcome(LEFT) == ("failed", 4)


@pytest.mark.parametrize(("is_ready", "actions"), [(False, [STOP]), (True, [])])
def test_hosts_that_are_away_extend_the_start_for_workers_but_not_for_the_learner(
    run: Run, is_ready: bool, actions: list[Action]
) -> None:
    run.tell("local", "agent", public="local")
    run.state.hosts["b"].away = "outside its window"
    run.state.hosts.assign("b", 0)
    if is_ready:
        run.tell("local", "ready", role="learner", index=0)
    assert run.step(run.limits.start_s - 1.0) == []
    assert run.step(run.limits.start_s) == actions


def test_a_run_that_trains_with_fewer_workers_has_started(run: Run) -> None:
    run.start(workers=1)
    run.tell("local", "first_step", role="worker", index=0)
    assert run.step(1.0) == [] and run.step(run.limits.start_s + 1.0) == []


def test_a_second_interrupt_kills_and_waits_for_the_kill_alone(run: Run) -> None:
    run.start()
    run.request = StopRequest.INTERRUPT
    assert run.step(1.0)[-1] == STOP
    run.same_presses = 1
    (shown,) = run.step(1.5)
    assert isinstance(shown, Show) and "counts as the same" in shown.text
    assert run.step(1.6) == [], "it is acknowledged once"
    run.request = StopRequest.KILL
    assert run.step(3.0)[-1] == KILL
    run.tell("local", "writing", role="learner", index=0)
    assert run.step(3.0 + KILL_GRACE_S) == [Leave()], "a kill does not wait for a checkpoint"
    assert (run.outcome(), run.policy.grace_s(run.request)) == (("interrupted", 130), KILL_GRACE_S)


def test_an_interrupt_does_not_extend_a_stop_for_another_reason(run: Run) -> None:
    run.tell("local", "agent", public="local")
    at = run.limits.start_s
    assert run.step(at) == [STOP]
    run.request = StopRequest.INTERRUPT
    assert run.step(at + 5.0) == []
    assert run.step(at + run.clean_end_s) == [Leave()]


def test_each_report_of_a_learner_that_writes_extends_the_end(run: Run) -> None:
    run.start()
    run.tell("local", "writing", role="learner", index=0)
    assert run.step(1.0) == [] and run.policy.end_by is None, "no stop was requested"
    run.request = StopRequest.STOP
    run.step(2.0)
    run.tell("local", "writing", role="learner", index=0)
    assert run.step(2.0 + run.clean_end_s) == []
    assert run.step(2.0 + 2 * run.clean_end_s) == [Leave()]


def test_the_wall_limit_waits_for_the_grace_of_a_learner_that_writes(tmp_path: Path) -> None:
    run = Run(tmp_path, max_wall_s=50.0)
    run.start()
    grace_s = run.limits.grace_s
    assert run.step(50.0 + 0.5 * grace_s) == []
    run.tell("local", "writing", role="learner", index=0)
    assert run.step(50.0 + grace_s) == [] and run.step(50.0 + 1.9 * grace_s) == []
    assert run.step(50.0 + 2.1 * grace_s) == [STOP]
    assert ["max_wall_s" in str(problem) for problem in run.state.problems] == [True]


def test_a_pause_that_is_too_long_ends_the_run(run: Run) -> None:
    run.start()
    assert run.step(1.0) == []
    run.tell("b", "agent_exit", code=None, introduced=True)
    assert run.step(2.0) == [] and not run.state.paused
    assert run.step(2.0 + SETTLE_S) == [] and "min_workers is 3" in run.state.pause_cause
    assert run.step(2.0 + run.limits.too_few_s) == [STOP]
    run.finish("stop")
    assert run.outcome() == ("failed", 4)


def test_without_a_usable_host_the_learner_writes_a_checkpoint_if_it_is_there(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start()
    for host, index in (("local", 0), ("b", 1), ("b", 2)):
        run.tell(host, "restart_limit_reached", role="worker", index=index, cause="exit code 1")
    assert run.step(1.0) == [STOP_FAILED]
    assert run.step(1.0 + run.clean_end_s - 0.1) == []
    run.finish("stop")
    assert run.outcome() == ("failed", 1)
    lost = Run(tmp_path / "lost", learner="b")
    lost.tell("b", "host_failed", cause="no answer", fix="wait")
    assert lost.step(1.0) == [Leave()]
    assert lost.outcome() == ("failed", 4), "none of the other hosts could be used"
    crashed = Run(tmp_path / "crashed", learner="b")
    crashed.start()
    crashed.tell("b", "host_failed", cause="no answer", fix="wait")
    assert crashed.step(1.0) == [Leave()]
    assert crashed.outcome() == ("failed", 4), "the learner's host was lost"


def test_a_run_for_several_hosts_does_not_train_on_this_machine_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, least=1)
    run.tell("local", "agent", public="local")
    run.tell("b", "host_failed", cause="no answer", fix="wait")
    assert run.step(1.0) == [], "a learner that starts takes no stop"
    run.tell("local", "ready", role="learner", index=0)
    run.tell("local", "ready", role="worker", index=0)
    assert run.step(2.0) == [STOP]
    run.finish("stop")
    found = run.policy.outcome(run.state, StopRequest.NONE, CLEAN, is_taken_over=False)
    assert found.exit_code == 4 and "b: no answer" in str(found.error)


@pytest.mark.parametrize(("ends", "teardown", "outcome"), [
    ("done", CLEAN, ("done", 0)),
    ("stop", CLEAN, ("stopped", 0)),
    ("done", LEFT, ("failed", 3)),
    ("agent died", CLEAN, ("failed", 4)),
    ("agent died", LEFT, ("failed", 4)),
    ("finished without a learner's end", CLEAN, ("failed", 1)),
    ("refused", CLEAN, ("failed", 2)),
    ("refused and failed", LEFT, ("failed", 2)),
])  # fmt: skip
def test_the_outcome_of_a_run_that_was_not_stopped(
    run: Run, ends: str, teardown: Teardown, outcome: tuple[str, int]
) -> None:
    if ends == "refused":
        run.tell("local", "agent", public="local")
        run.tell("local", "agent_exit", code=2, introduced=True)
    else:
        run.start()
    if ends in ("done", "stop"):
        run.finish("stop" if ends == "stop" else "total_env_steps")
    elif ends == "agent died":
        run.tell("local", "agent_exit", code=None, introduced=True)
    elif ends.startswith("finished"):
        run.tell("local", "finished")
        run.tell("local", "agent_exit", **EXIT)
    elif ends == "refused and failed":
        run.tell("local", "exit", role="worker", index=0, code=2, expected=False, cause="no env of this name")
        run.tell("local", "failed", cause="no env of this name")
    assert run.outcome(teardown) == outcome


def test_a_learner_that_finds_its_directory_taken_over_has_not_refused_the_configuration(run: Run) -> None:
    run.start()
    run.tell("local", "exit", role="learner", index=0, code=2, expected=False, cause="another launcher")
    run.state.fail("taken over")
    found = run.policy.outcome(run.state, StopRequest.NONE, CLEAN, is_taken_over=True)
    assert (found.exit_code, found.error) == (1, "taken over")


def test_the_error_of_a_refusal_names_a_learners_host_that_is_another_one(tmp_path: Path) -> None:
    run = Run(tmp_path, learner="b")
    run.tell("b", "agent", public="b")
    run.tell("b", "fault", error="busy: run r of user anna", detail={}, lines=[])
    run.tell("b", "agent_exit", code=2, introduced=True)
    found = run.policy.outcome(run.state, StopRequest.NONE, CLEAN, is_taken_over=False)
    assert (found.exit_code, found.error) == (2, "b: busy: run r of user anna")
