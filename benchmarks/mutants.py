"""Random mutants of the parts whose faults cost data, against their unit tests: which change does no test find?

    python -m benchmarks.mutants --out FILE [--part broker] [--count 200] [--seed 1]
    python -m benchmarks.mutants --out FILE --survivors [--longest-s 1000]
    python -m benchmarks.mutants --out FILE --report

Each mutant changes one expression or statement in a copy of the checkout. First the tests of its part run once without
a change, which shows the lines that each of them executes and how long it takes. Of those that execute the changed line
and take at most `--longest-s`, the fastest files run first, until a test fails. FILE has one JSON line a mutant; a run
that is started again continues there. `--survivors` repeats the mutants that survived, with the tests and the code of
now. At the end, and with `--report`, the survivors are listed that `mutants_survivors.txt` gives no reason for; the
exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from benchmarks.mutant_tests import ROOT, Copy
from benchmarks.mutations import Change, Mutant, changes_of

REASONS = ROOT / "benchmarks" / "mutants_survivors.txt"
"""An unindented line is a reason; the indented lines below it are the mutants that it holds for."""
PARTS = {
    "broker": (["zmqrl/broker"], ["tests/broker"]),
    "checkpointing": (["zmqrl/learner/checkpointing.py"], ["tests/learner"]),
    "learners": (["zmqrl/learning/learners.py"], ["tests/learning"]),
    "directory": (["zmqrl/data_stores/directory.py"], ["tests/data_stores", "tests/contracts/test_data_stores.py"]),
}
"""Sources and tests of each part."""


def sources_of(part: str) -> list[Path]:
    """Source files of a part."""
    places = [ROOT / source for source in PARTS[part][0]]
    return sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))


def all_changes(part: str) -> dict[Mutant, Change]:
    """Every mutant of a part."""
    return {change.mutant: change for path in sources_of(part) for change in changes_of(part, path, ROOT)}


def reasons() -> dict[str, str]:
    """By mutant, why no test has to find it."""
    found, reason = dict[str, str](), ""
    for line in REASONS.read_text(encoding="utf-8").splitlines() if REASONS.exists() else ():
        if line.startswith(" "):
            found[line.strip()] = reason
        elif line:
            reason = line
    return found


def report(known: Mapping[Mutant, str], every: Mapping[str, Mapping[Mutant, Change]]) -> int:
    """Counts of each part, and survivors without a reason: how many."""
    given, lacking = reasons(), 0
    for part, changes in every.items():
        current = {mutant: result for mutant, result in known.items() if mutant in changes}
        survived = {mutant: result for mutant, result in current.items() if result.startswith("survived")}
        unexplained = [mutant for mutant in survived if str(mutant) not in given]
        lacking += len(unexplained)
        print(
            f"{part}: {len(changes)} mutants, {len(current)} run, {len(current) - len(survived)} found, "
            f"{len(survived)} survived, {len(unexplained)} of them without a reason"
        )
        for reason, count in Counter(given[str(mutant)] for mutant in survived if str(mutant) in given).most_common():
            print(f"    {count} {reason}")
        for mutant in unexplained:
            print(f"  {mutant}  [{survived[mutant]}]")
    names = {str(mutant) for changes in every.values() for mutant in changes}
    found = {str(mutant) for mutant, result in known.items() if result.startswith("found")}
    sources = tuple(source for part in every for source in PARTS[part][0])
    for name in given:
        if name in found or (name not in names and name.startswith(sources)):
            cause = "a test finds it" if name in found else "the code has no such mutant"
            print(f"{REASONS.name}: delete the line, {cause}: {name}")
    return lacking


def main() -> int:
    """Run the mutants that FILE lacks, or those that survived; exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest-s", type=float, default=5.0)
    parser.add_argument("--survivors", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    every = {part: all_changes(part) for part in options.part or PARTS}
    known: dict[Mutant, str] = {}
    for line in options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else ():
        row = json.loads(line)
        known[Mutant(**{name: row[name] for name in Mutant.__dataclass_fields__})] = row["result"]
    if not options.report:
        with tempfile.TemporaryDirectory(prefix="zmqrl-mutants-") as folder, options.out.open("a") as out:
            for part, changes in every.items():
                if options.survivors:
                    drawn = [mutant for mutant in changes if known.get(mutant, "").startswith("survived")]
                else:
                    mutants = random.Random(f"{options.seed} {part}").sample(
                        list(changes), min(options.count, len(changes))
                    )
                    drawn = [mutant for mutant in mutants if mutant not in known]
                if drawn:
                    run(part, [changes[mutant] for mutant in drawn], Path(folder) / part, options.longest_s, known, out)
    return 1 if report(known, every) else 0


def run(
    part: str, changes: Sequence[Change], folder: Path, longest_s: float, known: dict[Mutant, str], out: TextIO
) -> None:
    """Test mutants of one part; their outcomes are added to `known` and `out`."""
    copy = Copy(folder)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    reaches = copy.baseline(sources_of(part), PARTS[part][1], longest_s)
    longer = [f"{reach.test} ({reach.seconds:.1f} s)" for reach in reaches if reach.seconds > longest_s]
    print(f"{part}: {len(reaches)} tests, {sum(r.seconds for r in reaches):.0f} s; left out: {', '.join(longer)}")
    for number, change in enumerate(changes, 1):
        begun = time.monotonic()
        result = known[change.mutant] = copy.outcome(change, reaches, longest_s)
        out.write(json.dumps({**asdict(change.mutant), "result": result, "commit": commit.strip()}) + "\n")
        out.flush()
        took_s = time.monotonic() - begun
        print(f"{number}/{len(changes)} {took_s:.1f} s {change.mutant}: {result}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
