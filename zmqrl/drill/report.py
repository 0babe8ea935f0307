"""What a drill found: by role and kind of fault, the stream records, the outside check, and a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zmqrl.config.codec import to_json
from zmqrl.drill.check import OutsideCheck
from zmqrl.drill.faults import Minimum, PlannedFault
from zmqrl.drill.run_report import RunReport, Threshold
from zmqrl.drill.session import FaultOutcome
from zmqrl.views.problem import counted


@dataclass(frozen=True)
class Times:
    """Recovery times of some faults."""

    recovered: int
    p50_s: float | None
    max_s: float | None


@dataclass(frozen=True)
class ReportLine:
    """All faults of one kind, or of one role (`kind` None)."""

    role: str
    kind: str | None
    injected: int
    alone: Times
    """Times of the faults that nothing but the load of the machine prolonged."""
    overlapping: Times
    """Times of the faults with `FaultOutcome.overlapped`: each holds what the others cost."""
    gone_max_s: float | None
    """Faults that end the attempt: the longest time until nothing was left."""

    @property
    def recovered(self) -> int:
        """All of them."""
        return self.alone.recovered + self.overlapping.recovered


@dataclass(frozen=True)
class InjectedMinimum:
    """A minimum that was requested (`--at-least`), and how many there were."""

    kind: str
    wanted: int
    injected: int

    @property
    def short(self) -> bool:
        """Whether it was not reached."""
        return self.injected < self.wanted


@dataclass(frozen=True)
class DrillReport:
    """Everything that the JSON file holds."""

    preset: str
    mode: str
    seed: int
    for_s: float
    faults_s: float
    outcomes: tuple[FaultOutcome, ...]
    runs: tuple[RunReport, ...]
    outside: OutsideCheck | None
    ledger_rows: tuple[int, int] | None
    """Least and most rows that are stored by the stream records, alongside `outside.rows`."""
    threshold: Threshold
    scenario: str | None = None
    plant: str | None = None
    at_least: tuple[Minimum, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the verdict is not good; none: it is."""
        found = []
        late = [o for o in self.outcomes if o.recovered_s is None]
        found += [f"{o.fault.run}: {_named(o.fault)} did not recover" for o in late]
        for run in self.runs:
            found += run.faults
        found += [
            f"{r.injected} faults {r.kind}, and --at-least requires {r.wanted}" for r in self.reached() if r.short
        ]
        return (*found, *self._outside_faults(), *(["the threshold was not reached"] if self.threshold.failed else []))

    def _at_once(self) -> str:
        spreads = [o.spread_s for o in self.outcomes if len(o.fault.slots) > 1]
        if not spreads:
            return ""
        p50_ms, max_ms = 1000 * statistics.median(spreads), 1000 * max(spreads)
        return f"; several processes at once: within {p50_ms:.2f} ms (p50), {max_ms:.2f} ms (max)"

    def _outside_faults(self) -> list[str]:
        outside, stored = self.outside, self.ledger_rows
        if outside is None:
            return ["the outside check is missing"]
        found = []
        if not outside.holds:
            found.append(
                f"outside check: {outside.lost} rows lost, {outside.doubled} doubled, {outside.foreign} foreign"
            )
        if stored is not None and not stored[0] <= outside.rows <= stored[1]:
            found.append(
                f"outside check: {stored[0]} to {stored[1]} rows are recorded as stored, {outside.rows} were found"
            )
        return found

    @property
    def exit_code(self) -> int:
        """0: nothing lost, nothing doubled, all recovered, nothing left."""
        return 1 if self.faults else 0

    def lines(self) -> list[ReportLine]:
        """Lines by role and kind, then by role, without the faults that end its attempt where there are others."""
        roles = sorted({o.fault.kind.role for o in self.outcomes})
        found = []
        for role in roles:
            of_role = [o for o in self.outcomes if o.fault.kind.role == role]
            actions = sorted({o.fault.kind.action.value for o in of_role})
            found += [_line(role, a, [o for o in of_role if o.fault.kind.action.value == a]) for a in actions]
            found.append(_line(role, None, [o for o in of_role if not o.fault.kind.ends_run] or of_role))
        return found

    def reached(self) -> list[InjectedMinimum]:
        """Each minimum; a kill of several roles at once counts for each of them."""
        injected = [o.fault.kind for o in self.outcomes if o.injected]
        return [
            InjectedMinimum(f"{m.kind.role}:{m.kind.action.value}", m.count, sum(map(m.counts, injected)))
            for m in self.at_least
        ]

    def data(self) -> dict[str, Any]:
        """JSON data of the report."""
        return {
            **to_json_fields(self),
            "table": [{**asdict(line), "recovered": line.recovered} for line in self.lines()],
            "verdict": "pass" if not self.faults else "fail",
            "faults": list(self.faults),
        }

    def __str__(self) -> str:
        heads = ("injected", "recovered", *("alone", "p50 s", "max s"), *("overlap", "p50 s", "max s"), "gone s")
        rows = [f"{'role':21} {'fault':11} {' '.join(f'{head:>9}' for head in heads)}"]
        lines = self.lines()
        single = {line.role for line in lines if sum(line.role == other.role for other in lines) == 2}
        for line in lines:
            if line.kind is None and line.role in single:
                continue  # it repeats the line before it
            cells = [str(line.injected), str(line.recovered), *_cells(line.alone), *_cells(line.overlapping)]
            cells.append(_seconds(line.gone_max_s))
            rows.append(f"{line.role:21} {line.kind or 'all':11} {' '.join(f'{cell:>9}' for cell in cells)}")
        rows += ["", f"{counted(len(self.outcomes), 'fault')} in {self.faults_s:.0f} s{self._at_once()}"]
        rows += [f"at least {r.wanted} {r.kind}: {r.injected}" for r in self.reached()]
        rows += map(str, self.runs)
        if (outside := self.outside) is not None:
            rows.append(
                f"outside check: {outside.rows} rows of {outside.streams} env slots, {outside.lost} lost, "
                f"{outside.doubled} doubled, {outside.foreign} foreign, {outside.unstored} in open segments"
            )
            rows += [f"  {finding}" for finding in outside.findings]
        rows.append(f"threshold: {self.threshold}")
        rows += [f"FAULT: {fault}" for fault in self.faults]
        rows.append(
            f"verdict: {'no row lost, no row stored twice, all processes recovered' if not self.faults else 'FAIL'}"
        )
        return "\n".join(rows)


def to_json_fields(report: DrillReport) -> dict[str, Any]:
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
            "spread_s": round(o.spread_s, 6),
            "overlapped": o.overlapped,
            "injected": o.injected,
        }
        for o in report.outcomes
    ]
    threshold = {**asdict(report.threshold), "reached": report.threshold.solved_at_env_steps is not None}
    return {
        **{name: getattr(report, name) for name in ("scenario", "preset", "mode", "seed", "for_s", "plant")},
        "faults_s": round(report.faults_s, 3),
        "outcomes": flat,
        "at_least": [asdict(reached) for reached in report.reached()],
        "runs": [run.data() for run in report.runs],
        "outside": None if report.outside is None else {**to_json(report.outside), "holds": report.outside.holds},
        "books_rows": report.ledger_rows,
        "threshold": threshold,
    }


def _line(role: str, kind: str | None, outcomes: Sequence[FaultOutcome]) -> ReportLine:
    alone, overlapping = (_times([o for o in outcomes if o.overlapped is overlapped]) for overlapped in (False, True))
    gone = max((o.gone_s for o in outcomes if o.gone_s is not None), default=None)
    injected = sum(o.injected for o in outcomes)
    return ReportLine(role, kind, injected, alone, overlapping, None if gone is None else round(gone, 3))


def _times(outcomes: Sequence[FaultOutcome]) -> Times:
    times = [o.recovered_s for o in outcomes if o.recovered_s is not None]
    if not times:
        return Times(0, None, None)
    return Times(len(times), round(statistics.median(times), 3), round(max(times), 3))


def _cells(times: Times) -> list[str]:
    return [str(times.recovered), _seconds(times.p50_s), _seconds(times.max_s)]


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"


def _named(fault: PlannedFault) -> str:
    return f"{fault.kind}{f' of {fault.slots[0]}' if len(fault.slots) == 1 else ''}"
