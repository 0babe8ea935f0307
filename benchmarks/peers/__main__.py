"""`python -m benchmarks.peers`: zmqrl and its peers in turn on this machine.

Each run is appended as a JSON line to benchmarks/peers.jsonl (`--out FILE`), with its commit and versions; at the end
docs/benchmarks.md and its picture are written from all lines. Delete lines to measure again. `--quick`: one repetition
of zmqrl, Stable-Baselines3 and PufferLib, with a file and a page of its own in `~/.cache/zmqrl/peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, COMMANDS, Case, System
from benchmarks.peers.install import CACHE, python_of
from benchmarks.peers.measure import ROOT, end_on_signals, measure
from benchmarks.peers.page import PICTURE, Row, case_of, draw, figure, lines, page, table
from zmqrl.run_files.environment import cpu_model

RESULTS, PAGE = ROOT / "benchmarks" / "peers.jsonl", ROOT / "docs" / "benchmarks.md"
QUICK: tuple[System, ...] = ("zmqrl", "stable-baselines3", "pufferlib")
DISTRIBUTIONS = {"pufferlib": "pufferlib-core"}
VERSIONS = "import sys; from importlib.metadata import version as v; print(*map(v, sys.argv[1:]))"


def versions_of(system: System) -> tuple[str, str]:
    """Version of a system, and those of the packages it is run with."""
    python = sys.executable if system == "zmqrl" else str(python_of(system))
    names = [DISTRIBUTIONS.get(system, system), "torch", "gymnasium", "numpy"]
    done = subprocess.run([python, "-c", VERSIONS, *names], check=True, capture_output=True, text=True)
    version, *others = done.stdout.split()
    packages = ", ".join(f"{name} {number}" for name, number in zip(names[1:], others, strict=True))
    return version, f"Python {platform.python_version()}, {packages}"


def machine() -> str:
    """In words, without its name."""
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return f"{cpu_model()}, {os.cpu_count()} cores, {memory_gb:.0f} GB"


def commit() -> str:
    """The last commit that changed the package; `-dirty` where files of the package differ from it."""
    git = ("git", "-C", str(ROOT))
    last, changed = (
        subprocess.run([*git, *words, "--", "zmqrl"], check=True, capture_output=True, text=True).stdout.strip()
        for words in (("log", "-1", "--format=%h"), ("status", "--porcelain"))
    )
    return f"{last}-dirty" if changed else last


def recorded(path: Path) -> list[Row]:
    """Lines of a file of results."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def run(cases: Sequence[Case], only: Sequence[System], seeds: Sequence[int], out: Path) -> None:
    """Every case with every seed; each system before and after each other one in turn."""
    shared = {"run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit(), "machine": machine()}
    versions = {system: versions_of(system) for system in only}  # before the first run: environments are made
    out.parent.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for case in cases:
            systems = [system for system in case.systems if system in only]
            for system in systems[:: 1 if seed % 2 else -1]:
                load = round(os.getloadavg()[0], 2)
                measured = measure(case, system, seed)
                version, packages = versions[system]
                row = {**shared, "case": case.name, "system": system, "version": version, "packages": packages}
                row |= {"seed": seed, "load": load, **rounded(asdict(measured))}
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                first = f"first env step {measured.first_step_s:.2f} s"
                print(f"{case.name}, seed {seed}, {system}: {figure(measured.value)} {case.unit}, {first}", flush=True)


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """To a thousandth."""
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """Options, with what `--quick` changes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repetition, two peers, within 10 minutes")
    parser.add_argument("--only", action="append", choices=list(COMMANDS), help="run this system; repeatable")
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES], help="default: all")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 1 2 3; with --quick 1")
    parser.add_argument("--out", type=Path, help=f"file of results; default: {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--page", type=Path, help=f"default: {PAGE.relative_to(ROOT)}")
    parser.add_argument("--no-runs", action="store_true", help="only write the page")
    given = parser.parse_args(words)
    given.cases = [case_of(name) for name in given.cases or [case.name for case in CASES]]
    given.only = given.only or (list(QUICK) if given.quick else list(COMMANDS))
    given.seeds = given.seeds or ([1] if given.quick else [1, 2, 3])
    given.out = given.out or (CACHE / "quick.jsonl" if given.quick else RESULTS)
    given.page = given.page or (CACHE / "quick.md" if given.quick else PAGE)
    return given


def main(words: Sequence[str] | None = None) -> int:
    """Run, append, write the page, print the table."""
    given = parsed(words)
    end_on_signals()
    if given.quick and not given.no_runs:
        given.out.unlink(missing_ok=True)
    try:
        if not given.no_runs:
            run(given.cases, given.only, given.seeds, given.out)
    except KeyboardInterrupt:
        print(f"stopped; {given.out} has the finished runs")
        return 130
    rows = recorded(given.out)
    draw(rows, given.page.parent / PICTURE)
    given.page.write_text(page(rows))
    print(table(lines(rows)))
    print(f"{given.out}\n{given.page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
