"""Scores of presets: `python -m benchmarks.scores [names]`.

A resumable queue: each finished run is one JSON line of benchmarks/scores.jsonl (`--out FILE`) with its commit; what
the file has is not run again. The shortest rows are first, so that an interrupted queue has most of them.
docs/scores.md (`--page FILE`) and what `zmqrl presets` shows (`--package FILE`) are made of it. Each row of `TABLE` is
trained with seeds 1 to n to its limit of env steps. The version that the evaluator called best plays 100 greedy
episodes on fresh seeds; its mean is the score. That of the last version, and the mean of the last 100 training
episodes, are printed too. A row with `yardstick` is measured by runs of Stable-Baselines3 on the same machine
(`pip install '.[bench]'`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "scores.jsonl", ROOT / "docs" / "scores.md"
OF_PACKAGE = ROOT / "zmqrl" / "presets" / "scores.json"
"""What `zmqrl presets` shows of the results."""
HEAD = (
    "# Scores of the presets\n\n"
    "A score is the mean return of 100 greedy episodes on fresh seeds, played by the version that the evaluator called "
    "best. Each preset is trained with three seeds unless the table shows another number, to its number of env steps "
    "and without `stop_at_return`. The bar is for the median of the seeds. `median` is that of the scores; for Pong it "
    "is the mean return of the last 100 training episodes. `last version` is the mean return of the last version in "
    "the same 100 greedy episodes; `-`: it was not measured. The policy explores in training episodes. Commits, "
    "deviations and times of the runs are in `benchmarks/scores.jsonl`. The minutes that `zmqrl presets` shows are "
    "medians of these times; some runs shared the machine with others.\n\n"
    "`python -m benchmarks.scores [PRESET ...]` runs what is not in that file yet, and writes this page. Delete the "
    "lines of a preset to measure it again.\n\n"
)
EPISODES, FRESH_SEED = 100, 1_000_003
COMPILED = ("learner.executor=compiled",)
YARDSTICK = """
import json, sys
import gymnasium, torch
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy
env, steps, seed, episodes, fresh = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
model = SAC("MlpPolicy", gymnasium.make(env), seed=seed, learning_starts=10_000, device="cpu").learn(steps)
played = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(env))
played.reset(seed=fresh)
mean, deviation = evaluate_policy(model, played, n_eval_episodes=episodes)
print(json.dumps({"return_mean": float(mean), "return_std": float(deviation)}))
"""
"""SAC of Stable-Baselines3 with its defaults, and its greedy episodes."""


@dataclass(frozen=True)
class Row:
    """A preset, and the bar for the median of its seeds."""

    preset: str
    env_steps: int
    bar: float | None
    """None: only printed. With `yardstick`: a share of its lowest score."""
    reference: str
    seeds: int = 3
    settings: tuple[str, ...] = ()
    """For `--set`."""
    measure: Literal["score", "train_return_mean_100"] = "score"
    """What the bar is for."""
    yardstick: str | None = None
    """An env that SAC of Stable-Baselines3 learns for as many env steps, with seeds 1 and 2."""
    minutes: float = 10.0
    """Estimate of a run, while it has no result."""


TABLE: tuple[Row, ...] = (
    Row("pendulum-sac", 20_000, -200.0, "rl-zoo -157.0"),
    Row("pendulum-td3", 20_000, -200.0, "rl-zoo -151.9"),
    Row("pendulum-tqc", 20_000, -200.0, "threshold of pendulum-sac", minutes=9),
    Row("pendulum-ddpg", 20_000, -200.0, "rl-zoo -152.1"),
    Row("pendulum-mpo", 20_000, -200.0, "threshold of pendulum-sac", minutes=8),
    Row("cartpole-sac", 100_000, 475.0, "threshold of gymnasium"),
    Row("cartpole-ppo", 500_000, 475.0, "rl-zoo 500.0"),
    Row("cartpole-dqn", 500_000, 475.0, "CleanRL 488.7"),
    Row("cartpole-pqn", 500_000, 475.0, "threshold of gymnasium"),
    Row("cartpole-qrdqn", 500_000, 450.0, "rl-zoo 500.0"),
    Row("cartpole-c51", 100_000, 475.0, "CleanRL 481.2 (500,000 env steps)", minutes=2.5),
    Row("cartpole-rainbow", 100_000, 475.0, "threshold of gymnasium", minutes=4),
    Row("cartpole-rainbow-qrdqn", 100_000, 475.0, "threshold of gymnasium", minutes=4),
    Row("cartpole-iqn", 100_000, 475.0, "threshold of gymnasium", minutes=2.5),
    Row("cartpole-munchausen-dqn", 100_000, 475.0, "threshold of gymnasium", minutes=1.5),
    Row("cartpole-ape_x-dqn", 250_000, 450.0, "RLlib: 150 in CartPole-v0", minutes=5),
    Row("cartpole-memory-ppo_gru", 300_000, 450.0, "threshold of gymnasium for the whole state: 475", seeds=5),
    Row("cartpole-memory-r2d2", 300_000, 400.0, "RLlib: 150 after 1M", minutes=9),
    Row("cartpole-memory-ppo", 300_000, 450.0, "rl-zoo ppo_lstm, CartPoleNoVel-v1 500.0", minutes=3),
    Row("cartpole-a2c", 500_000, 475.0, "rl-zoo 500.0", minutes=2),
    Row("cartpole-impala", 500_000, 475.0, "RLlib 450 within 2M", minutes=1),
    Row("cartpole-vmpo", 500_000, 475.0, "threshold of gymnasium", minutes=2),
    Row("cartpole-reinforce", 1_500_000, 400.0, "threshold of gymnasium: 475", minutes=3),
    Row("mountaincar-rnd-ppo", 500_000, -150.0, "rl-zoo -110.4; CleanRL without RND: -200.0", minutes=3),
    Row("acrobot-ppo", 500_000, -100.0, "rl-zoo -73.5"),
    Row("acrobot-dqn", 500_000, -100.0, "rl-zoo -76.6"),
    Row("acrobot-qrdqn", 500_000, -100.0, "rl-zoo -69.1", settings=COMPILED),
    Row("acrobot-pqn", 500_000, -110.0, "threshold of gymnasium: -100"),
    Row("lunarlander-dqn", 400_000, 200.0, "SLM-Lab 265.9"),
    Row("lunarlander-ppo", 1_000_000, 200.0, "rl-zoo 242.1"),
    Row(
        "halfcheetah-sac",
        100_000,
        0.8,
        "SAC of Stable-Baselines3",
        settings=COMPILED,
        yardstick="HalfCheetah-v5",
    ),
    Row("minatar-breakout-ppo", 2_000_000, 10.0, "Young & Tian: AC(lambda) 10 at 1M", seeds=1),
    Row("minatar-breakout-dqn", 1_000_000, None, "Young & Tian: DQN 9 at 1M", seeds=1),
    Row("minatar-breakout-pqn", 2_000_000, None, "Young & Tian: AC(lambda) 10 at 1M", seeds=1),
    Row("spread-ppo", 2_000_000, None, "uniformly random actions: -27.0 (200 episodes)", seeds=1),
    Row(
        "pong-ppo",
        10_000_000,
        -15.0,
        "40 minutes of this machine's CPU",
        seeds=1,
        settings=("run.max_wall_s=2400",),
        measure="train_return_mean_100",
    ),
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
    train_return_mean_100: float | None
    wall_s: float
    last_score: float | None = None
    """Score of the last version; None: not measured."""


def train(row: Row, seed: int, commit: str) -> Result:
    """One run to its end, and the 100 episodes of its best version and of its last."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder, "run"))
        settings = [f"run.total_env_steps={row.env_steps}", f"run.seed={seed}", "run.stop_at_return=null"]
        settings += row.settings
        words = [word for setting in settings for word in ("--set", setting)]
        command("train", row.preset, *words, "--workers", "2", "--plain", "--run-dir", run)
        summary = json.loads(Path(run, "summary.json").read_text())
        words = ["eval", run, "--episodes", str(EPISODES), "--seed", str(FRESH_SEED + seed), "--json", "--checkpoint"]
        played, last = (json.loads(command(*words, checkpoint)) for checkpoint in ("best", "last"))
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
        last["return_mean"],
    )


def minutes_of(row: Row, results: Sequence[Mapping[str, Any]]) -> float:
    """Median of the runs that were done, else the estimate."""
    measured = [r["wall_s"] / 60 for r in results if r["preset"] == row.preset]
    return float(statistics.median(measured)) if measured else row.minutes


def train_yardstick(row: Row, seed: int, commit: str) -> Result:
    """The same number of env steps by Stable-Baselines3."""
    assert row.yardstick is not None
    begun = time.monotonic()
    words = [row.yardstick, row.env_steps, seed, EPISODES, FRESH_SEED + seed]
    done = subprocess.run([sys.executable, "-c", YARDSTICK, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the yardstick of {row.preset}: exit {done.returncode}\n{done.stderr[-2000:]}")
    played = json.loads(done.stdout.splitlines()[-1])
    wall_s = round(time.monotonic() - begun, 2)
    return Result(commit, name_of_yardstick(row), row.env_steps, seed, *played.values(), "last", None, wall_s)


def name_of_yardstick(row: Row) -> str:
    """In FILE, in the place of a preset."""
    return f"stable-baselines3 {row.yardstick}"


def command(*words: str) -> str:
    """What `zmqrl WORDS` prints; an error when it fails."""
    done = subprocess.run([sys.executable, "-m", "zmqrl", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"zmqrl {' '.join(words)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def commit_of() -> str:
    """The commit of the checkout, `-dirty` where files differ from it."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return git.stdout.strip()


def finished(path: Path) -> list[Mapping[str, Any]]:
    """Results that FILE has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(results: Sequence[Mapping[str, Any]], rows: Sequence[Row] = TABLE) -> str:
    """Every seed of every row, in Markdown."""
    lines = ["| preset | env steps | scores | median | bar | last version | last 100 training episodes | reference |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        found = sorted((r for r in results if r["preset"] == row.preset), key=lambda r: r["seed"])
        if not found:
            continue
        trained = ", ".join(f"{r['train_return_mean_100']:.1f}" for r in found)
        shown = ", ".join(f"{r['score']:.1f}" for r in found)
        lasts = [r.get("last_score") for r in found]
        last = ", ".join("-" if score is None else f"{score:.1f}" for score in lasts) if {*lasts} != {None} else "-"
        bar, reference = _bar(row, results)
        median = statistics.median(r[row.measure] for r in found)
        verdict = "-" if bar is None else f"{bar:g}: {'met' if median >= bar else 'MISSED'}"
        if len(found) < row.seeds:
            verdict += f" ({len(found)} of {row.seeds} seeds)"
        cells = (row.preset, f"{row.env_steps:,}", shown, f"{median:.1f}", verdict, last, trained, reference)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def of_package(results: Sequence[Mapping[str, Any]], rows: Sequence[Row] = TABLE) -> Mapping[str, Mapping[str, float]]:
    """Results of each preset: median score, the env steps after which it was measured, median time in minutes."""
    found = {row: [r for r in results if r["preset"] == row.preset] for row in rows}
    return {
        row.preset: {
            "score": round(statistics.median(r["score"] for r in runs), 1),
            "scored_env_steps": row.env_steps,
            "minutes": round(minutes_of(row, runs), 1),
        }
        for row, runs in found.items()
        if runs
    }


def _bar(row: Row, results: Sequence[Mapping[str, Any]]) -> tuple[float | None, str]:
    """And the reference that it is from."""
    if row.yardstick is None:
        return row.bar, row.reference
    scores = [r["score"] for r in results if r["preset"] == name_of_yardstick(row)]
    share = row.bar or 1.0
    found = ", ".join(f"{score:.1f}" for score in scores)
    return (
        round(share * min(scores), 1) if scores else None
    ), f"{row.reference}: {found} (bar: {share:g} of the lower)"


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", help="rows of the table; default: all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results, one JSON line each")
    parser.add_argument("--page", type=Path, default=PAGE, help="the table of all results in Markdown")
    parser.add_argument("--package", type=Path, default=OF_PACKAGE, help="what `zmqrl presets` shows, as JSON")
    parser.add_argument("--seeds", type=int, default=None, help="fewer or more seeds than the table")
    parser.add_argument("--no-runs", action="store_true", help="only write the page")
    given = parser.parse_args(words)
    known = {row.preset for row in TABLE}
    if unknown := set(given.presets) - known:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    rows = [row for row in TABLE if not given.presets or row.preset in given.presets]
    rows.sort(key=lambda row: minutes_of(row, finished(given.out)))
    commit = commit_of()
    jobs = [(row.preset, seed, row, train) for row in rows for seed in range(1, 1 + (given.seeds or row.seeds))]
    jobs += [(name_of_yardstick(row), seed, row, train_yardstick) for row in rows if row.yardstick for seed in (1, 2)]
    for name, seed, row, measured in () if given.no_runs else jobs:
        if not any(r["preset"] == name and r["seed"] == seed for r in finished(given.out)):
            result = measured(row, seed, commit)
            with given.out.open("a") as out:
                out.write(json.dumps(asdict(result)) + "\n")
            print(f"{name} seed {seed}: {result.score:.1f}", flush=True)
    given.page.write_text(HEAD + table(finished(given.out)) + "\n")
    given.package.write_text(json.dumps(of_package(finished(given.out)), indent=1) + "\n")
    print(table(finished(given.out), rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
