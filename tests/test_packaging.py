"""What a user installs is whole, and the two commands behave."""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.waiting import WAIT_S

ROOT = Path(__file__).parent.parent
EXECUTED = "the wheel names the interpreters that the tests were run on, and no other that may work"
STEPS = ["ruff", "mypy", "lint-imports"]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines}


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_constraints_are_plain_pins() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line), line
    assert pins()["torch"] == "2.13.0"


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    extras = setup_cfg()["options.extras_require"]
    lists = [setup_cfg()["options"]["install_requires"], *extras.values()]
    for line in "\n".join(lists).split("\n"):
        if line.strip():
            requirement = Requirement(line)
            pin = pins()[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), line


def test_the_first_page_lists_the_extras() -> None:
    page = (ROOT / "docs" / "tutorial" / "first-run.md").read_text()
    (listed,) = re.findall(r"The extras are (.+?)\.", page)
    assert re.split(", | and ", listed) == sorted(setup_cfg()["options.extras_require"])


def test_every_page_names_the_versions_of_python_that_setup_allows() -> None:
    least, below = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", setup_cfg()["options"]["python_requires"]).groups()  # type: ignore[union-attr]
    versions = f"3.{least} to 3.{int(below) - 1}"
    stated = re.compile(r"Linux(?:,| and) Python (\S+(?: to [0-9.]*\d)?)")
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = {str(path.relative_to(ROOT)): set(stated.findall(path.read_text())) for path in pages}
    found = {name: each for name, each in found.items() if each}
    assert {"README.md", "docs/index.md", "docs/tutorial/first-run.md"} <= set(found)
    assert all(each == {versions} for each in found.values()), found


def test_the_wheel_holds_the_package_data(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "zmqrl", source / "zmqrl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, timeout=WAIT_S)
    with zipfile.ZipFile(next(source.glob("*.whl"))) as wheel:
        packed = set(wheel.namelist())
        (metadata,) = (wheel.read(name).decode() for name in packed if name.endswith("/METADATA"))
    wanted = [p.relative_to(source / "zmqrl") for p in (source / "zmqrl").rglob("*") if p.is_file()]
    assert {f"zmqrl/{name}" for name in wanted} <= packed
    assert not [name for name in packed if name.startswith("tests")]
    assert "Requires-Python: <3.14,>=3.10\n" in metadata
    assert re.findall(r"^Classifier: Programming Language :: Python :: (3\.\d+)$", metadata, re.M) == ["3.11"], EXECUTED


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts over a .venv whose programs are stand-ins that succeed."""
    shutil.copytree(ROOT / "bin", tmp_path / "bin")
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    digest = hashlib.sha256()
    for name in ("constraints.txt", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
        digest.update((ROOT / name).read_bytes())
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("test", "run"):
        (tmp_path / ".venv" / f".zmqrl-{name}").write_text(digest.hexdigest() + "\n")
    for name in (*STEPS, "zmqrl"):
        replace(programs / name, f'echo "{name} $*"')
    replace(programs / "python", "echo '7 passed in 0.1s'")
    return tmp_path


def replace(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def run(command: list[str], root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd="/", env={**os.environ, **env}, capture_output=True, text=True, timeout=WAIT_S)


def test_bin_test_runs_every_step_and_closes_with_all_tests(checkout: Path) -> None:
    result = run([f"{checkout}/.ci/run"], checkout)
    assert result.returncode == 0, result.stderr
    assert all(f"== {step}" in result.stdout for step in STEPS)
    assert all(f"mypy --python-version {version}\n" in result.stdout for version in ("3.10", "3.13"))
    assert result.stdout.splitlines()[-1] == "7 passed in 0.1s"


@pytest.mark.parametrize("broken", [*STEPS, "python"])
def test_bin_test_fails_with_any_step_and_still_runs_the_rest(checkout: Path, broken: str) -> None:
    replace(checkout / ".venv" / "bin" / broken, "echo '3 failed, 4 passed in 0.1s'; exit 1")
    result = run([f"{checkout}/bin/test"], checkout)
    assert result.returncode == 1
    assert "== FAILED: " + (broken if broken != "python" else "pytest") in result.stdout
    assert "\n== pytest" in result.stdout
    assert result.stdout.splitlines()[-1] in ("7 passed in 0.1s", "3 failed, 4 passed in 0.1s")


def test_bin_test_with_arguments_gives_them_to_pytest_once(checkout: Path) -> None:
    replace(checkout / ".venv" / "bin" / "python", 'echo "$*"; echo "==== 1 passed in 2.5s (0:00:02) ===="')
    result = run([f"{checkout}/bin/test", "tests/wire", "-x"], checkout)
    assert "\n-m pytest tests/wire -x\n" in result.stdout and result.stdout.count("-m pytest") == 1
    assert result.stdout.splitlines()[-1] == "==== 1 passed in 2.5s (0:00:02) ===="


def test_bin_test_quick_runs_the_parts_alone(checkout: Path) -> None:
    replace(checkout / ".venv" / "bin" / "python", 'echo "$*"; echo "7 passed in 0.1s"')
    result = run([f"{checkout}/bin/test", "--quick"], checkout)
    assert all(f"== {step}" in result.stdout for step in STEPS)
    assert result.stdout.count("-m pytest") == 1 and "not whole and not timed and not long" in result.stdout


def test_bin_run_launches_the_example_with_the_arguments(checkout: Path) -> None:
    result = run([f"{checkout}/bin/run", "--mode", "single"], checkout)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "zmqrl launch hosts.example.yaml --mode single"


def test_a_changed_pin_installs_again(checkout: Path) -> None:
    with (checkout / "constraints.txt").open("a") as file:
        file.write("added==1.0\n")
    replace(checkout / ".venv" / "bin" / "python", f'echo "$*" >>{checkout}/calls')
    assert run([f"{checkout}/bin/run"], checkout).returncode == 0
    assert run([f"{checkout}/bin/run"], checkout).returncode == 0
    calls = (checkout / "calls").read_text().splitlines()
    assert len([c for c in calls if "-c constraints.txt" in c and "-e ." in c]) == 1


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('case "$*" in *version_info*) exit 1;; *--version*) echo Python 3.8.1;; esac', "Python 3.8.1 will not do"),
        ('case "$*" in *ensurepip*) exit 1;; *--version*) echo Python 3.11.2;; esac', "apt install python3-venv"),
    ],
    ids=["too old", "without venv"],
)
def test_a_python_that_will_not_do_is_one_clear_line(checkout: Path, script: str, said: str) -> None:
    shutil.rmtree(checkout / ".venv")
    replace(checkout / "python3", script)
    result = run([f"{checkout}/bin/run"], checkout, PYTHON=f"{checkout}/python3")
    assert result.returncode == 1
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (checkout / ".venv").exists()


def test_no_advice_fetches_zmqrl_from_an_index() -> None:
    """The name on PyPI is not of this project: whoever takes it would be installed. `.` is the checkout."""
    files = [path for name in ("zmqrl", "docs", "examples", "README.md") for path in _text_files(ROOT / name)]
    advice = re.compile(r"\b(?:pip|pipx|uv) install (?:-\S+ )*[\\\"']*zmqrl\b")
    found = [f"{path}: {match[0]}" for path in files for match in advice.finditer(path.read_text())]
    assert found == [] and len(files) > 500


def _text_files(root: Path) -> list[Path]:
    kinds = (".md", ".py", ".yaml", ".ipynb")
    return [path for path in (root, *root.rglob("*")) if path.is_file() and path.suffix in kinds]
