"""Random mutants of the parts whose faults cost data, against their unit tests: which change does no test find?

    python -m benchmarks.mutants --out FILE [--part broker] [--count 200] [--seed 1]
    python -m benchmarks.mutants --out FILE --survivors

Each mutant changes one expression or statement in a copy of the checkout, and the tests of its part run there until one
fails. FILE has one JSON line a mutant; a run that is started again continues there. `--survivors` repeats the mutants
that survived, with the tests and the code of now.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "broker": (["zmqrl/broker"], ["tests/broker"]),
    "checkpointing": (["zmqrl/learner/checkpointing.py"], ["tests/learner"]),
    "learners": (["zmqrl/learning/learners.py"], ["tests/learning"]),
    "directory": (["zmqrl/data_stores/directory.py"], ["tests/data_stores"]),
}
"""Sources and tests of each part."""
UNIT = "not whole and not timed and not long"
LIMIT_S = 240
"""A mutant whose tests run for longer than this is found: it hangs."""
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: of the node with this number in the order of `ast.walk`, which is `before` in the source."""

    part: str
    file: str
    line: int
    node: int
    before: str
    after: str


def mutants_of(part: str, path: Path) -> Iterator[Mutant]:
    """Every mutant of a file: comparisons, operators, constants and conditions changed, calls left out."""
    source = path.read_text(encoding="utf-8")
    for number, node in enumerate(ast.walk(ast.parse(source))):
        for changed in _changes(node):
            before, after, line = ast.unparse(node), ast.unparse(changed), getattr(node, "lineno", 0)
            yield Mutant(part, str(path.relative_to(ROOT)), line, number, before, after)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
        case ast.BinOp() if type(node.op) in SWAPS and not _is_type(node):
            yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
            yield ast.Constant(node.value - 1)
        case ast.If() | ast.While():
            yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.With():
            yield ast.If(ast.Constant(True), node.body, [])


def _is_type(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.BitOr)


def write(mutant: Mutant, copy: Path) -> bool:
    """Put the mutant into the copy. False: the code has changed since."""
    path = copy / mutant.file
    tree = ast.parse((ROOT / mutant.file).read_text(encoding="utf-8"))
    node = next((node for number, node in enumerate(ast.walk(tree)) if number == mutant.node), None)
    if node is None or ast.unparse(node) != mutant.before:
        return False
    changed = next(one for one in _changes(node) if ast.unparse(one) == mutant.after)

    class Put(ast.NodeTransformer):
        def visit(self, found: ast.AST) -> ast.AST:
            return ast.copy_location(changed, node) if found is node else self.generic_visit(found)

    path.write_text(ast.unparse(ast.fix_missing_locations(Put().visit(tree))), encoding="utf-8")
    return True


def outcome(mutant: Mutant, copy: Path) -> str:
    """`found: TEST`, `survived`, or `changed` where the code is not that of the mutant any more."""
    if not write(mutant, copy):
        return "changed"
    try:
        return _tested(mutant, copy)
    finally:
        shutil.copy(ROOT / mutant.file, copy / mutant.file)


def _tested(mutant: Mutant, copy: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", UNIT, *PARTS[mutant.part][1]]
    runtime = tempfile.mkdtemp(prefix="zmqrl-mutant-")
    environment = {**os.environ, "PYTHONPATH": str(copy), "ZMQRL_RUNTIME_DIR": runtime, "HYPOTHESIS_PROFILE": "ci"}
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return "found: it hangs"
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
    if process.returncode == 0:
        return "survived"
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"found: {failed[0][:150] if failed else text.splitlines()[-1][:150]}"


def chosen(part: str, count: int, seed: int) -> list[Mutant]:
    """`count` mutants of a part, drawn without repetition."""
    places = [ROOT / source for source in PARTS[part][0]]
    files = sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))
    every = [mutant for file in files for mutant in mutants_of(part, file)]
    return random.Random(f"{seed} {part}").sample(every, min(count, len(every)))


def main() -> None:
    """Run the mutants that FILE lacks, or those that survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--survivors", action="store_true")
    options = parser.parse_args()
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    known: dict[Mutant, str] = {}
    for line in map(json.loads, lines):
        result = line.pop("result")
        line.pop("commit", None)
        known[Mutant(**line)] = result
    if options.survivors:
        wanted = [mutant for mutant, result in known.items() if result == "survived"]
    else:
        drawn = [one for part in options.part or PARTS for one in chosen(part, options.count, options.seed)]
        wanted = [mutant for mutant in drawn if mutant not in known]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory(prefix="zmqrl-mutants-") as folder, options.out.open("a", encoding="utf-8") as out:
        for name in ("zmqrl", "tests", "examples", "docs", "pyproject.toml", "setup.cfg"):
            copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copied(ROOT / name, Path(folder) / name)
        for number, mutant in enumerate(wanted, 1):
            result = outcome(mutant, Path(folder))
            out.write(json.dumps({**asdict(mutant), "result": result, "commit": commit.strip()}) + "\n")
            out.flush()
            print(f"{number}/{len(wanted)} {mutant.file}:{mutant.line} {mutant.before[:60]!r}: {result}", flush=True)


if __name__ == "__main__":
    main()
