"""The live view as rich draws it, on terminals of 80x24 and 200x50, against stored pictures in text.

`python -m tests.views.test_tables` writes the snapshots, and pictures of them for the docs.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from zmqrl.views.base import aligned, host_cells
from zmqrl.views.header import header
from zmqrl.views.tables import render

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = ((80, 24), (200, 50))
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def _worker(index: int, **further: Any) -> dict[str, Any]:
    row = {
        "host": "local",
        "index": index,
        "state": "ready",
        "env_steps": 50_883,
        "env_steps_per_s": 4177.66,
        "episodes": 1_204,
        "wait_fraction": 0.544,
        "restarts": 0,
    }
    return {**row, **further}


def _host(name: str, **further: Any) -> dict[str, Any]:
    row = {
        "host": name,
        "state": "ready",
        "workers": 8,
        "ready": 8,
        "env_steps_per_s": 41_776.0,
        "cpu": 7.9,
        "pss_mb": 2_310.0,
        "restarts": 0,
        "ms": 0.4,
        "last_s": 1.0,
        "cause": "",
    }
    return {**row, **further}


ONE_MACHINE: dict[str, Any] = {
    "run_id": "cartpole-ppo-8ef4a1",
    "run_dir": "/home/ada/runs/cartpole-ppo-20261124-181512",
    "name": "cartpole-ppo",
    "mode": "sync",
    "phase": "running",
    "wall_s": 12.4,
    "progress": 0.407,
    "eta_s": 17.9,
    "stop_at_return": 475.0,
    "env_steps": 101_765,
    "total_env_steps": 250_000,
    "returns": [20.0, 31.0, 62.0, 90.0, 140.0, 182.4],
    "score": {"return_mean": 340.5},
    "bottleneck": "learner",
    "slowest": None,
    "metrics": {
        "env_steps_per_s": 8355.3,
        "updates_per_s": 654.2,
        "policy_lag_mean": 0.0,
        "policy_lag_max": 0.0,
        "leases": 4,
        "wait_fraction": 0.1,
        "train_return_mean_100": 182.4,
        "loss/policy": -0.00324,
        "loss/value": 2.826,
        "entropy": 0.5291,
        "approx_kl": 0.00812,
        "clip_fraction": 0.0196,
        "explained_variance": 0.818,
        "grad_norm": 0.3076,
        "learning_rate": 0.000593,
    },
    "workers": [_worker(0), _worker(1, state="restarting", restarts=1, env_steps_per_s=0.0)],
    "problems": ["local/worker-1: signal SIGKILL\n  log: logs/local-worker-1.log\n  restarting in 0.5 s"],
    "severities": ["warning"],
}
LAB: dict[str, Any] = {
    **ONE_MACHINE,
    "run_id": "minatar-breakout-ppo-0c93be",
    "mode": "async",
    "wall_s": 100_000.0,
    "progress": 0.2431,
    "eta_s": 311_000.0,
    "stop_at_return": None,
    "env_steps": 1_215_500_000,
    "total_env_steps": 5_000_000_000,
    "bottleneck": "workers",
    "slowest": "node02 (worker 3), 6x slower",
    "hosts": [
        *(_host(f"node{number:02d}") for number in range(1, 7)),
        _host("node07", state="lost", ready=0, env_steps_per_s=0.0, last_s=45.0, cause="no message for 45 s; " * 4),
        _host("gpu-a", workers=0, ready=0, env_steps_per_s=0.0, cpu=None, pss_mb=None, ms=None),
    ],
}
RUNS = {"machine": ONE_MACHINE, "lab": LAB}


def _drawn(status: dict[str, Any], width: int, height: int, footer: bool = True) -> Console:
    terminal: dict[str, Any] = {"force_terminal": True, "color_system": "truecolor", "record": True}
    console = Console(file=io.StringIO(), width=width, height=height, **terminal)
    console.print(render(status, f"{status['run_dir']}   Ctrl-C: stop with a checkpoint" if footer else ""))
    return console


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("name", RUNS)
def test_snapshot(name: str, size: tuple[int, int]) -> None:
    text = _drawn(RUNS[name], *size).export_text()
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines == (SNAPSHOTS / f"{name}-{size[0]}x{size[1]}.txt").read_text().splitlines()
    assert len(lines) < size[1] and max(map(len, lines)) <= size[0]
    assert RUNS[name]["run_id"] in lines[0]
    if name == "lab":
        assert all(f"node{number:02d} " in text for number in range(1, 8)) and "and" not in text


@pytest.mark.parametrize("name", RUNS)
def test_the_header_has_two_lines_that_keep_their_places_as_numbers_grow(name: str) -> None:
    ends = set()
    for progress, wall_s, eta_s in ((0.0, 1.0, None), (0.5, 4000.0, 3.0), (1.0, 9e5, 2e6)):
        steps = int(RUNS[name]["total_env_steps"] * progress)
        grown = {**RUNS[name], "progress": progress, "wall_s": wall_s, "eta_s": eta_s, "env_steps": steps}
        lines = header(grown, 80)
        assert len(lines) == 2 and all(len(line) <= 80 for line in lines)
        assert RUNS[name]["run_id"] in lines[0].plain
        ends.add(len(lines[0]))
    assert ends == {80}


def test_a_run_id_is_never_cut() -> None:
    long = {**ONE_MACHINE, "run_id": "a-run-with-a-name-of-the-lab-and-of-its-experiment-that-is-long-8ef4a1"}
    for width in (80, 60, 40):
        text = _drawn(long, width, 24).export_text()
        joined = "".join(text.splitlines()[:4]).replace(" ", "")
        assert long["run_id"] in joined, text


def test_the_estimate_is_an_upper_bound_with_a_return_to_stop_at() -> None:
    assert "eta at most 0:00:17" in header(ONE_MACHINE, 80)[1].plain
    assert "eta 0:00:17" in header({**ONE_MACHINE, "stop_at_return": None}, 80)[1].plain
    assert "eta 3 d 14 h" in header(LAB, 80)[1].plain


def test_many_rows_leave_room_and_messages_come_last() -> None:
    many = {**ONE_MACHINE, "workers": [_worker(index) for index in range(200)]}
    lines = _drawn(many, 80, 24).export_text().splitlines()
    assert len(lines) <= 23 and any("and 18" in line and "more" in line for line in lines)
    text = _drawn(ONE_MACHINE, 80, 24, footer=False).export_text()
    assert text.rstrip().endswith("restarting in 0.5 s")


def main() -> None:
    for name, status in RUNS.items():
        for width, height in SIZES:
            text = _drawn(status, width, height).export_text()
            lines = [line.rstrip() for line in text.splitlines()]
            (SNAPSHOTS / f"{name}-{width}x{height}.txt").write_text("\n".join(lines) + "\n")
    _drawn(ONE_MACHINE, 80, 24).save_svg(str(PICTURES / "live.svg"), title="zmqrl train cartpole-ppo")


def test_a_figure_of_another_type_is_unknown() -> None:
    cells = host_cells({"host": "a", "state": "ready", "cpu": "x", "env_steps_per_s": [1], "cause": 5})
    assert cells == ["a", "ready", "-", "-", "-", "-", "-", "-", "-", "5"]


def test_a_cell_is_one_line_that_a_terminal_can_print() -> None:
    rows = [["NAME", "N"], ["a\nb", "1"], ["\x1b]0;x\x07", "10"]]
    assert aligned(rows, ("N",)) == ["NAME           N", r"a\nb           1", r"\x1b]0;x\x07  10"]


if __name__ == "__main__":
    sys.exit(main())
