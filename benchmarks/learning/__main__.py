"""`python -m benchmarks.learning [CASE ...]`: learning of zmqrl and of Stable-Baselines3 in turn on this machine.

Each run is one JSON line of benchmarks/learning.jsonl (`--out FILE`) with its commit; what the file has is not run
again. docs/learning.md (`--page FILE`) is made of it. Delete the lines of a case to measure it again. Stable-Baselines3
has the virtual environment of `benchmarks.peers`; MuJoCo and MinAtar need `pip install '.[mujoco,minatar]'`. With
`taskset -c 0` a run of either has one core, and other cases may be measured on another core at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.learning.cases import CASES, SYSTEMS, Case, System, words_of
from benchmarks.learning.curve import Point, curve
from benchmarks.learning.page import Row, page
from benchmarks.peers.install import python_of
from benchmarks.peers.logged import FOLDER
from benchmarks.peers.measure import ROOT, Running, end_on_signals, tail
from benchmarks.peers.steps import Steps
from benchmarks.scores import EPISODES, FRESH_SEED, command, commit_of, finished

RESULTS, PAGE = ROOT / "benchmarks" / "learning.jsonl", ROOT / "docs" / "learning.md"
LIMIT_S = 3600.0
"""Of a run."""
COLLECTS = {"zmqrl": "zmqrl.worker", "stable-baselines3": "benchmarks.learning.peer"}
"""Part of the command line of the processes whose env steps count."""


def train(case: Case, system: System, seed: int) -> tuple[list[Point], float]:
    """The training of one run, and the mean return of the greedy episodes of its last policy."""
    with tempfile.TemporaryDirectory(prefix="learning-") as name:
        folder = Path(name)
        (steps := folder / "steps").mkdir()
        os.environ[FOLDER] = str(steps)  # also for `zmqrl eval`, which makes the env with its wrapper
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        if system == "zmqrl":
            words = words_of(case, seed, str(folder / "run"), "benchmarks.peers.logged:Logged")
            run = [sys.executable, "-m", "zmqrl", *words]
        else:
            run = [str(python_of(system)), "-m", "benchmarks.learning.peer", case.name, str(seed), name]
        with Running(run, environment, folder / "log") as running:
            if (code := running.wait(LIMIT_S)) != 0:
                raise SystemExit(f"{system}, {case.name}: exit {code}\n{tail(folder / 'log')}")
        if system == "zmqrl":
            words = ["eval", str(folder / "run"), "--episodes", str(EPISODES), "--seed", str(FRESH_SEED + seed)]
            score = json.loads(command(*words, "--json", "--checkpoint", "last"))["return_mean"]
        else:
            score = statistics.fmean(json.loads((folder / "played.json").read_text()))
        return curve(Steps.read(steps, COLLECTS[system]), running.began), score


def play_random(case: Case) -> float:
    """Mean return of as many episodes with random actions, in the environment of Stable-Baselines3."""
    words = [str(python_of("stable-baselines3")), "-m", "benchmarks.learning.random_actions", case.name, str(EPISODES)]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout)


def rows_of(case: Case, rows: Sequence[Row], commit: str) -> Any:
    """Rows that are missing, each after its run; the systems alternate."""

    def is_there(system: str, seed: int) -> bool:
        return any((r["case"], r["system"], r["seed"]) == (case.name, system, seed) for r in rows)

    if not is_there("random", 1):
        yield {"commit": commit, "case": case.name, "system": "random", "seed": 1, "score": play_random(case)}
    for seed in range(1, case.seeds + 1):
        for system in SYSTEMS if seed % 2 else reversed(SYSTEMS):
            if not is_there(system, seed):
                points, score = train(case, system, seed)
                row = {"commit": commit, "case": case.name, "system": system, "seed": seed, "score": score}
                cores, found = len(os.sched_getaffinity(0)), [list(asdict(point).values()) for point in points]
                yield {**row, "env_steps": case.env_steps, "cores": cores, "curve": found}


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="default: all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results, one JSON line each")
    parser.add_argument("--page", type=Path, default=PAGE, help="the tables in Markdown")
    parser.add_argument("--no-runs", action="store_true", help="only write the page")
    given = parser.parse_args(words)
    if unknown := set(given.cases) - {case.name for case in CASES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(case.name for case in CASES)}")
    end_on_signals()
    commit = commit_of()
    for case in () if given.no_runs else CASES:
        if not given.cases or case.name in given.cases:
            for row in rows_of(case, finished(given.out), commit):
                with given.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print(f"{row['case']}, {row['system']}, seed {row['seed']}: {row['score']:.1f}", flush=True)
    given.page.write_text(page(finished(given.out)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
