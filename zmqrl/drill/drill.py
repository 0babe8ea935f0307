"""`zmqrl drill`: two real runs under seeded faults, and what is left of their promises."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from zmqrl.config.plan import RunPlan
from zmqrl.drill import witness, witness_algorithm
from zmqrl.drill.check import Expected, Given, OutsideCheck, check
from zmqrl.drill.faults import DrillTarget, plan_faults
from zmqrl.drill.journal import journals
from zmqrl.drill.report import DrillReport
from zmqrl.drill.run_report import RunReport, Threshold
from zmqrl.drill.run_under_test import RunUnderTest
from zmqrl.drill.runs import LEARNING, WITNESS, DrillRequest, learning_run, record_folder, witness_run
from zmqrl.drill.session import DrillClock, DrillSession
from zmqrl.drill.small_disk import small_disk
from zmqrl.drill.witness import ROW
from zmqrl.errors import Interrupted
from zmqrl.views.problem import counted

JOIN_S = 0.2


def drill(request: DrillRequest, notify: Callable[[str], None]) -> DrillReport:
    """Run the whole drill in `request.folder`.

    Raises:
        ConfigError: The preset cannot be run as requested, or `--small-disk` failed; nothing was started.
        Interrupted: Ctrl-C or SIGTERM; both runs were ended.
    """
    learning, budget = learning_run(request)
    plan = plan_faults(request.seed, request.faults, request.for_s, _targets(learning.plan, request), request.at_least)
    request.folder.mkdir(parents=True, exist_ok=True)
    other = witness_run(request, learning.plan)
    record = record_folder(request.folder)
    judged = request.scenario.learns and request.plant is None
    threshold = learning.plan.env.reward_threshold if judged else None
    runs = (learning, other)
    sessions = [DrillSession(run, [fault for fault in plan if fault.run == run.name], record) for run in runs]
    sessions[0].threshold, sessions[0].budget_env_steps = threshold, budget
    notify(f"{counted(len(plan), 'fault')} over {request.for_s:g} s, seed {request.seed}, in {request.folder}")
    with small_disk(other.run_dir) if request.small_disk else contextlib.nullcontext():
        _run(sessions, request.for_s)
    summary = learning.summary() or {}
    report = DrillReport(
        scenario=request.scenario.name,
        preset=request.scenario.preset,
        mode=learning.plan.config.run.mode,
        seed=request.seed,
        for_s=request.for_s,
        faults_s=max(session.faults_s for session in sessions),
        outcomes=tuple(sorted((o for s in sessions for o in s.outcomes), key=lambda o: o.fault.number)),
        runs=tuple(run_report(session) for session in sessions),
        outside=outside_check(other, record),
        ledger_rows=_ledger_rows(other),
        threshold=Threshold(threshold, summary.get("solved_at_env_steps"), int(summary.get("env_steps") or 0), budget),
        plant=request.plant,
        at_least=request.at_least,
    )
    if not report.faults:
        shutil.rmtree(record)  # the evidence is large, and speaks for itself no longer
    return report


def write(data: Mapping[str, Any], path: Path) -> None:
    """A report as JSON."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _targets(plan: RunPlan, request: DrillRequest) -> list[DrillTarget]:
    single = plan.config.mode.in_process
    roles = frozenset({"learner"} if single else {"learner", "broker", "worker"})
    evaluator = frozenset({"evaluator"} if plan.config.evaluator.episodes else ())
    learning = DrillTarget(LEARNING, roles | evaluator, plan.total_workers, only=request.only)
    return [learning, replace(learning, run=WITNESS, roles=roles, stalls=not single, small_disk=request.small_disk)]


def _run(sessions: list[DrillSession], for_s: float) -> None:
    """Each in a separate thread; the main thread receives signals, and ends the runs whatever happens."""
    clock = DrillClock(for_s, threading.Barrier(len(sessions)), threading.Event())
    errors: list[BaseException] = []

    def run(session: DrillSession) -> None:
        try:
            session.run(clock)
        except BaseException as error:  # noqa: BLE001 - the top of a thread: reported to the thread that waits
            errors.append(error)
            clock.begin.abort()
            clock.stop.set()

    threads = [threading.Thread(target=run, args=(session,), name=session.under_test.name) for session in sessions]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(JOIN_S)
    except KeyboardInterrupt:
        raise Interrupted("the drill was interrupted; its runs were stopped") from None
    finally:
        clock.stop.set()
        clock.begin.abort()
        for thread in threads:
            thread.join()
        for session in sessions:
            session.under_test.kill()
    if errors:
        raise errors[0]


def outside_check(run: RunUnderTest, record: Path) -> OutsideCheck:
    """Read what the witness wrote, and judge it."""
    plan = run.plan
    env, sync = plan.config.env, run.sync
    vector_envs = env.vector_envs if sync else plan.total_workers
    ahead = plan.config.mode.rounds_ahead
    expected = Expected(plan.config.run.seed, not sync, vector_envs, env.num_envs, env.segment_steps, ahead)
    return check(_given(run, record), witness.stepped_episodes(record), expected)


def _given(run: RunUnderTest, record: Path) -> list[Given]:
    """Learner by learner and what each arena left over after its last one."""
    given = [
        (written.began_ns, Given(np.frombuffer(written.content, ROW)))
        for written in journals(record, witness_algorithm.SUFFIX)
    ]
    for attempt in run.attempts:
        if attempt.left_over is not None and attempt.in_flight is not None:
            parts = [attempt.left_over, *([attempt.in_flight] if attempt.may_hold_sealed else [])]
            given.append((attempt.ended_ns, Given(np.concatenate(parts), left_over=True)))
    return [part for _, part in sorted(given, key=lambda item: item[0])]


def _ledger_rows(run: RunUnderTest) -> tuple[int, int] | None:
    """How many rows are stored by the stream records; one that was killed may have been between two stores."""
    if run.sync:
        env_steps = (run.summary() or {}).get("env_steps")
        return None if env_steps is None else (env_steps, env_steps)
    ledgers = [(attempt.ledger, attempt.may_hold_sealed) for attempt in run.attempts if attempt.ledger is not None]
    least = sum(ledger.stored for ledger, _ in ledgers)
    return least, least + sum(ledger.in_flight for ledger, may_hold_sealed in ledgers if may_hold_sealed)


def run_report(session: DrillSession) -> RunReport:
    """What is left of a run whose session has ended."""
    run = session.under_test
    summary = run.summary() or {}
    return RunReport(
        name=run.name,
        mode=run.plan.config.run.mode,
        exit_code=session.exit_code,
        env_steps=summary.get("env_steps"),
        restarts=summary.get("restarts"),
        attempts=len(run.attempts),
        ledger=summary.get("ledger"),
        failures=tuple(session.failures),
        left=tuple(run.left),
        ledgers=tuple(attempt.ledger for attempt in run.attempts if attempt.ledger is not None and not attempt.killed),
    )
