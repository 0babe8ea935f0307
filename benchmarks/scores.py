"""Scores of presets: `python -m benchmarks.scores --out FILE [names]`.

A resumable queue: each finished run is one JSON line of FILE with its commit; what FILE has is not run again. Each row
of `TABLE` is trained with seeds 1 to n to its limit of env steps. The version that the evaluator called best plays 100
greedy episodes on fresh seeds; its mean is the score. The mean of the last 100 training episodes is beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EPISODES, FRESH_SEED = 100, 1_000_003


@dataclass(frozen=True)
class Row:
    """A preset, and the bar for the median of the scores of its seeds."""

    preset: str
    env_steps: int
    bar: float
    reference: str
    seeds: int = 3


TABLE: tuple[Row, ...] = (
    Row("pendulum-sac", 20_000, -200.0, "rl-zoo -157.0"),
    Row("pendulum-td3", 20_000, -200.0, "rl-zoo -151.9"),
    Row("cartpole-ppo", 500_000, 475.0, "rl-zoo 500.0"),
    Row("cartpole-dqn", 500_000, 475.0, "CleanRL 488.7"),
    Row("cartpole-pqn", 500_000, 475.0, "threshold of gymnasium"),
    Row("cartpole-qrdqn", 500_000, 450.0, "rl-zoo 500.0"),
    Row("cartpole-memory-ppo_gru", 300_000, 450.0, "threshold of gymnasium for the whole state: 475"),
    Row("acrobot-ppo", 500_000, -100.0, "rl-zoo -73.5"),
    Row("acrobot-dqn", 500_000, -100.0, "rl-zoo -76.6"),
    Row("acrobot-qrdqn", 500_000, -100.0, "rl-zoo -69.1"),
    Row("acrobot-pqn", 500_000, -110.0, "threshold of gymnasium: -100"),
    Row("lunarlander-dqn", 400_000, 200.0, "SLM-Lab 265.9"),
    Row("lunarlander-ppo", 1_000_000, 200.0, "rl-zoo 242.1"),
)


@dataclass(frozen=True)
class Result:
    """Of one run."""

    commit: str
    preset: str
    env_steps: int
    seed: int
    score: float
    score_std: float
    best_version: str
    train_return_mean_100: float
    wall_s: float


def train(row: Row, seed: int, commit: str) -> Result:
    """One run to its end, and the 100 episodes of its best version."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder, "run"))
        settings = [f"run.total_env_steps={row.env_steps}", f"run.seed={seed}", "run.stop_at_return=null"]
        words = [word for setting in settings for word in ("--set", setting)]
        command("train", row.preset, *words, "--workers", "2", "--plain", "--run-dir", run)
        summary = json.loads(Path(run, "summary.json").read_text())
        played = json.loads(
            command("eval", run, "--episodes", str(EPISODES), "--seed", str(FRESH_SEED + seed), "--json")
        )
    return Result(
        commit,
        row.preset,
        summary["env_steps"],
        seed,
        played["return_mean"],
        played["return_std"],
        str(played["version"]),
        summary["train_return_mean_100"],
        summary["wall_s"],
    )


def command(*words: str) -> str:
    """What `zmqrl WORDS` prints; an error when it fails."""
    done = subprocess.run([sys.executable, "-m", "zmqrl", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"zmqrl {' '.join(words)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def finished(path: Path) -> list[Mapping[str, Any]]:
    """Results that FILE has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(results: Sequence[Mapping[str, Any]], rows: Sequence[Row] = TABLE) -> str:
    """Every seed of every row, in Markdown."""
    lines = ["| preset | env steps | scores | median | bar | last 100 training episodes | reference |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        found = sorted((r for r in results if r["preset"] == row.preset), key=lambda r: r["seed"])
        if not found:
            continue
        scores = [r["score"] for r in found]
        trained = ", ".join(f"{r['train_return_mean_100']:.1f}" for r in found)
        shown, median = ", ".join(f"{score:.1f}" for score in scores), statistics.median(scores)
        verdict = f"{row.bar:g}: {'met' if median >= row.bar else 'MISSED'}"
        cells = (row.preset, f"{row.env_steps:,}", shown, f"{median:.1f}", verdict, trained, row.reference)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", help="rows of the table; default: all")
    parser.add_argument("--out", type=Path, required=True, help="file of results, one JSON line each")
    parser.add_argument("--seeds", type=int, default=None, help="fewer or more seeds than the table")
    given = parser.parse_args(words)
    known = {row.preset for row in TABLE}
    if unknown := set(given.presets) - known:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    rows = [row for row in TABLE if not given.presets or row.preset in given.presets]
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    for row in rows:
        for seed in range(1, 1 + (given.seeds or row.seeds)):
            if any(r["preset"] == row.preset and r["seed"] == seed for r in finished(given.out)):
                continue
            result = train(row, seed, git.stdout.strip())
            with given.out.open("a") as out:
                out.write(json.dumps(asdict(result)) + "\n")
            print(f"{row.preset} seed {seed}: {result.score:.1f}", flush=True)
    print(table(finished(given.out), rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
