"""Groups of runs, and the curves that they give."""

from __future__ import annotations

import csv
import json
import tracemalloc
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.metrics.curves import EVALUATED, RETURN, curve_of, interval, resamples, series_of, smoothed
from zmqrl.metrics.groups import RunGroup, group_of
from zmqrl.metrics.plot import FINAL, MARKED, draw, make_plot, write_csv


def _run(folder: Path, *rows: tuple[float, float], name: str = RETURN, env: str = "CartPole-v1") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"config": {"env": {"id": env}}}))
    lines = [json.dumps({"wall_s": steps / 10, "env_steps": steps, name: value}) for steps, value in rows]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    return folder


def test_groups(tmp_path: Path) -> None:
    one = _run(tmp_path / "lr=0.1")
    seeds = [_run(tmp_path / "ppo" / f"seed-{n}") for n in (1, 9, 10)]
    others = [_run(tmp_path / "dqn-a"), *(_run(tmp_path / "dqn-b" / f"seed-{n}") for n in (1, 2))]
    assert group_of(str(one)) == RunGroup("lr=0.1", (one,))
    assert group_of(f"{one}=slow") == RunGroup("slow", (one,))
    assert group_of(str(tmp_path / "ppo")) == RunGroup("ppo", tuple(seeds))
    assert group_of(f"{tmp_path}/dqn-") == RunGroup("dqn", tuple(others))
    assert group_of(f"{tmp_path}/dqn-=DQN, all") == RunGroup("DQN, all", tuple(others))
    for wrong in ("sac", "sac=SAC", "lr=0.2"):
        with raises(ConfigError, key=(), source=f"{tmp_path}/{wrong.partition('=')[0]}"):
            group_of(f"{tmp_path}/{wrong}")


def test_a_folder_without_rows_is_not_the_beginning_of_a_name(tmp_path: Path) -> None:
    _run(tmp_path / "ppo-2")
    (tmp_path / "ppo").mkdir()
    for argument in ("ppo", "ppo=new"):
        with raises(ConfigError, key=(), value=f"{tmp_path}/ppo", is_subject=True):
            group_of(f"{tmp_path}/{argument}")


def test_a_curve_is_the_iqm_over_the_common_range(tmp_path: Path) -> None:
    runs = [
        _run(tmp_path / "seed-1", (0, 0.0), (100, 10.0)),
        _run(tmp_path / "seed-2", (10, 5.0), (90, 5.0)),
        _run(tmp_path / "seed-3", (0, 1.0), (100, 1.0)),
    ]
    drawn = series_of(RunGroup("g", tuple(runs)), RETURN, 1)
    curve = curve_of(drawn.series, "env_steps")
    assert (curve.x[0], curve.x[-1], {*curve.there.tolist()}) == (10, 90, {3})
    assert curve.value[-1] == pytest.approx((9 + 5 + 1) / 3)
    assert curve.low[-1] == pytest.approx(1 + 4 / 3, abs=1.4) and curve.high[-1] > curve.value[-1]


@pytest.mark.whole
def test_on_the_wall_clock_a_curve_is_of_the_runs_that_are_there(tmp_path: Path) -> None:
    """Seeds one after the other on a busy machine share no time; before, the curve was a single point."""
    rows = {"a": (10, 20), "b": (300, 310), "c": (305, 400)}
    runs = [_run(tmp_path / name, *((steps, steps / 100) for steps in ends)) for name, ends in rows.items()]
    drawn = series_of(RunGroup("g", tuple(runs)), RETURN, 1)
    curve = curve_of(drawn.series, "wall_s")
    assert (curve.x[0], curve.x[-1]) == (1.0, 40.0) and {*curve.there.tolist()} == {0, 1, 2}
    for x, value, count in ((1.0, 0.1, 1), (2.0, 0.2, 1), (30.5, 3.05, 2), (40.0, 4.0, 1)):
        point = curve.x.tolist().index(x)
        assert (curve.value[point], curve.there[point]) == (pytest.approx(value), count)
    alone = curve.there == 1
    assert np.array_equal(curve.low[alone], curve.value[alone]) and np.array_equal(
        curve.high[alone], curve.value[alone]
    )
    assert np.isnan(curve.value[curve.there == 0]).all()
    assert curve_of(drawn.series, "env_steps").there.tolist() == curve.there.tolist(), "they share no env steps either"
    plot = make_plot([RunGroup("g", tuple(runs))])
    write_csv(plot, tmp_path / "points.csv")
    with (tmp_path / "points.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["runs"] for line in lines} == {"1", "2"} and all(line["value"] != "nan" for line in lines)
    draw(plot, tmp_path / "with.svg")


def test_episodes_of_scores_are_those_of_their_version(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    rows = [{"wall_s": n, "env_steps": 10 * n, "episodes": n * n, RETURN: float(n)} for n in (1, 2, 3)]
    lines = [json.dumps(row) for row in (*rows, {"wall_s": 4, "env_steps": 20, EVALUATED: 7.0})]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    plot = make_plot([group_of(str(run))], columns=("episodes",))
    found = {line.metric: (line.curve.x[0], line.curve.x[-1]) for line in plot.lines}
    assert found == {RETURN: (1, 9), EVALUATED: (4, 4)}
    without = _run(tmp_path / "without", (0, 1.0), (10, 2.0))
    with raises(ConfigError, key=("--x",), value="episodes"):
        make_plot([group_of(str(without))], columns=("episodes",))


@pytest.mark.whole
def test_last_values_have_the_interval_of_the_runs(tmp_path: Path) -> None:
    runs = [_run(tmp_path / f"seed-{n}", (100, 3.0 * n), (0, 0.0), (90, 99.0)) for n in (1, 2, 3)]
    plot = make_plot([RunGroup("g", tuple(runs))], (RETURN, "env_steps"), columns=("env_steps", FINAL))
    (line,) = (line for line in plot.lines if (line.axis, line.metric) == (FINAL, RETURN))
    assert [values.tolist() for _, values in line.marks] == [[3.0], [6.0], [9.0]]
    scores = np.array([[3.0], [6.0], [9.0]])
    bounds = interval(scores, resamples(3, 1))
    assert (line.curve.value[0], line.curve.low[0], line.curve.high[0]) == (6.0, *bounds)
    assert {(line.panel, line.axis) for line in plot.lines} == {*product((RETURN, "env_steps"), ("env_steps", FINAL))}
    draw(plot, tmp_path / "plot.svg")
    write_csv(plot, tmp_path / "plot.csv")
    assert f"g,{RETURN},final,,6.0," in (tmp_path / "plot.csv").read_text()


def test_scores_that_come_late_are_put_in_order(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", (0, 0.0), (200, 2.0), (100, 1.0), name=EVALUATED)
    curve = curve_of(series_of(RunGroup("g", (run,)), EVALUATED, 1).series, "env_steps")
    np.testing.assert_allclose(curve.value, curve.x / 100)


def test_wall_clock_is_cumulative_over_the_attempts_of_a_run(tmp_path: Path) -> None:
    rows: list[tuple[float, int, str]] = [
        *((2.0, 10, RETURN), (8.0, 40, RETURN), (7.9, 40, "worker_0_env_steps_per_s"), (9.0, 40, EVALUATED)),
        *((1.0, 40, EVALUATED), (2.0, 30, RETURN), (5.0, 60, RETURN), (4.0, 50, EVALUATED)),
        *((2.5, 60, RETURN), (3.0, 80, RETURN)),
    ]
    lines = [json.dumps({"wall_s": wall_s, "env_steps": steps, name: 1.0}) for wall_s, steps, name in rows]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    group = RunGroup("g", (tmp_path,))
    (trained,), (scored,) = (series_of(group, name, 1).series for name in (RETURN, EVALUATED))
    assert trained.wall_s.tolist() == [2.0, 8.0, 11.0, 14.0, 16.5, 17.0]
    assert scored.wall_s.tolist() == [9.0, 10.0, 13.0]


def test_a_score_too_shows_that_an_attempt_begins(tmp_path: Path) -> None:
    rows = [(2.5, 10, RETURN), (2.7, 10, EVALUATED), (1.5, 10, EVALUATED), (2.4, 30, RETURN), (2.6, 30, EVALUATED)]
    lines = [json.dumps({"wall_s": wall_s, "env_steps": steps, name: 1.0}) for wall_s, steps, name in rows]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    found = [series_of(RunGroup("g", (tmp_path,)), name, 1).series[0].wall_s for name in (RETURN, EVALUATED)]
    assert found[0] == pytest.approx([2.5, 5.1]) and found[1] == pytest.approx([2.7, 4.2, 5.3])


def test_the_memory_for_a_series_does_not_depend_on_the_other_metrics(tmp_path: Path) -> None:
    others = {f"other_{k}": 1.5 for k in range(40)}
    lines = (json.dumps({"wall_s": float(k), "env_steps": k, RETURN: 1.0, **others}) for k in range(4000))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    tracemalloc.start()
    try:
        (series,) = series_of(RunGroup("g", (tmp_path,)), RETURN, 1).series
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(series.values) == 4000
    assert peak < 2_000_000


def test_short_series_are_a_point_or_named(tmp_path: Path) -> None:
    runs = [_run(tmp_path / f"seed-{n}", (100, float(n))) for n in (1, 2, 3)]
    drawn = series_of(RunGroup("g", tuple(runs)), RETURN, 1)
    curve = curve_of(drawn.series, "env_steps")
    assert (curve.x.tolist(), curve.value.tolist(), drawn.left_out) == ([100.0], [2.0], ())
    _run(runs[0], (200, 7.0))
    empty = _run(tmp_path / "seed-4")
    drawn = series_of(RunGroup("g", (*runs, empty)), RETURN, 1)
    assert [series.run for series in drawn.series] == [runs[0]]
    assert [text.partition(": ")[2] for text in drawn.left_out] == [
        f"no row with {RETURN} yet",
        f"a single row with {RETURN}",
        f"a single row with {RETURN}",
    ]


def test_a_plot_has_the_evaluated_return_and_the_env(tmp_path: Path) -> None:
    run = _run(tmp_path / "a", (0, 1.0), (100, 2.0))
    _run(run, (50, 3.0), name=EVALUATED)
    plot = make_plot([group_of(str(run))])
    assert plot.title == "CartPole-v1"
    assert [(line.metric, line.axis) for line in plot.lines] == [
        (name, axis) for name in (RETURN, EVALUATED) for axis in ("env_steps", "wall_s")
    ]
    with raises(
        ConfigError,
        key=(),
        what="metric 'eval_return_men' is not in metrics.jsonl of the given runs",
        fix=f"did you mean '{EVALUATED}'?",
    ):
        make_plot([group_of(str(run))], ("eval_return_men",))
    empty = _run(tmp_path / "empty")
    with raises(ConfigError, key=(), what="metrics.jsonl of the given runs is empty"):
        make_plot([group_of(str(empty))])


def test_smoothed() -> None:
    values = np.array([0.0, 3.0, 6.0, 0.0, 3.0])
    np.testing.assert_allclose(smoothed(values, 3), [1.5, 3.0, 3.0, 3.0, 1.5])
    np.testing.assert_allclose(smoothed(values, 2), [1.5, 4.5, 3.0, 1.5, 3.0])
    np.testing.assert_allclose(smoothed(values, 100), [2.4] * 5)
    assert smoothed(values, 1) is values


@pytest.mark.whole
def test_few_scores_of_a_run_are_marked(tmp_path: Path) -> None:
    few, many = _run(tmp_path / "few", (0, 1.0), (100, 2.0)), _run(tmp_path / "many", (0, 1.0), (100, 2.0))
    _run(few, (0, -500.0), (100, -85.0), name=EVALUATED)
    _run(many, *((n, float(n)) for n in range(MARKED)), name=EVALUATED)
    plots = {run.name: make_plot([group_of(str(run))]) for run in (few, many)}
    marks = {(line.metric, line.axis): line.marks for line in plots["few"].lines}
    for axis, x in (("env_steps", [0, 100]), ("wall_s", [0, 10])):
        ((at, values),) = marks[EVALUATED, axis]
        assert at.tolist() == x and values.tolist() == [-500.0, -85.0]
        assert not marks[RETURN, axis]
    assert not any(line.marks for line in plots["many"].lines)
    both = make_plot([RunGroup("both", (few, few))])
    assert not any(line.marks for line in both.lines), "the curve is not that of one run"

    plot = plots["few"]
    plain = replace(plot, lines=tuple(replace(line, marks=()) for line in plot.lines))
    shapes = []
    for name, drawn in (("with", plot), ("without", plain)):
        draw(drawn, tmp_path / f"{name}.svg")
        shapes.append((tmp_path / f"{name}.svg").read_text().count("<use "))
    assert shapes[0] - shapes[1] == 4, "two scores in two panels"


def test_a_run_without_env_steps_is_drawn_by_its_updates(tmp_path: Path) -> None:
    rows = [{"wall_s": 1.0 + n, "env_steps": 0, "updates": 100.0 * n, EVALUATED: float(n)} for n in (1, 2, 3)]
    (tmp_path / "config.json").write_text(json.dumps({"config": {"env": {"id": "CartPole-v1"}}}))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plot = make_plot([RunGroup("offline", (tmp_path,))], (EVALUATED,))
    lines = {line.axis: line.curve.x for line in plot.lines}
    assert (lines["env_steps"][0], lines["env_steps"][-1], plot.has_updates) == (100.0, 300.0, True)
