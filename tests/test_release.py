"""What is published: the metadata is accepted, and the wheel of the sdist runs where nothing else of zmqrl is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from tests.support.running import ROOT
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.whole
TRAINING = ["train", "cartpole-ppo", "--mode", "single", "--plain", "--set", "run.total_env_steps=512"]
TRAINING += ["--set", "evaluator.episodes=0"]
SOURCES = ("zmqrl", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")


def build(target: str, source: Path) -> Path:
    """`target`: wheel or sdist, of the folder `source`."""
    script = f"from setuptools import build_meta; print(build_meta.build_{target}('.'))"
    done = subprocess.run([sys.executable, "-c", script], cwd=source, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return source / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    return build("sdist", source)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 and 3.10.11 have none
        archive.extractall(folder)
    return build("wheel", next(folder.iterdir()))


def test_the_metadata_is_accepted(sdist: Path, wheel: Path) -> None:
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], check=True, timeout=WAIT_S)


def install(environment: Path, *arguments: str | Path) -> None:
    python = environment / "bin" / "python"
    argv = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *arguments]
    subprocess.run(argv, check=True, timeout=900)


def check_runs(environment: Path, folder: Path) -> None:
    """The command of `environment` trains, with the package that is installed there."""
    script = "import zmqrl; print(zmqrl.__file__)"
    done = subprocess.run([environment / "bin" / "python", "-c", script], cwd=folder, capture_output=True, text=True)
    assert Path(done.stdout.strip()).is_relative_to(environment), done.stdout + done.stderr
    argv = [environment / "bin" / "zmqrl", *TRAINING, "--run-dir", "run"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (folder / "run" / "summary.json").exists()


def test_the_wheel_of_the_sdist_runs(wheel: Path, tmp_path: Path) -> None:
    """With the dependencies of this environment, whose own zmqrl is not found: a nested .pth file has no effect."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    install(environment, "--no-deps", wheel)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    check_runs(environment, tmp_path)


@pytest.mark.long
def test_the_wheel_runs_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    install(environment, "-c", ROOT / "constraints.txt", wheel)
    check_runs(environment, tmp_path)
