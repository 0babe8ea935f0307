from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import stand_in_plan
from tests.messages.samples import host_event
from zmqrl.config.codec import replace
from zmqrl.launch.run.events import take
from zmqrl.launch.run.problem_reports import tail_since
from zmqrl.launch.run.state import RunState
from zmqrl.views.problem import LOG_LINES_SHOWN, RAISED_FROM, Problem, shown_problems, shown_tail

DUMP = ["Current thread 0x1 (most recent call first):", *(f'  File "deep{n}.py"' for n in range(20))]


def test_the_last_lines_are_shown() -> None:
    lines = [f"line {n}" for n in range(30)]
    assert shown_tail(lines) == lines[-LOG_LINES_SHOWN:]
    assert shown_tail([]) == []


def test_what_the_user_s_code_raised_is_shown_before_what_was_made_of_it() -> None:
    theirs = [f'  File "theirs{n}.py"' for n in range(20)]
    ours = [f'  File "ours{n}.py"' for n in range(20)]
    shown = shown_tail([*theirs, "RuntimeError: off", "", RAISED_FROM, "", *ours, "    ^^^^", "EnvFault: off"])
    assert len(shown) == LOG_LINES_SHOWN
    assert shown[-5:] == ["RuntimeError: off", "...", *ours[-2:], "EnvFault: off"]


def test_of_a_dump_the_innermost_calls_are_shown() -> None:
    other = ["Thread 0x2 (most recent call first):", *(f'  File "other{n}.py"' for n in range(20))]
    shown = shown_tail(["Fatal Python error: Segmentation fault", "", *other, "", *DUMP, "", "Extension modules: x"])
    assert shown == ["Fatal Python error: Segmentation fault", *DUMP[: LOG_LINES_SHOWN - 1]]


def test_a_dump_that_was_followed_by_other_words_is_an_old_one() -> None:
    assert shown_tail([*DUMP, "went on", "and ended"])[-2:] == ["went on", "and ended"]


def test_a_detail_is_not_repeated() -> None:
    detail = {"env": "a_b", "vector_env": 3, "seed": 5}
    text = str(Problem("h/worker-0", "env a_b (vector env 3)", "it is started again", detail=detail))
    assert text.splitlines() == ["h/worker-0: env a_b (vector env 3) (seed 5)", "  it is started again"]


@pytest.mark.parametrize(("role", "code", "said"), [
    ("learner", 1, "restart limit reached (1 within 600 s); the run ends"),
    ("broker", 1, "restart limit reached (1 within 600 s); the run ends"),
    ("evaluator", 1, "the run continues without evaluations"),
    ("learner", 2, "exit code 2 means invalid configuration; the run ends"),
])  # fmt: skip
def test_the_outcome_of_the_run_is_reported(tmp_path: Path, role: str, code: int, said: str) -> None:
    state = RunState(stand_in_plan(tmp_path / "run"))

    def tell(name: str, **data: Any) -> None:
        take(state, host_event("local", name, role=role, index=0, **data))

    tell("exit", code=code, expected=False, cause=f"exit code {code}", detail={}, log="", log_tail=[])
    tell("restart_limit_reached", cause=f"exit code {code}")
    assert said in str(state.problems[-1])


def test_the_same_exception_twice_at_the_start_is_one_traceback(tmp_path: Path) -> None:
    state = RunState(stand_in_plan(tmp_path / "run"))

    def tell(name: str, **data: Any) -> None:
        take(state, host_event("local", name, role="worker", index=0, **data))

    tail = ["Traceback (most recent call last):", '  File "my_envs.py", line 9, in step', "KeyError: 'robot offline'"]
    for seed in (41, 97):
        cause = f"EnvFault: step raised KeyError (seed {seed})"
        tell("exit", code=1, expected=False, cause=cause, detail={}, log="", log_tail=tail)
        if seed == 41:
            tell("restart", in_s=0.0)
    tell("restart_limit_reached", cause=f"{cause} (twice before its first step)")
    take(state, host_event("local", "failed", cause="all rollout workers failed"))
    played = {"code": 1, "expected": False, "detail": {}, "log": "", "log_tail": tail}
    cause = "EnvFault: step raised KeyError (seed -1)"
    take(state, host_event("local", "exit", role="evaluator", index=0, cause=cause, **played))
    take(state, host_event("local", "restart", role="evaluator", index=0, in_s=0.0))
    assert [problem.severity for problem in state.problems] == ["warning", "error", "warning"]
    first, second, of_evaluator = map(str, state.problems)
    assert cause in of_evaluator and "my_envs.py" not in of_evaluator
    assert "my_envs.py" in first and "my_envs.py" not in second
    assert "not restarted: it raised the same exception twice before its first step" in second
    assert state.failure is not None and state.failure.count("my_envs.py") == 1


@pytest.mark.parametrize(("other", "said"), [
    ("ready", "its vector envs move to the other workers"),
    ("exit", "no rollout worker remains; the run ends"),
])  # fmt: skip
def test_a_worker_that_exited_cleanly_is_not_expected(tmp_path: Path, other: str, said: str) -> None:
    plan = stand_in_plan(tmp_path / "run")
    state = RunState(replace(plan, workers={"local": 2}))

    def tell(name: str, index: int, **data: Any) -> None:
        take(state, host_event("local", name, role="worker", index=index, **data))

    for index in (0, 1):
        tell("ready", index)
    state.hosts["local"].assigned = (0,) if other == "exit" else (0, 1)
    exited = {"code": 0, "expected": True, "cause": "exit code 0"} if other == "exit" else {}
    tell(other, 1, **exited)
    tell("restart_limit_reached", 0, cause="exit code 1")
    assert said in str(state.problems[-1])


def test_a_status_has_the_severity_of_a_problem(tmp_path: Path) -> None:
    """That of zmqrl 0.2 has its text alone."""
    problem = Problem("gpu1", "was away for 9 s", "back with 2 workers", severity="note")
    shown = "note: gpu1: was away for 9 s\n  back with 2 workers"
    assert problem.shown == shown
    assert shown_problems({"problems": [str(problem)], "severities": [problem.severity]}) == {shown: "note"}
    assert shown_problems({"problems": ["gpu2: lost"]}) == {"warning: gpu2: lost": "warning"}


def test_a_log_tail_of_an_earlier_run_is_not_used(tmp_path: Path) -> None:
    log = tmp_path / "local-agent-0.log"
    assert tail_since(log, 0.0) == ()
    log.write_text("first\nlast\n")
    written_at = log.stat().st_mtime
    assert tail_since(log, written_at - 1) == ("first", "last")
    assert tail_since(log, written_at + 1) == ()


def test_numbers_of_the_detail_have_four_digits() -> None:
    detail = {"seed": 12345678, "reward": 0.12345678901234567, "t": 98765.4321, "low": -2.5e-7, "obs": float("nan")}
    problem = Problem("local/worker-0", "it raised", "the run goes on", detail)
    assert "(seed 12345678, reward 0.1235, t 98,765, low -2.5e-07, obs nan)" in str(problem)
