"""`zmqrl drill --long`: every scenario, one after the other, and one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zmqrl.config.codec import replace
from zmqrl.drill.drill import drill, write
from zmqrl.drill.faults import FaultAction, Kind
from zmqrl.drill.report import DrillReport
from zmqrl.drill.runs import DrillRequest
from zmqrl.drill.scenarios import SCENARIOS
from zmqrl.errors import ConfigError

ROLES = ("worker", "broker", "learner", "agent")
"""Whose kills and recovery times have a column."""


@dataclass(frozen=True)
class DrillSeries:
    """The reports by scenario."""

    reports: Mapping[str, DrillReport]

    @property
    def exit_code(self) -> int:
        """0: every drill was good."""
        return max(report.exit_code for report in self.reports.values())

    def kills(self, role: str) -> int:
        """SIGKILLs of a role, over all scenarios; of several roles at once they count for each."""
        return sum(_kills(report, role) for report in self.reports.values())

    def data(self) -> dict[str, Any]:
        """JSON data of the series."""
        return {
            "verdict": "pass" if self.exit_code == 0 else "fail",
            "kills": {role: self.kills(role) for role in ROLES},
            "scenarios": {name: report.data() for name, report in self.reports.items()},
        }

    def __str__(self) -> str:
        kills = " ".join(f"{role:>14}" for role in ROLES)
        rows = [f"{'':16} {'faults':>6} {kills} {'rows':>8} {'lost':>5} {'doubled':>7} {'unknown':>7}  verdict"]
        rows.append(f"{'':23} {' '.join(f'{head:>14}' for head in ['kills p50/max s'] * len(ROLES))}  of those alone")
        for name, report in self.reports.items():
            rows.append(_row(name, report))
        rows += [f"FAULT: {name}: {fault}" for name, report in self.reports.items() for fault in report.faults]
        counted = ", ".join(f"{self.kills(role)} of {role}" for role in ROLES)
        rows.append(f"kills: {counted}")
        rows.append(
            f"verdict: {'no row lost, no row stored twice, all processes recovered' if self.exit_code == 0 else 'FAIL'}"
        )
        return "\n".join(rows)


def drill_all(request: DrillRequest, notify: Callable[[str], None]) -> DrillSeries:
    """Every scenario for its share of `request.for_s` and `request.faults`, each in a separate folder.

    Raises:
        ConfigError, Interrupted: As `drill`; the scenarios before have their reports.
    """
    share = len(SCENARIOS)
    least = sum(minimum.count for minimum in request.at_least)
    if request.faults // share < least:
        what = f"--long needs at least {share * least} faults: {least} (--at-least) in each of {share} scenarios"
        raise ConfigError(what, key=("--faults",), value=str(request.faults))
    reports = {}
    for scenario in SCENARIOS.values():
        assert scenario.name is not None
        notify(f"{scenario.name}: {scenario.purpose}")
        one = replace(
            request,
            scenario=scenario,
            folder=request.folder / scenario.name,
            for_s=request.for_s / share,
            faults=max(1, request.faults // share),
        )
        reports[scenario.name] = drill(one, notify)
        write(reports[scenario.name].data(), one.folder / "drill.json")
    return DrillSeries(reports)


def _kills(report: DrillReport, role: str) -> int:
    return sum(_is_kill(o.fault.kind) and role in o.fault.kind.roles and o.injected for o in report.outcomes)


def _is_kill(kind: Kind) -> bool:
    return kind.action.name.startswith("KILL")


def _row(name: str, report: DrillReport) -> str:
    cells = [f"{name:16} {len(report.outcomes):6}"]
    times = {(line.role, line.kind): line for line in report.lines()}
    for role in ROLES:
        line = times.get((role, FaultAction.KILL.value))
        alone = None if line is None else line.alone
        seconds = "-" if alone is None or alone.p50_s is None else f"{alone.p50_s:.2f}/{alone.max_s:.2f}"
        cells.append(f"{f'{_kills(report, role)} {seconds}':>14}")
    outside = report.outside
    unknown = sum(run.unknown for run in report.runs)
    if outside is not None:
        cells.append(f"{outside.rows:8} {outside.lost:5} {outside.doubled:7} {unknown:7}")
    cells.append(f" {'FAIL' if report.faults else 'pass'}")
    return " ".join(cells)
