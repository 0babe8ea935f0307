"""What a drill found: by role and kind of fault, the books, the outside check, and a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zmqrl.config.codec import to_json
from zmqrl.drill.check import OutsideCheck
from zmqrl.drill.session import Outcome


@dataclass(frozen=True)
class Line:
    """All faults of one kind, or of one role (`kind` None)."""

    role: str
    kind: str | None
    injected: int
    recovered: int
    p50_s: float | None
    max_s: float | None
    gone_max_s: float | None
    """agent, launcher: the longest time until nothing was left."""


@dataclass(frozen=True)
class RunReport:
    """One of the two runs."""

    name: str
    mode: str
    exit_code: int | None
    env_steps: int | None
    restarts: int | None
    legs: int
    """Lives of its launcher."""
    ledger: dict[str, Any] | None
    """Of the last leg, from `summary.json`."""
    failures: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True)
class Threshold:
    """Whether the learning run learnt."""

    threshold: float | None
    solved_at_env_steps: int | None
    env_steps: int
    budget_env_steps: int
    """The preset's total: a run that has not learnt by then has failed."""

    @property
    def failed(self) -> bool:
        """It had all of its env steps and did not reach it."""
        return (
            self.threshold is not None and self.solved_at_env_steps is None and self.env_steps >= self.budget_env_steps
        )

    def __str__(self) -> str:
        if self.threshold is None:
            return "the env has none"
        if self.solved_at_env_steps is not None:
            return f"{self.threshold:g} reached at {self.solved_at_env_steps} env steps"
        what = "NOT REACHED" if self.failed else "not reached, the drill was too short for it"
        return f"{self.threshold:g} {what}: {self.env_steps} of {self.budget_env_steps} env steps"


@dataclass(frozen=True)
class Report:
    """Everything that the JSON file holds."""

    preset: str
    mode: str
    seed: int
    for_s: float
    faults_s: float
    outcomes: tuple[Outcome, ...]
    runs: tuple[RunReport, ...]
    outside: OutsideCheck | None
    books_rows: tuple[int, int] | None
    """Least and most rows that the books say are stored, beside `outside.rows`."""
    threshold: Threshold

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the verdict is not good; none: it is."""
        found = []
        late = [o for o in self.outcomes if o.recovered_s is None]
        found += [f"{o.fault.run}: {o.fault.kind} of {o.fault.place} did not recover" for o in late]
        for run in self.runs:
            found += [f"{run.name}: {failure}" for failure in run.failures]
            found += [f"left behind: {what}" for what in run.left]
            if run.exit_code != 0:
                found.append(f"{run.name}: exit code {run.exit_code}")
            if run.ledger is None and not run.failures:
                found.append(f"{run.name}: there is no ledger")
            elif run.ledger is not None and not run.ledger["balanced"]:
                found.append(f"{run.name}: the ledger does not balance: {run.ledger}")
        return (*found, *self._outside_faults(), *(["the threshold was not reached"] if self.threshold.failed else []))

    def _outside_faults(self) -> list[str]:
        outside, books = self.outside, self.books_rows
        if outside is None:
            return ["there is no outside check"]
        found = []
        if not outside.holds:
            found.append(
                f"outside check: {outside.lost} rows lost, {outside.doubled} doubled, {outside.foreign} foreign"
            )
        if books is not None and not books[0] <= outside.rows <= books[1]:
            found.append(
                f"outside check: the books say {books[0]} to {books[1]} rows are stored, {outside.rows} were seen"
            )
        return found

    @property
    def exit_code(self) -> int:
        """0: nothing lost, nothing doubled, all recovered, nothing left."""
        return 1 if self.faults else 0

    def lines(self) -> list[Line]:
        """By role and kind, then by role."""
        roles = sorted({o.fault.kind.role for o in self.outcomes})
        found = []
        for role in roles:
            of_role = [o for o in self.outcomes if o.fault.kind.role == role]
            actions = sorted({o.fault.kind.action.value for o in of_role})
            found += [_line(role, a, [o for o in of_role if o.fault.kind.action.value == a]) for a in actions]
            found.append(_line(role, None, of_role))
        return found

    def data(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            **to_json_fields(self),
            "table": [asdict(line) for line in self.lines()],
            "verdict": "pass" if not self.faults else "fail",
            "faults": list(self.faults),
        }

    def __str__(self) -> str:
        rows = [f"{'role':10} {'fault':9} {'injected':>8} {'recovered':>9} {'p50 s':>7} {'max s':>7} {'gone s':>7}"]
        for line in self.lines():
            times = " ".join(
                f"{'-' if t is None else f'{t:.2f}':>7}" for t in (line.p50_s, line.max_s, line.gone_max_s)
            )
            rows.append(f"{line.role:10} {line.kind or 'all':9} {line.injected:8} {line.recovered:9} {times}")
        rows += ["", f"{len(self.outcomes)} faults in {self.faults_s:.0f} s"]
        for run in self.runs:
            rows.append(
                f"{run.name}: {run.mode}, {run.env_steps} env steps, {run.restarts} restarts in the last of "
                f"{run.legs} legs, ledger {_ledger(run.ledger)}"
            )
        if (outside := self.outside) is not None:
            rows.append(
                f"outside check: {outside.rows} rows of {outside.streams} env slots, {outside.lost} lost, "
                f"{outside.doubled} doubled, {outside.foreign} foreign, {outside.unstored} in open segments"
            )
            rows += [f"  {finding}" for finding in outside.findings]
        rows.append(f"threshold: {self.threshold}")
        rows += [f"FAULT: {fault}" for fault in self.faults]
        rows.append(f"verdict: {'nothing lost, nothing twice, all recovered' if not self.faults else 'FAIL'}")
        return "\n".join(rows)


def to_json_fields(report: Report) -> dict[str, Any]:
    """Its fields, with each outcome as one flat object."""
    flat = [
        {
            "number": o.fault.number,
            "run": o.fault.run,
            "role": o.fault.kind.role,
            "kind": o.fault.kind.action.value,
            "index": o.fault.index,
            "hold_s": o.fault.hold_s,
            "at_s": o.injected_at_s,
            "recovered_s": None if o.recovered_s is None else round(o.recovered_s, 3),
            "gone_s": None if o.gone_s is None else round(o.gone_s, 3),
        }
        for o in report.outcomes
    ]
    threshold = {**asdict(report.threshold), "reached": report.threshold.solved_at_env_steps is not None}
    return {
        **{name: getattr(report, name) for name in ("preset", "mode", "seed", "for_s")},
        "faults_s": round(report.faults_s, 3),
        "outcomes": flat,
        "runs": [to_json(run) for run in report.runs],
        "outside": None if report.outside is None else {**to_json(report.outside), "holds": report.outside.holds},
        "books_rows": report.books_rows,
        "threshold": threshold,
    }


def _line(role: str, kind: str | None, outcomes: Sequence[Outcome]) -> Line:
    times = [o.recovered_s for o in outcomes if o.recovered_s is not None]
    gone = [o.gone_s for o in outcomes if o.gone_s is not None]
    p50_s = round(statistics.median(times), 3) if times else None
    max_s = round(max(times), 3) if times else None
    return Line(role, kind, len(outcomes), len(times), p50_s, max_s, round(max(gone), 3) if gone else None)


def _ledger(ledger: dict[str, Any] | None) -> str:
    if ledger is None:
        return "unknown"
    dropped = sum(ledger["dropped"].values())
    balance = "balances" if ledger["balanced"] else "DOES NOT BALANCE"
    parts = f"{ledger['stored']} stored + {ledger['in_flight']} in flight + {dropped} dropped"
    return f"{ledger['produced']} produced = {parts}: {balance}"
