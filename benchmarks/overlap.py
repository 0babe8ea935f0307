"""What pipelined gains over sync: `overlap.py [--preset P] [--pairs N] [--seconds S] [--return X] [--set KEY=VALUE]`.

Both modes take turns. In sync the learner waits while the workers act (`wait_fraction`), so the sync run of a pair
shows how long acting and the update take. The bound of pipelined is a round of the longer of the two. With `--return`
sync, pipelined and async train until this mean return instead, each with the same seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

MODES = ("sync", "pipelined", "async")


class Run(NamedTuple):
    """A run; the figures of a round are means without the start."""

    command_s: float
    summary: dict[str, Any]
    rounds_per_s: float
    waited: float
    """Share of a round in which the learner waits for segments."""


def train(given: argparse.Namespace, mode: str, seed: int, *settings: str) -> Run:
    """Run the command once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "zmqrl", "train", given.preset, "--plain", "--mode", mode]
        command += ["--run-dir", f"{folder}/run", "--workers", str(given.workers), "--seed", str(seed)]
        for setting in ("evaluator.episodes=0", *settings, *given.settings):
            command += ["--set", setting]
        begun = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        command_s = time.monotonic() - begun
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        lines = Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    first, *rows = [row for row in map(json.loads, lines) if row.get("wait_fraction") is not None]
    rounds_per_s = (rows[-1]["version"] - first["version"]) / (rows[-1]["wall_s"] - first["wall_s"])
    return Run(command_s, summary, rounds_per_s, statistics.mean(row["wait_fraction"] for row in rows))


def compare_rates(given: argparse.Namespace) -> None:
    """Print rounds per second of alternating runs."""
    ends = ("run.stop_at_return=null", "run.total_env_steps=1000000000", f"run.max_wall_s={given.seconds}")
    gains, shares = list[float](), list[float]()
    for pair in range(given.pairs):
        found = {mode: train(given, mode, pair + 1, *ends) for mode in MODES[:2][:: -1 if pair % 2 else 1]}
        sync, pipelined = (found[mode] for mode in MODES[:2])
        acting, update = sync.waited, 1 - sync.waited
        gains.append(pipelined.rounds_per_s / sync.rounds_per_s)
        shares.append(gains[-1] * max(acting, update))
        print(
            f"sync {sync.rounds_per_s:.1f} rounds/s, acting {1000 * acting / sync.rounds_per_s:.2f} ms, update "
            f"{1000 * update / sync.rounds_per_s:.2f} ms; pipelined {pipelined.rounds_per_s:.1f}: {gains[-1]:.2f} x, "
            f"bound {1 / max(acting, update):.2f} x, {100 * shares[-1]:.0f} % of it",
            flush=True,
        )
    print(f"median: {statistics.median(gains):.2f} x sync, {100 * statistics.median(shares):.0f} % of the bound")


def compare_learning(given: argparse.Namespace) -> None:
    """Print env steps and seconds until the return, per seed and mode."""
    found: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for seed in range(1, given.pairs + 1):
        for mode in MODES:
            run = train(given, mode, seed, f"run.stop_at_return={given.goal}")
            found[mode].append(run)
            print(f"seed {seed}, {mode}: {_effort([run])}, {run.summary['train_return_mean_100']:.1f}", flush=True)
    for mode, runs in found.items():
        print(f"median, {mode}: {_effort(runs)}")


def _effort(runs: list[Run]) -> str:
    env_steps = statistics.median(run.summary["env_steps"] for run in runs)
    train_s = statistics.median(run.summary["wall_s"] for run in runs)
    return f"{env_steps:,} env steps, {train_s:.1f} s, command {statistics.median(r.command_s for r in runs):.1f} s"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="cartpole-ppo")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--return", type=float, dest="goal", help="mean return of 100 episodes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args()
    (compare_rates if given.goal is None else compare_learning)(given)


if __name__ == "__main__":
    main()
