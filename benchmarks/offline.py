"""Scores of offline learners on a recorded run: `python -m benchmarks.offline [names]`.

A run of `PRESET` writes its data set. Each of `LEARNERS` trains on it in mode offline with seeds 1 to 3, without the
env, and its last version plays 100 greedy episodes on fresh seeds. The queue is resumable: each result is one JSON line
of benchmarks/offline.jsonl (`--out FILE`) with its commit, and what the file has is not run again. The run of the data
is of mode single, so that it has the same bits when it is repeated. The section `Scores` of docs/offline.md
(`--page FILE`) is made of the results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py

from benchmarks.scores import COMPILED, EPISODES, FRESH_SEED, ROOT, command, commit_of, finished

RESULTS, PAGE = ROOT / "benchmarks" / "offline.jsonl", ROOT / "docs" / "offline.md"
FOLDER = ROOT / "runs" / "offline"
PRESET, ENV, ENV_STEPS, UPDATES, SEEDS = "cartpole-dqn", "CartPole-v1", 40_000, 3_000, (1, 2, 3)
DATA, BEHAVIOUR, LEARNERS = "data", "behaviour", ("bc", "iql", "cql")
LABELS = {DATA: "episodes of the data set", BEHAVIOUR: "greedy policy of the recorded run, its last version"}
BEGIN = "## Scores\n\n"


@dataclass(frozen=True)
class Result:
    """Of the data set, of the policy that made it, or of one run offline."""

    commit: str
    name: str
    seed: int
    score: float
    """Mean return: of the episodes of the data set, else of the greedy ones."""
    score_std: float
    episodes: int
    wall_s: float


def record(folder: Path) -> Path:
    """The run of the data, unless it is there."""
    if not (folder / "summary.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        settings = [f"run.total_env_steps={ENV_STEPS}", f"run.schedule_env_steps={ENV_STEPS}", "run.record=recording"]
        settings += ["run.stop_at_return=null", "run.seed=1", "replay.learning_starts=1000", "evaluator.episodes=0"]
        words = with_settings(*settings)
        command("train", PRESET, "--mode", "single", *words, "--plain", "--run-dir", str(folder))
    return folder / "recording" / "data"


def measured(name: str, seed: int, commit: str, folder: Path) -> Result:
    """One row of the table."""
    begun, data = time.monotonic(), record(folder / "recorded")
    if name == DATA:
        returns = returns_of(data)
        score = (statistics.fmean(returns), statistics.pstdev(returns), len(returns))
    else:
        score = played(folder / "recorded" if name == BEHAVIOUR else trained(name, seed, data, folder), seed)
    return Result(commit, name, seed, *score, round(time.monotonic() - begun, 1))


def trained(name: str, seed: int, data: Path, folder: Path) -> Path:
    """The run directory of a learner."""
    run = folder / f"{name}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    settings = (
        f"replay.load={data}",
        f"run.stop_at_updates={UPDATES}",
        f"run.seed={seed}",
        "evaluator.episodes=0",
        *COMPILED,
    )
    words = ("--env", ENV, "--algo", name, "--mode", "offline", *with_settings(*settings, *COMPILED))
    command("train", *words, "--plain", "--run-dir", str(run))
    return run


def played(run: Path, seed: int) -> tuple[float, float, int]:
    """Mean and deviation of the greedy episodes of the last version, and their number."""
    words = ("--episodes", str(EPISODES), "--seed", str(FRESH_SEED + seed), "--checkpoint", "last", "--json")
    found = json.loads(command("eval", str(run), *words))
    return found["return_mean"], found["return_std"], EPISODES


def returns_of(data: Path) -> list[float]:
    """Returns of the finished episodes."""
    with h5py.File(data / "main_data.hdf5") as file:
        return [float(sum(group["rewards"])) for group in file.values() if not group.attrs["unfinished"]]


def with_settings(*settings: str) -> list[str]:
    """Words of the command."""
    return [word for setting in settings for word in ("--set", setting)]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Every seed, in Markdown."""
    lines = ["| policy | mean return of each seed | median |", "|---|---|---|"]
    for name in (DATA, BEHAVIOUR, *LEARNERS):
        found = sorted((r for r in results if r["name"] == name), key=lambda r: int(r["seed"]))
        scores = [float(r["score"]) for r in found]
        if scores:
            shown = ", ".join(f"{score:.1f}" for score in scores)
            lines.append(f"| {LABELS.get(name, f'`{name}`')} | {shown} | {statistics.median(scores):.1f} |")
    return "\n".join(lines)


def section(results: Sequence[Mapping[str, Any]]) -> str:
    """The part of the page that follows its heading."""
    return (
        f"The data set is that of `{PRESET}` in mode single with `replay.learning_starts=1000`: {ENV_STEPS:,} env "
        f"steps, from random actions on. Each learner has its default settings and {UPDATES:,} compiled updates. "
        f"Its last version plays {EPISODES} greedy episodes on fresh seeds.\n\n{table(results)}\n\n`python -m "
        "benchmarks.offline` repeats what `benchmarks/offline.jsonl` lacks, and writes this table.\n\n"
    )


def written(page: str, results: Sequence[Mapping[str, Any]]) -> str:
    """`page` with the section of the results in place of the one that it has."""
    before, _, rest = page.partition(BEGIN)
    _, heading, after = rest.partition("## ")
    return f"{before}{BEGIN}{section(results)}{heading}{after}"


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {DATA}, {BEHAVIOUR}, {', '.join(LEARNERS)}; default: all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results, one JSON line each")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that has the table")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the data set and the runs")
    parser.add_argument("--no-runs", action="store_true", help="only write the page")
    given = parser.parse_args(words)
    jobs = [(DATA, 1), (BEHAVIOUR, 1), *((name, seed) for seed in SEEDS for name in LEARNERS)]
    for name, seed in () if given.no_runs else jobs:
        done = any(r["name"] == name and r["seed"] == seed for r in finished(given.out))
        if not done and (not given.names or name in given.names):
            result = measured(name, seed, commit_of(), given.folder)
            with given.out.open("a") as out:
                out.write(json.dumps(asdict(result)) + "\n")
            print(f"{name} seed {seed}: {result.score:.1f}", flush=True)
    given.page.write_text(written(given.page.read_text(), finished(given.out)))
    print(table(finished(given.out)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
