"""The figures of one commit beside those of the last ten: `quick.py [--file PATH] [--no-tests]`; some minutes.

Appends a JSON line to PATH (default `~/.cache/zmqrl/bench.jsonl`, not in the repository): ratios of the bus and of the
sync round to their yardsticks, env steps per second of whole runs, seconds of the quick tests, lines per package.
Ratios and CPU time of one machine can be compared; lines of other machines are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zmqrl.bench import bus, e2e, sync
from zmqrl.bench.report import BenchResult

ROOT = Path(__file__).parents[1]
FILE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "zmqrl" / "bench.jsonl"
LAST = 10
QUICK_TESTS = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"),
    *("-m", "not whole and not timed and not long"),
)


def git(*arguments: str) -> str:
    """What git prints."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def figures_of(result: BenchResult) -> dict[str, float]:
    """Medians by `benchmark: name [unit]`."""
    rows = [*result.figures, *result.ratios]
    return {f"{result.name}: {row.name}{f' [{row.unit}]' if row.unit else ''}": row.median for row in rows}


def test_figures() -> dict[str, float]:
    """Wall and CPU time of the tests of the parts."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([sys.executable, *QUICK_TESTS], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the quick tests failed:\n{done.stdout[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"tests: quick, wall [s]": time.monotonic() - begun, "tests: quick, CPU [s]": cpu_s}


def lines_per_package() -> dict[str, float]:
    """Of Python; `tests` and `benchmarks` count as packages."""
    count: Counter[str] = Counter()
    for path in (ROOT / "zmqrl").rglob("*.py"):
        parts = path.relative_to(ROOT / "zmqrl").parts
        count[f"lines: {parts[0] if len(parts) > 1 else 'top'}"] += len(path.read_text().splitlines())
    for name in ("tests", "benchmarks"):
        count[f"lines: {name}"] = sum(len(path.read_text().splitlines()) for path in (ROOT / name).rglob("*.py"))
    count["lines: zmqrl"] = sum(n for name, n in count.items() if name not in ("lines: tests", "lines: benchmarks"))
    return {name: float(count[name]) for name in sorted(count)}


def measure(with_tests: bool) -> dict[str, float]:
    """All figures; where Stable-Baselines3 is missing, without the ratio to it."""
    found: dict[str, float] = {}
    for result in (bus.run(repeats=1), sync.run(repeats=1), e2e.run(repeats=1, seeds=1)):
        found |= figures_of(result)
    return {**found, **(test_figures() if with_tests else {}), **lines_per_package()}


def entry(figures: dict[str, float]) -> dict[str, Any]:
    """A line of the file."""
    return {
        "commit": git("rev-parse", "HEAD"),
        "changed": bool(git("status", "--porcelain", "--untracked-files=no")),
        "subject": git("log", "-1", "--format=%s"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": platform.node(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "figures": {name: round(value, 4) for name, value in figures.items()},
    }


def earlier(path: Path, now: dict[str, Any]) -> list[dict[str, Any]]:
    """The last `LAST` commits that were measured on this machine: of each its newest line."""
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    here = {line["commit"]: line for line in lines if (line["host"], line["cores"]) == (now["host"], now["cores"])}
    here.pop(now["commit"], None)
    return sorted(here.values(), key=lambda line: line["time"])[-LAST:]


def table(now: dict[str, Any], before: Sequence[dict[str, Any]]) -> str:
    """A row for each figure: now, the median of the earlier ones, the change, and how far those are apart."""
    rows = [f"{'':52}{'now':>12}{'median':>12}{'change':>9}   of {len(before)} commits: least to most"]
    for name, value in now["figures"].items():
        known = [line["figures"][name] for line in before if name in line["figures"]]
        row = f"{name:52}{value:12.6g}"
        if known:
            median = statistics.median(known)
            change = f"{value / median - 1:+.1%}" if median else ""
            row += f"{median:12.6g}{change:>9}   {min(known):.6g} to {max(known):.6g}"
        rows.append(row)
    return "\n".join(rows)


def main() -> None:
    """Measure, compare, append."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--no-tests", action="store_true", help="leave out the time of the quick tests")
    given = parser.parse_args()
    now = entry(measure(not given.no_tests))
    print(table(now, earlier(given.file, now)))
    given.file.parent.mkdir(parents=True, exist_ok=True)
    with given.file.open("a") as file:
        file.write(json.dumps(now) + "\n")
    print(f"{given.file}: {now['commit'][:9]}{', with changes' if now['changed'] else ''}")


if __name__ == "__main__":
    main()
