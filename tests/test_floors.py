"""The floors and both laws hold, constants stand above code, and a break of each is caught."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
TORCH_ALLOWED_IN_ACTING = {"zmqrl.acting.torch_policy"}
WITHOUT_LAW = {
    "api": "a policy of the user's own process computes with torch",
    "bench": "a baseline updates by torch",
    "cli": "the command starts what it is asked for",
    "doctor": "it examines the torch of a host",
    "evaluator": "its device may be a GPU",
    "export": "it writes ONNX graphs by torch",
    "learner": "it trains",
    "testing": "suites apply to everything",
}
"""Packages that may import torch as well as sockets and processes, each with the reason."""
READS_MODULE = "checks_of"
"""Function whose value is of the functions above its call."""


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=WAIT_S)


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "zmqrl", tmp_path / "zmqrl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def law(name: str) -> set[str]:
    """The modules that a law names."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return set(next(c["source_modules"] for c in contracts if c["id"] == name))


def packages() -> set[str]:
    return {path.parent.name for path in (ROOT / "zmqrl").glob("*/__init__.py")}


def test_the_package_keeps_its_floors_and_laws() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("wire/__init__.py", "import zmqrl.broker", "Floors: upper imports lower only"),
        ("algorithms/base.py", "import subprocess", "Law (a)"),
        ("launch/__init__.py", "def probe():\n    import torch\n", "Law (b)"),
        ("networks/kinds/relu.py", "import torch.nn", "Law (b)"),
    ],
    ids=["lower imports upper", "maths starts processes", "launcher loads torch lazily", "a layer kind loads torch"],
)
def test_a_deliberate_break_is_caught(package_copy: Path, module: str, line: str, contract: str) -> None:
    with (package_copy / "zmqrl" / module).open("a") as file:
        file.write(f"\n{line}\n")
    result = lint_imports(package_copy)
    broken = [row for row in result.stdout.splitlines() if row.endswith("BROKEN")]
    assert result.returncode == 1
    assert any(row.startswith(contract) for row in broken), result.stdout


def test_law_b_names_every_module_that_acts_without_torch() -> None:
    files = (ROOT / "zmqrl" / "acting").glob("*.py")
    acting = {f"zmqrl.acting.{f.stem}" for f in files if f.stem != "__init__"}
    assert acting - TORCH_ALLOWED_IN_ACTING == {m for m in law("law-b") if m.startswith("zmqrl.acting.")}


def test_each_package_has_a_law_or_a_reason_for_none() -> None:
    named = {module.split(".")[1] for module in law("law-a") | law("law-b")}
    assert packages() - named == WITHOUT_LAW.keys()


def test_the_page_lists_each_package_in_the_layers() -> None:
    text = (ROOT / "docs" / "development.md").read_text()
    layers = re.search(r"## Layers\n```\n(.*?)```", text, re.DOTALL)
    assert layers is not None and packages() <= set(layers[1].split())


@cache
def trees(package: str) -> dict[str, ast.Module]:
    """The modules of a package by path."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in (ROOT / package).rglob("*.py")}


def constants_below_code(tree: ast.Module) -> list[str]:
    """Names that a module assigns below a class or function although their values need none of the module."""
    of_code: set[str] = set()
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            of_code.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            assigned = [n.id for n in names if isinstance(n.ctx, ast.Store)]
            if {*of_code, READS_MODULE}.intersection(n.id for n in names):
                of_code.update(assigned)
            elif of_code:
                found += assigned
    return found


@pytest.mark.parametrize("package", ["zmqrl", "benchmarks", "generate"])
def test_constants_precede_code(package: str) -> None:
    found = {path: constants_below_code(tree) for path, tree in trees(package).items()}
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    ("below", "found"),
    [
        ("LIMIT_S = 1.0", ["LIMIT_S"]),
        ("Path: TypeAlias = str", ["Path"]),
        ("A, B = 1, 2", ["A", "B"]),
        ("EVENTS = (Event,)\nNAMES = len(EVENTS)", []),
        ("EVENTS: list[Event] = []", []),
    ],
)
def test_a_constant_below_code_is_caught_unless_it_needs_the_code(below: str, found: list[str]) -> None:
    source = f"TOP = 1\n\n\nclass Event:\n    LIMIT = TOP\n\n\n{below}\n"
    assert constants_below_code(ast.parse(source)) == found


def pure_modules() -> dict[str, ast.Module]:
    """Modules whose docstring calls them pure."""
    found = trees("zmqrl").items()
    return {path: tree for path, tree in found if re.search(r"\bPure\b", ast.get_docstring(tree) or "")}


def test_a_pure_module_has_no_clock_and_no_input_or_output() -> None:
    found = pure_modules()
    imported = {
        (path, alias.name)
        for path, tree in found.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert len(found) >= 10
    assert not {(path, name) for path, name in imported if name in ("os", "socket", "subprocess", "threading", "time")}
