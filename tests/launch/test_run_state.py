from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from generate import run_schemas
from tests.agent.plans import stand_in_plan
from tests.messages.samples import host_event
from tests.support.raising import raises
from tests.support.stored_runs import begun
from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.errors import ConfigError
from zmqrl.launch.run.bottleneck import find_bottleneck
from zmqrl.launch.run.events import take
from zmqrl.launch.run.state import PROBLEMS_KEPT, RunState
from zmqrl.launch.status import status_of
from zmqrl.launch.stop_signals import StopRequest, StopSignals
from zmqrl.launch.summary import BOTTLENECKS, final_lines, summarise
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.run_files.run_info import is_live, read_info
from zmqrl.run_files.stored_config import read_config
from zmqrl.summary import Summary
from zmqrl.types import Ledger
from zmqrl.views.header import duration
from zmqrl.views.plain import line_of
from zmqrl.views.tables import render, sparkline

SUMMARY_KEYS = [
    "status",
    "exit_code",
    "error",
    "run_id",
    "mode",
    "algorithm",
    "env",
    "seed",
    "workers",
    "env_steps",
    "updates",
    "episodes",
    "wall_s",
    "first_env_step_s",
    "env_steps_per_s",
    "updates_per_s",
    "updates_lost",
    "train_return_mean_100",
    "eval_return_mean",
    "eval_episodes",
    "solved_at_env_steps",
    "solved_at_wall_s",
    "policy_lag",
    "replay_ratio",
    "ledger",
    "weights_sha256",
    "restarts",
    "peak_pss_mb",
    "bottleneck",
    "checkpoint_interval_s",
    "recovery",
    "resumed_from",
    "last_seen",
    "eval_reports",
    "slowest",
    "schema",
    "versions",
    "attempts",
    "trained_env_steps",
    "relieved",
    "restart_causes",
    "train_reports",
]


@pytest.fixture
def state(tmp_path: Path) -> RunState:
    return RunState(stand_in_plan(tmp_path / "run"))


def test_a_run_fails_by_its_learners_host_alone(state: RunState) -> None:
    take(state, host_event("b", "failed", cause="all rollout workers failed"))
    assert state.failure is None
    take(state, host_event("local", "failed", cause="learner-0 is not restarted"))
    assert state.failure == "learner-0 is not restarted"


def tell(state: RunState, name: str, **data: Any) -> None:
    take(state, host_event("local", name, **data))


def test_summary_has_the_contract_s_keys_in_order_and_nulls(state: RunState) -> None:
    assert [field.name for field in dataclasses.fields(Summary)] == SUMMARY_KEYS
    summary = summarise(state.plan, state, "failed", 1, "why", 2.0)
    assert (summary.env_steps, summary.ledger, summary.bottleneck, summary.wall_s) == (None, None, None, 2.0)


@pytest.mark.parametrize(("learner", "worker", "word"), [
    (0.7, 0.1, "workers"), (0.1, 0.7, "learner"), (0.7, 0.7, "bus"),
])  # fmt: skip
def test_bottleneck_is_who_the_others_wait_for(state: RunState, learner: float, worker: float, word: str) -> None:
    assert find_bottleneck(state) is None
    tell(state, "worker", role="worker", index=0, env_steps=10, wait_fraction=worker)
    tell(state, "metrics", role="learner", index=0, values={"wait_fraction": learner})
    assert find_bottleneck(state) == word


def test_a_learner_without_workers_waits_for_workers(state: RunState) -> None:
    tell(state, "worker", role="worker", index=0, env_steps=10, wait_fraction=0.7)
    tell(state, "metrics", role="learner", index=0, values={"wait_fraction": 0.7})
    tell(state, "restart_limit_reached", role="worker", index=0, cause="ValueError")
    assert find_bottleneck(state) == "workers"


def test_the_first_env_step_is_the_earliest_by_the_clock_of_the_run(
    state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of the wall clock do not count, nor does the clock of the worker's host."""
    monkeypatch.setattr("time.time", lambda: 0.0)
    state.now = state.plan.began + 4.0
    for index in (0, 1):
        tell(state, "first_step", role="worker", index=index)
        state.now = state.plan.began + 7.0
    assert state.first_step_s == pytest.approx(4.0)
    tell(state, "metrics", role="learner", index=0, values={"env_steps": 64})
    assert status_of(state, 0.0, state.wall_s)["eta_s"] == 3.0
    summary = summarise(state.plan, state, "done", 0, None, state.wall_s)
    assert summary.first_env_step_s == round(state.first_step_s, 3)


def test_steps_of_the_clock_change_no_wall_s(state: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    state.now = state.plan.began + 7.0
    assert state.wall_s == pytest.approx(7.0)
    assert status_of(state, 0.0, state.wall_s)["wall_s"] == round(state.wall_s, 1)


@pytest.mark.parametrize("before", [0, 40])
def test_the_time_to_go_is_that_of_the_speed_since_the_start_or_the_resume(state: RunState, before: int) -> None:
    total = state.plan.config.run.total_env_steps
    if before:
        tell(state, "resumed", version="0-7", env_steps=before, written_at=None)
    tell(state, "first_step", role="worker", index=0)
    assert state.first_step_s is not None
    wall_s = state.first_step_s + 10.0
    assert (status_of(state, 0.0, wall_s)["progress"], status_of(state, 0.0, wall_s)["eta_s"]) == (
        round(before / total, 4),
        None,
    )
    tell(state, "metrics", role="learner", index=0, values={"env_steps": before + 20})
    assert status_of(state, 0.0, wall_s)["eta_s"] == round((total - before - 20) / 2.0, 1)


@pytest.mark.parametrize(
    ("limits", "progress", "eta_s"),
    [
        ({"max_wall_s": 30.0}, 0.5, 15.0),  # 20 of 100 env steps in 10 s would take 40 s more
        ({"max_wall_s": 1000.0}, 0.2, 40.0),
        ({"stop_at_updates": 8}, 0.5, 10.0),
        ({"stop_at_updates": 8, "max_wall_s": 20.0}, 0.75, 5.0),
        ({"stop_at_updates": 4}, 1.0, 0.0),
        ({}, 0.2, 40.0),
    ],
)
def test_the_time_to_go_and_the_bar_are_of_the_limit_that_ends_the_run_first(
    state: RunState, limits: dict[str, float], progress: float, eta_s: float
) -> None:
    run = replace(state.plan.config.run, total_env_steps=100, **limits)
    state = RunState(replace(state.plan, config=replace(state.plan.config, run=run)))
    state.first_step_s = 5.0
    tell(state, "metrics", role="learner", index=0, values={"env_steps": 20, "updates": 4})
    found = status_of(state, 0.0, 15.0)
    assert (found["progress"], found["eta_s"]) == (progress, eta_s)


def test_a_limit_of_seconds_is_known_before_the_first_env_step(state: RunState) -> None:
    run = replace(state.plan.config.run, max_wall_s=40.0)
    state = RunState(replace(state.plan, config=replace(state.plan.config, run=run)))
    assert (status_of(state, 0.0, 10.0)["progress"], status_of(state, 0.0, 10.0)["eta_s"]) == (0.25, 30.0)


def test_ready_is_lost_with_the_process(state: RunState) -> None:
    for index in (0, 1):
        tell(state, "started", role="worker", index=index, pid=1, start_time=1, spawn=0)
        tell(state, "ready", role="worker", index=index)
    tell(state, "ready", role="learner", index=0)
    ready_before = state.all_ready
    exit_of = {"role": "worker", "index": 0, "pid": 1, "code": None, "expected": False}
    tell(state, "exit", **exit_of, cause="signal SIGKILL", detail={}, log="/far/x.log", log_tail=["last words"])
    tell(state, "restart", role="worker", index=0, in_s=0.5)
    assert (ready_before, state.all_ready) == (True, False)
    (problem,) = state.problems
    assert str(problem).splitlines() == [
        "local/worker-0: signal SIGKILL",
        "    last words",
        f"  log: {state.plan.run_dir}/logs/local-worker-0.log",
        "  restarting in 0.5 s (restart 1 of at most 1 within 600 s)",
    ]


def test_problems_are_reported_once_and_the_last_ones_are_kept(state: RunState) -> None:
    for count in range(PROBLEMS_KEPT):
        tell(state, "warning", text=str(count))
    tell(state, "warning", text="again")
    assert (len(state.problems), state.noted) == (PROBLEMS_KEPT, PROBLEMS_KEPT + 1)
    assert [problem.cause for problem in state.noted_since(state.noted - 2)] == [str(PROBLEMS_KEPT - 1), "again"]
    assert (len(state.noted_since(0)), state.noted_since(state.noted)) == (PROBLEMS_KEPT, [])


def test_a_run_that_ended_before_its_first_update_counts_what_the_ledger_has(state: RunState) -> None:
    account = Ledger(produced=1_600, stored=1_500, in_flight=100, dropped={}, duplicates_refused=0)
    unknown = summarise(state.plan, state, "failed", 1, "why", 2.0)
    assert final_lines(unknown) == f"run {state.plan.run_id}: failed in 2.0 s"
    tell(state, "finished", ledger=account)
    summary = summarise(state.plan, state, "failed", 1, "why", 2.0)
    assert (summary.env_steps, summary.updates, summary.trained_env_steps) == (1_500, None, 1_500)
    assert final_lines(summary).splitlines()[0] == f"run {state.plan.run_id}: failed, 1,500 env steps in 2.0 s"
    resumed = summarise(replace(state.plan, resume=True), state, "failed", 1, "why", 2.0)
    assert resumed.env_steps is None, "the start of this attempt is unknown"
    pipelined = replace(state.plan.config, run=replace(state.plan.config.run, mode="pipelined"))
    ahead = summarise(replace(state.plan, config=pipelined), state, "failed", 1, "why", 2.0)
    assert ahead.env_steps is None, "a learner that ended before it reported has used some of these rows"


def test_the_summary_names_each_cause_of_restarts_once_and_how_often_it_happened(state: RunState) -> None:
    faults = [f"EnvFault: env Walk (slot {n}, step 300): step raised KeyError: 'up'" for n in range(3)]
    state.hosts["local"].assigned = (0, 1, 2)
    exits = [*((("worker", n), cause) for n, cause in enumerate(faults)), (("broker", 0), "signal SIGKILL\nand more")]
    for (role, index), cause in exits:
        tell(state, "exit", role=role, index=index, pid=1, code=1, expected=False, cause=cause)
        tell(state, "restart", role=role, index=index, in_s=0.5)
    summary = summarise(state.plan, state, "done", 0, None, 2.0)
    assert "\n".join(final_lines(summary).splitlines()[1:4]) == (
        f"  restarts 4\n    3 of worker: {faults[0]}\n    1 of broker: signal SIGKILL"
    )
    content = json.loads(json.dumps(to_json(summary)))
    assert content["restart_causes"][0] == {"role": "worker", "cause": faults[0], "count": 3}
    assert list(from_json(Summary, content).restart_causes) == state.restart_causes
    schema = json.loads((run_schemas.FOLDER / "summary.schema.json").read_text())
    Draft202012Validator(schema).validate(content)


@pytest.mark.parametrize(
    ("mode", "word", "line"),
    [("sync", name, meaning) for name, meaning in BOTTLENECKS.items()]
    + [("single", "learner", "one process does both")],
)
def test_the_summary_explains_a_bottleneck(state: RunState, mode: str, word: str, line: str) -> None:
    summary = replace(summarise(state.plan, state, "done", 0, None, 2.0), mode=mode, bottleneck=word, slowest=None)
    assert final_lines(summary).splitlines()[-1] == f"  bottleneck {word}: {line}"
    late = replace(summary, mode="sync", slowest="late (worker 3)")
    assert final_lines(late).splitlines()[-1] == f"  bottleneck {word}: late (worker 3)"
    assert "bottleneck" not in final_lines(replace(summary, status="failed"))


def test_the_numbers_of_env_report_stand_beside_the_returns(state: RunState) -> None:
    tell(state, "metrics", role="learner", index=0, values={"train_return_mean_100": 22.0, "report/comfort": -0.614})
    assert "return 22.0  comfort -0.614  " in line_of(status_of(state, 0.0, 1.0))
    score = {"eval_return_mean": 21.0, "eval_episodes": 5, "eval_reports": {"comfort": -0.5}}
    summary = replace(summarise(state.plan, state, "done", 0, None, 2.0), **score)
    assert final_lines(summary).splitlines()[1:3] == [
        "  return 22.0, comfort -0.614 (mean of the last 100 episodes)",
        "  evaluated 21.0, comfort -0.5 (mean of 5 greedy episodes)",
    ]


def test_the_summary_names_the_keys_that_lead_to_the_same_weights_after_a_restart(state: RunState) -> None:
    summary = replace(summarise(state.plan, state, "done", 0, None, 2.0), recovery="restart_episode")
    line = next(line for line in final_lines(summary).splitlines() if "restart_episode" in line)
    assert all(key in line for key in ("env.max_episode_steps=N", "env.recovery=exact"))


def test_workers_that_are_added_start_while_the_run_trains(state: RunState) -> None:
    assert status_of(state, 0.0, 0.0)["phase"] == "starting"
    tell(state, "first_step", role="worker", index=0)
    assert not state.all_ready and status_of(state, 0.0, 0.0)["phase"] == "running"


def test_the_final_score_is_not_replaced(state: RunState) -> None:
    tell(state, "score", role="evaluator", index=0, return_mean=3.0, final=True)
    tell(state, "score", role="evaluator", index=0, return_mean=2.0, final=False)
    assert state.score is not None and state.score.return_mean == 3.0


def test_views_and_status_of_an_empty_and_a_full_state(state: RunState) -> None:
    from rich.console import Console

    for _ in range(2):
        json.dumps(status_of(state, state.plan.started_at + 10, 10.0))
        console = Console(record=True, width=150)
        console.print(render(status_of(state, state.plan.started_at + 10, 10.0)))
        tell(state, "started", role="worker", index=0, pid=1, start_time=1, spawn=0)
        tell(state, "first_step", role="worker", index=0)
        state.first_step_s = 1.0
        tell(state, "worker", role="worker", index=0, env_steps=10, wait_fraction=0.2, env_steps_per_s=5.0, episodes=1)
        values = {"env_steps": 64, "wait_fraction": 0.9, "train_return_mean_100": 12.0, "env_steps_per_s": 1234.0}
        tell(state, "metrics", role="learner", index=0, values=values)
    text = console.export_text()
    for word in ("64/128", "bottleneck: workers", "return 12.0", "local", "eta 0:00:09"):
        assert word in text
    assert "50.0%  64 env steps  1,234/s" in line_of(status_of(state, state.plan.started_at + 10, 10.0))


def test_sparkline_and_duration() -> None:
    assert sparkline([0, 7, 3.5]) == "▁█▅"
    assert sparkline([2, 2]) == "▁▁"
    assert sparkline([]) == ""
    assert duration(3725) == "1:02:05"
    assert duration(86_399) == "23:59:59"
    assert duration(2 * 86_400 + 3 * 3600 + 59) == "2 d 3 h"


def test_signals_within_a_second_are_one_press() -> None:
    clock = [0.0]
    signals = StopSignals(lambda: clock[0])
    presses = [(0.0, signal.SIGUSR1), (0.0, signal.SIGINT), (0.9, signal.SIGINT), (1.1, signal.SIGTERM)]
    requests = []
    for at, number in [*presses, (1.2, signal.SIGUSR1)]:
        clock[0] = at
        signals.note(number)
        requests.append(signals.request)
    assert requests == [
        StopRequest.STOP,
        StopRequest.INTERRUPT,
        StopRequest.INTERRUPT,
        StopRequest.KILL,
        StopRequest.KILL,
    ]
    assert signals.same_presses == 1, "it is reported"


def test_a_terminal_that_is_closed_interrupts_and_never_kills() -> None:
    clock = [0.0]
    signals = StopSignals(lambda: clock[0])
    for at in (0.0, 5.0):
        clock[0] = at
        signals.note(signal.SIGHUP)
        assert signals.request == StopRequest.INTERRUPT


@pytest.mark.parametrize(
    "before",
    [(), (signal.SIGINT, signal.SIGINT), (signal.SIGHUP,), (signal.SIGUSR1,)],
    ids=["no", "kill", "hup", "stop"],
)
def test_an_interrupt_is_further_than_every_request_before(before: tuple[int, ...]) -> None:
    clock = [0.0]
    signals = StopSignals(lambda: clock[0])
    for number in before:
        signals.note(number)
        clock[0] += 2.0
    is_further = signals.further()
    for number in before[-1:]:
        if number != signal.SIGINT:
            signals.note(number)
    assert not is_further(), "a stop or a closed terminal, again"
    signals.note(signal.SIGINT)
    assert is_further()
    after = signals.further()
    signals.note(signal.SIGTERM)
    assert not after(), "the same press"


def test_run_directory_reads_back_what_it_wrote(state: RunState, tmp_path: Path) -> None:
    directory = begun(state.plan)
    assert to_json(read_config(directory.path)) == to_json(state.plan.config)
    info = read_info(directory.path)
    assert info is not None and is_live(directory.path, info)
    used = {"value": f"run directory {directory.path}", "fix": f"stop it: `zmqrl stop {directory.path}`"}
    with raises(ConfigError, **used):
        begun(state.plan)
    directory.discard()
    assert not directory.path.exists()
    assert read_info(directory.path) is None
    with raises(ConfigError, value=f"run directory {directory.path}", what="does not exist"):
        read_config(directory.path)


def test_discard_leaves_a_directory_that_was_there(state: RunState) -> None:
    path = Path(state.plan.run_dir)
    path.mkdir()
    begun(state.plan).discard()
    assert path.is_dir() and not any(path.iterdir()), "a run which never began has no directory"


def test_a_refused_resume_leaves_the_attempt_before_as_it_was(state: RunState) -> None:
    first = begun(state.plan)
    first.write_summary({"env_steps": 7})
    first.write("status.json", {"env_steps": 7})
    first.mark_ended(1.0)
    first.release()
    (first.path / "notes.txt").write_text("of the user")

    def contents() -> dict[str, bytes]:
        found = (path for path in first.path.rglob("*") if path.is_file() and path.parent.name != ".owner")
        return {str(path.relative_to(first.path)): path.read_bytes() for path in found}

    before = contents()
    config = replace(state.plan.config, min_workers=7)
    second = begun(replace(state.plan, run_id="later", config=config, resume=True))
    second.write("status.json", {"env_steps": 0})
    second.discard()
    assert contents() == before
    third = RunDirectory.own(state.plan)
    assert contents() == before, "it is owned, and nothing is written"
    third.release()


def test_discard_leaves_a_directory_that_another_launcher_has_taken_over(state: RunState) -> None:
    directory = begun(state.plan)
    record = directory.path / ".owner" / "1"
    (record.parent / "2").write_text(record.read_text().replace(state.plan.run_id, "another"))
    directory.discard()
    assert read_info(directory.path) is not None


def test_a_refusal_of_one_worker_undoes_no_attempt_that_has_env_steps(state: RunState) -> None:
    """The other workers trained; a later failure of the run is no refusal of its configuration."""
    tell(state, "exit", role="worker", index=1, code=2, expected=False, cause="no env of this name")
    refused = state.refused
    tell(state, "metrics", role="learner", index=0, values={"env_steps": 64})
    assert (refused, state.refused) == ("no env of this name", None)


def test_no_message_names_a_log_that_a_refusal_removes(state: RunState) -> None:
    """The run directory of a refused run is removed; that of a run with env steps is kept."""
    exit_of = {"pid": 1, "code": 2, "expected": False, "cause": "env.report: cost", "log_tail": []}
    for begun_steps in (0, 64):
        tell(state, "metrics", role="learner", index=0, values={"env_steps": begun_steps})
        tell(state, "exit", role="learner", index=0, detail={}, log="/far/x.log", **exit_of)
        tell(state, "restart_limit_reached", role="learner", index=0, cause="env.report: cost")
    assert [bool(problem.log) for problem in state.problems] == [False, True]


def test_a_refusal_of_the_learner_is_one_also_when_it_has_env_steps(state: RunState) -> None:
    """An update that cannot be compiled: the run ends with exit code 2, and keeps what it has."""
    tell(state, "metrics", role="learner", index=0, values={"env_steps": 64})
    tell(state, "exit", role="learner", index=0, code=2, expected=False, cause="learner.executor: no compiler")
    assert (state.refused, state.has_begun) == ("learner.executor: no compiler", True)


def test_handshakes_that_were_not_completed_are_counted_and_are_no_problem(state: RunState) -> None:
    before = len(state.problems)
    tell(state, "refused", role="broker", index=0, counts={"no handshake": 37})
    assert (len(state.problems) - before, state.refused_by["local/broker-0"]) == (0, {"no handshake": 37})
    tell(state, "refused", role="broker", index=0, counts={"no handshake": 38, "unknown key": 2})
    assert [problem.cause for problem in state.problems][before:] == ["rejected 2 x unknown key"]
