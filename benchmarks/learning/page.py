"""`docs/learning.md`: the tables of recorded runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.cases import CASES, SYSTEMS, Case
from benchmarks.learning.curve import Point, interval, iqm, score_at

Row = Mapping[str, Any]
"""A line of the file of results."""
TEMPLATE = Path(__file__).with_name("page.md")
SHARES = (0.25, 0.5, 0.75, 1.0)


def page(rows: Sequence[Row]) -> str:
    """All of it."""
    found = {"$PRESETS": presets_table(rows), "$DEFAULTS": defaults_table(rows)}
    text = TEMPLATE.read_text()
    for name, table in found.items():
        text = text.replace(name, table if table.count("\n") > 1 else "No run is recorded yet.")
    return text


def presets_table(rows: Sequence[Row]) -> str:
    """IQM over the seeds, with its interval, at equal env steps and at equal times."""
    lines = ["| case | at | zmqrl | Stable-Baselines3 | seeds |", "|---|---|---|---|---|"]
    for case in CASES:
        found = {system: _curves(rows, case, system) for system in SYSTEMS}
        if case.part == "presets" and all(found.values()):
            seeds = " and ".join(str(len(curves)) for curves in found.values())
            for key, unit, end in (("env_steps", "env steps", case.env_steps), ("wall_s", "s", _shorter_s(found))):
                for share in SHARES:
                    cells = [_cell(curves, key, share * end) for curves in found.values()]
                    lines.append(f"| {case.name} | {share * end:,.0f} {unit} | {' | '.join(cells)} | {seeds} |")
            last = [_with_interval(_scores(rows, case, system)) for system in SYSTEMS]
            lines.append(f"| {case.name} | last policy, greedy | {' | '.join(last)} | {seeds} |")
    return "\n".join(lines)


def defaults_table(rows: Sequence[Row]) -> str:
    """Every seed, and the share of what Stable-Baselines3 gains over random actions."""
    lines = [
        "| env | algorithm | env steps | random | zmqrl | Stable-Baselines3 | gain, of medians | time, of medians |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        own, peer, random = (_scores(rows, case, system) for system in (*SYSTEMS, "random"))
        if case.part == "defaults" and own and peer and random:
            base = random[0]
            gain = (statistics.median(own) - base) / (statistics.median(peer) - base)
            times = [statistics.median(curve[-1].wall_s for curve in _curves(rows, case, system)) for system in SYSTEMS]
            env = case.env if not case.settings else f"MinAtar {case.settings['env.kwargs']['game']}"
            cells = [env, case.algorithm, f"{case.env_steps:,}", f"{base:.1f}"]
            cells += [", ".join(f"{score:.1f}" for score in scores) for scores in (own, peer)]
            cells += [f"{gain:.2f}", f"{times[0]:.0f} s, {times[1]:.0f} s"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of(rows: Sequence[Row], case: Case, system: str) -> list[Row]:
    return sorted((r for r in rows if (r["case"], r["system"]) == (case.name, system)), key=lambda r: int(r["seed"]))


def _scores(rows: Sequence[Row], case: Case, system: str) -> list[float]:
    return [row["score"] for row in _of(rows, case, system)]


def _curves(rows: Sequence[Row], case: Case, system: str) -> list[list[Point]]:
    return [[Point(*point) for point in row["curve"]] for row in _of(rows, case, system)]


def _shorter_s(found: Mapping[str, Sequence[Sequence[Point]]]) -> float:
    """The time after which the faster system has all its env steps, in the median."""
    return min(statistics.median(points[-1].wall_s for points in curves) for curves in found.values())


def _cell(curves: Sequence[Sequence[Point]], key: str, mark: float) -> str:
    scores = [score_at(points, key, mark) for points in curves]
    known = [score for score in scores if score is not None]
    return _with_interval(known) if len(known) == len(scores) else "-"


def _with_interval(scores: Sequence[float]) -> str:
    low, high = interval(scores)
    return f"{iqm(scores):.1f} ({low:.1f} to {high:.1f})"
