"""The table and the picture of recorded runs, and `docs/benchmarks.md`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.peers.cases import CASES, FIRST_STEP, Case

Row = Mapping[str, Any]
"""A line of the file of results."""
TEMPLATE = Path(__file__).with_name("page.md")
PICTURE = "pictures/benchmarks.svg"


@dataclass(frozen=True)
class Line:
    """A system in a case."""

    title: str
    unit: str
    system: str
    version: str
    values: tuple[float | None, ...]
    less_is_better: bool
    ratio: float | None = None
    """How many times better zmqrl is: median over the pairs of one repetition."""

    @property
    def median(self) -> float | None:
        """Of all repetitions, one that did not reach the target as the worst; None: most did not."""
        median = statistics.median(float("inf") if value is None else value for value in self.values)
        return None if median == float("inf") else median


def lines(rows: Sequence[Row]) -> list[Line]:
    """A line for each system of each case that was run."""
    found: list[Line] = []
    for case in CASES:
        of_case = [row for row in rows if row["case"] == case.name]
        found += _lines(case.title, case.unit, case.less_is_better, of_case, "value")
    starts = [row for row in rows if row["case"] in FIRST_STEP]
    return found + _lines("From the command to the first env step", "s", True, starts, "first_step_s")


def _lines(title: str, unit: str, less_is_better: bool, rows: Sequence[Row], key: str) -> list[Line]:
    values: dict[str, dict[tuple[str, str, int], float | None]] = defaultdict(dict)
    versions: dict[str, str] = {}
    for row in rows:
        values[row["system"]][row["run"], row["case"], row["seed"]] = row[key]
        versions[row["system"]] = row["version"]
    own = values.get("zmqrl", {})
    found = []
    for system, of_system in values.items():
        pairs = [(own.get(pair), value) for pair, value in of_system.items()]
        ratios = [(b / a if less_is_better else a / b) for a, b in pairs if a is not None and b is not None]
        ratio = statistics.median(ratios) if system != "zmqrl" and len(ratios) == len(of_system) else None
        given = tuple(of_system.values())
        found.append(Line(title, unit, system, versions[system], given, less_is_better, ratio))
    return found


def figure(value: float | None) -> str:
    """With three digits; `-`: the target was not reached."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(found: Sequence[Line]) -> str:
    """In Markdown."""
    text = ["| figure | system | median | repetitions | zmqrl is better by |", "|---|---|---|---|---|"]
    previous = ""
    for line in found:
        title = "" if line.title == previous else f"{line.title} [{line.unit}]"
        previous = line.title
        repetitions = ", ".join(map(figure, line.values))
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}x"
        cells = (title, f"{line.system} {line.version}", figure(line.median), repetitions, ratio)
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text)


def machines(rows: Sequence[Row]) -> str:
    """Where, when and with which packages the rows were measured."""
    places = {(row["machine"], row["commit"], row["run"][:10]): None for row in rows}
    users: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        users[row["packages"]][row["system"]] = None
    text = [f"- {place}; commit {commit}; {day}" for place, commit, day in places]
    return "\n".join(text + [f"- {', '.join(systems)}: {packages}" for packages, systems in users.items()])


def page(rows: Sequence[Row]) -> str:
    """`docs/benchmarks.md`."""
    loads = [row["load"] for row in rows] or [0.0]
    parts = {"table": table(lines(rows)), "picture": PICTURE, "machines": machines(rows)}
    parts["loads"] = f"{min(loads):.1f} to {max(loads):.1f}"
    return Template(TEMPLATE.read_text()).substitute(parts)


def draw(rows: Sequence[Row], path: Path) -> None:
    """A panel for each figure: bars of medians, points of repetitions."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels: dict[str, list[Line]] = defaultdict(list)
    for line in lines(rows):
        panels[f"{line.title} [{line.unit}]"].append(line)
    sizes = [len(found) for found in panels.values()]
    mpl.rcParams |= {"svg.hashsalt": "zmqrl", "svg.fonttype": "none"}
    settings = {"figsize": (8, sum(sizes) * 0.35 + 0.7 * len(sizes)), "height_ratios": sizes}
    drawn, axes = plt.subplots(len(panels), 1, squeeze=False, layout="constrained", **settings)
    for axis, (title, found) in zip(axes[:, 0], panels.items(), strict=True):
        for position, line in enumerate(found):
            known = [value for value in line.values if value is not None]
            axis.barh(position, line.median or 0, color="C0" if line.system == "zmqrl" else "C7")
            axis.plot(known, [position] * len(known), "k.", markersize=4)
        names = [line.system + ("" if line.median is not None else " (not reached)") for line in found]
        axis.set_yticks(range(len(found)), names)
        axis.invert_yaxis()
        axis.set_title(title + (", less is better" if found[0].less_is_better else ""), loc="left", fontsize=9)
        axis.tick_params(labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(drawn)


def case_of(name: str) -> Case:
    """By its name."""
    return next(case for case in CASES if case.name == name)
