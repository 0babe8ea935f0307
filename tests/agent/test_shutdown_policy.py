from __future__ import annotations

from zmqrl.agent.shutdown_policy import CloseEvaluator, KillRole, ScoreFinal, ShutdownMode, ShutdownPolicy, Terminate

ALL = {"learner", "worker", "broker", "evaluator"}


def test_one_role_after_the_other() -> None:
    ending = ShutdownPolicy(ShutdownMode.CLEAN, grace_s=5.0, final_limit_s=3.0, now=0.0)
    assert ending.step(ALL, 0.0) == [Terminate("learner")]
    assert ending.step(ALL, 1.0) == []
    assert ending.step(ALL - {"learner"}, 1.5) == [Terminate("worker"), ScoreFinal()]
    assert ending.step({"broker", "evaluator"}, 2.0) == [Terminate("broker")]
    assert ending.step({"evaluator"}, 2.5) == []
    assert not ending.is_over({"evaluator"}, 2.5)
    assert ending.is_over(set(), 2.6)


def test_every_wait_ends_with_a_kill() -> None:
    ending = ShutdownPolicy(ShutdownMode.CLEAN, grace_s=5.0, final_limit_s=0.0, now=0.0)
    ending.step({"learner"}, 0.0)
    assert ending.step({"learner"}, 4.9) == []
    assert ending.step({"learner"}, 5.0) == [KillRole("learner")]
    assert ending.step({"learner"}, 5.1) == [], "once"


def test_a_process_not_ended_by_sigkill_blocks_no_other() -> None:
    ending = ShutdownPolicy(ShutdownMode.CLEAN, grace_s=1.0, final_limit_s=0.0, now=0.0)
    ending.step({"learner", "worker"}, 0.0)
    ending.step({"learner", "worker"}, 1.0)
    assert ending.step({"learner", "worker"}, 6.1) == [Terminate("worker")]
    assert ending.is_over({"learner"}, 6.2)


def test_the_evaluator_has_its_limit_then_its_stdin_closes_then_it_is_killed() -> None:
    ending = ShutdownPolicy(ShutdownMode.CLEAN, grace_s=5.0, final_limit_s=3.0, now=0.0)
    assert ending.step({"evaluator"}, 0.0) == [ScoreFinal()]
    assert ending.step({"evaluator"}, 2.9) == []
    assert not ending.final_stopped
    assert ending.step({"evaluator"}, 3.0) == [CloseEvaluator()]
    assert ending.final_stopped
    assert ending.step({"evaluator"}, 4.0) == [KillRole("evaluator")]


def test_a_failed_run_scores_nothing_final() -> None:
    ending = ShutdownPolicy(ShutdownMode.FAILED, grace_s=5.0, final_limit_s=3.0, now=0.0)
    ending.step({"evaluator"}, 0.0)
    assert CloseEvaluator() in ending.step({"evaluator"}, 0.1) or not ending.is_over({"evaluator"}, 0.1)
    assert ScoreFinal() not in ending.step({"evaluator"}, 0.2)


def test_the_learner_of_a_failed_run_is_notified_twice() -> None:
    """It waits for the round under way after one SIGTERM, and abandons it after two."""
    ending = ShutdownPolicy(ShutdownMode.FAILED, grace_s=5.0, final_limit_s=3.0, now=0.0)
    told = [ending.step({"learner", "evaluator"}, now) for now in (0.0, 0.1, 0.2, 0.3)]
    assert told == [[Terminate("learner")], [Terminate("learner")], [], []]


def test_hurried_terminates_all_at_once_and_kills_all_at_the_limit() -> None:
    ending = ShutdownPolicy(ShutdownMode.HURRIED, grace_s=2.5, final_limit_s=3.0, now=0.0)
    assert ending.step(ALL, 0.0) == [Terminate("learner"), Terminate("worker"), Terminate("broker"), CloseEvaluator()]
    assert ending.step(ALL, 2.4) == []
    assert ending.step({"worker", "evaluator"}, 2.5) == [KillRole("worker"), KillRole("evaluator")]


def test_kill_skips_the_grace() -> None:
    ending = ShutdownPolicy(ShutdownMode.KILL, grace_s=2.5, final_limit_s=3.0, now=0.0)
    assert {type(action) for action in ending.step(ALL, 0.0)} == {KillRole}


def test_who_reports_that_it_is_writing_has_its_grace_again() -> None:
    ending = ShutdownPolicy(ShutdownMode.CLEAN, grace_s=2.0, final_limit_s=0.0, now=0.0)
    ending.step({"learner"}, 0.0)
    for at in (1.5, 3.0, 4.5):
        ending.extend("learner", at)
        assert ending.step({"learner"}, at + 1.4) == []
    assert ending.step({"learner"}, 6.5) == [KillRole("learner")]


def test_a_hurried_shutdown_extends_no_grace() -> None:
    ending = ShutdownPolicy(ShutdownMode.HURRIED, grace_s=2.0, final_limit_s=0.0, now=0.0)
    ending.step({"learner"}, 0.0)
    ending.extend("learner", 1.5)
    assert ending.step({"learner"}, 2.0) == [KillRole("learner")]
