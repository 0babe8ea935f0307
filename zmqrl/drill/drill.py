"""`zmqrl drill`: two real runs under seeded faults, and what is left of their promises."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from zmqrl.config.plan import RunPlan
from zmqrl.drill import witness, witness_algorithm
from zmqrl.drill.check import Expected, Given, OutsideCheck, check
from zmqrl.drill.faults import Target, plan_faults
from zmqrl.drill.journal import journals
from zmqrl.drill.report import Report, RunReport, Threshold
from zmqrl.drill.runs import LEARNING, WITNESS, Asked, learning_run, record_folder, witness_run
from zmqrl.drill.session import Clock, Session
from zmqrl.drill.small_disk import small_disk
from zmqrl.drill.subject import Subject
from zmqrl.drill.witness import ROW
from zmqrl.errors import Interrupted

JOIN_S = 0.2


def drill(asked: Asked, tell: Callable[[str], None]) -> Report:
    """Run the whole drill in `asked.folder`.

    Raises:
        ConfigError: The preset cannot be run as requested, or `--small-disk` failed; nothing was started.
        Interrupted: Ctrl-C or SIGTERM; both runs were ended.
    """
    learning, budget = learning_run(asked)
    plan = plan_faults(asked.seed, asked.faults, asked.for_s, _targets(learning.plan, asked), asked.at_least)
    asked.folder.mkdir(parents=True, exist_ok=True)
    other = witness_run(asked, learning.plan)
    record = record_folder(asked.folder)
    judged = asked.scenario.learns and asked.plant is None
    threshold = learning.plan.env.reward_threshold if judged else None
    sessions = [
        Session(subject, [fault for fault in plan if fault.run == subject.name], record)
        for subject in (learning, other)
    ]
    sessions[0].threshold, sessions[0].budget_env_steps = threshold, budget
    tell(f"{len(plan)} faults over {asked.for_s:g} s, seed {asked.seed}, in {asked.folder}")
    with small_disk(other.run_dir) if asked.small_disk else contextlib.nullcontext():
        _run(sessions, asked.for_s)
    summary = learning.summary() or {}
    report = Report(
        scenario=asked.scenario.name,
        preset=asked.scenario.preset,
        mode=learning.plan.config.run.mode,
        seed=asked.seed,
        for_s=asked.for_s,
        faults_s=max(session.faults_s for session in sessions),
        outcomes=tuple(sorted((o for s in sessions for o in s.outcomes), key=lambda o: o.fault.number)),
        runs=tuple(run_report(session) for session in sessions),
        outside=outside_check(other, record),
        books_rows=_books_rows(other),
        threshold=Threshold(threshold, learning.solved_at(), int(summary.get("env_steps") or 0), budget),
        plant=asked.plant,
        at_least=asked.at_least,
    )
    if not report.faults:
        shutil.rmtree(record)  # the evidence is large, and speaks for itself no longer
    return report


class HasData(Protocol):
    """What has a JSON form."""

    def data(self) -> dict[str, Any]:
        """Plain data."""
        ...


def write(report: HasData, path: Path) -> None:
    """The report as JSON."""
    path.write_text(json.dumps(report.data(), indent=2) + "\n")


def _targets(plan: RunPlan, asked: Asked) -> list[Target]:
    single = plan.config.mode.in_process
    roles = frozenset({"learner"} if single else {"learner", "broker", "worker"})
    evaluator = frozenset({"evaluator"} if plan.config.evaluator.episodes else ())
    return [
        Target(LEARNING, roles | evaluator, plan.total_workers, only=asked.only),
        Target(WITNESS, roles, plan.total_workers, stalls=not single, small_disk=asked.small_disk, only=asked.only),
    ]


def _run(sessions: list[Session], for_s: float) -> None:
    """Each in a separate thread; the main thread receives signals, and ends the runs whatever happens."""
    clock = Clock(for_s, threading.Barrier(len(sessions)), threading.Event())
    errors: list[BaseException] = []

    def run(session: Session) -> None:
        try:
            session.run(clock)
        except BaseException as error:  # noqa: BLE001 - the top of a thread: told to the thread that waits
            errors.append(error)
            clock.begin.abort()
            clock.stop.set()

    threads = [threading.Thread(target=run, args=(session,), name=session.subject.name) for session in sessions]
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
            session.subject.kill()
    if errors:
        raise errors[0]


def outside_check(subject: Subject, record: Path) -> OutsideCheck:
    """Read what the witness wrote, and judge it."""
    plan = subject.plan
    env, sync = plan.config.env, subject.sync
    vector_envs = env.vector_envs if sync else plan.total_workers
    expected = Expected(plan.config.run.seed, not sync, vector_envs, env.num_envs, env.segment_steps)
    return check(_given(subject, record), witness.stepped_episodes(record), expected)


def _given(subject: Subject, record: Path) -> list[Given]:
    """Learner by learner and what each arena left over after its last one."""
    given = [
        (written.began_ns, Given(np.frombuffer(written.content, ROW)))
        for written in journals(record, witness_algorithm.SUFFIX)
    ]
    for leg in subject.legs:
        if leg.left_over is not None and leg.in_flight is not None:
            rows = np.concatenate([leg.left_over, leg.in_flight]) if leg.may_hold_sealed else leg.left_over
            given.append((leg.ended_ns, Given(rows, left_over=True)))
    return [part for _, part in sorted(given, key=lambda item: item[0])]


def _books_rows(subject: Subject) -> tuple[int, int] | None:
    """How many rows are stored by the stream records; one that was killed may have been between two stores."""
    if subject.sync:
        env_steps = (subject.summary() or {}).get("env_steps")
        return None if env_steps is None else (env_steps, env_steps)
    ledgers = [(leg.ledger, leg.may_hold_sealed) for leg in subject.legs if leg.ledger is not None]
    least = sum(ledger.stored for ledger, _ in ledgers)
    return least, least + sum(ledger.in_flight for ledger, may_hold_sealed in ledgers if may_hold_sealed)


def run_report(session: Session) -> RunReport:
    """What is left of a run whose session has ended."""
    subject = session.subject
    summary = subject.summary() or {}
    return RunReport(
        name=subject.name,
        mode=subject.plan.config.run.mode,
        exit_code=session.exit_code,
        env_steps=summary.get("env_steps"),
        restarts=summary.get("restarts"),
        legs=len(subject.legs),
        ledger=summary.get("ledger"),
        failures=tuple(session.failures),
        left=tuple(subject.left),
        ledgers=tuple(leg.ledger for leg in subject.legs if leg.ledger is not None and not leg.killed),
    )
