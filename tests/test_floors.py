"""The floors and both laws hold, and a break of each is caught."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import WAIT_S

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
TORCH_ALLOWED_IN_ACTING = {"zmqrl.acting.torch_policy"}


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=WAIT_S)


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "zmqrl", tmp_path / "zmqrl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def law_b() -> set[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return set(next(c["source_modules"] for c in contracts if c["id"] == "law-b"))


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
    assert acting - TORCH_ALLOWED_IN_ACTING == {m for m in law_b() if m.startswith("zmqrl.acting.")}
