"""The Dockerfile, as far as that can be checked without docker; `make test-long` builds it where docker is."""

from __future__ import annotations

import configparser
import fnmatch
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.running import ROOT
from tests.test_release import SOURCES

BUILD_S = 1800.0
BASE = "python:3.11-slim"
TEXT = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [line.split() for line in TEXT.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def copied() -> list[str]:
    return [name for word, *names in INSTRUCTIONS if word == "COPY" for name in names[:-1]]


def test_the_image_copies_what_a_wheel_is_built_from() -> None:
    assert sorted(copied()) == sorted([*SOURCES, "constraints.txt"])


def test_the_context_of_the_build_has_what_is_copied_and_nothing_else() -> None:
    everything, *lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert everything == "*"
    assert kept == set(copied())
    assert any(fnmatch.fnmatch("zmqrl/cli/__pycache__", line) for line in lines)


def test_the_arguments_of_the_build_exist() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    extras = re.findall(r"EXTRAS=([\w,]+)", TEXT)
    assert len(extras) >= 2
    assert {name for each in extras for name in each.split(",")} <= set(parser["options.extras_require"])
    assert f"ARG BASE={BASE}" in TEXT.splitlines()
    (user,) = (words[1] for words in INSTRUCTIONS if words[0] == "USER")
    assert user == "1000:0", "not root, and any user id of the group 0 may write into its home"


def runs(engine: str) -> bool:
    """Whether an engine is installed and works: the docker command alone, without its daemon, does not."""
    return bool(shutil.which(engine)) and not subprocess.run([engine, "info"], capture_output=True).returncode


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.timeout(3 * BUILD_S)
def test_the_image_trains() -> None:
    """`ZMQRL_IMAGE_BASE` names another base, and `ZMQRL_WHEELS` an index of wheels, where no registry is reached."""
    engine = next((name for name in ("docker", "podman") if runs(name)), None)
    if engine is None:
        pytest.skip("no docker or podman that runs")
    base, index = os.environ.get("ZMQRL_IMAGE_BASE", BASE), os.environ.get("ZMQRL_WHEELS")
    got = (subprocess.run([engine, *words, base], capture_output=True) for words in (["image", "inspect"], ["pull"]))
    if all(done.returncode for done in got):
        pytest.skip(f"the base image {base} is not reached")
    arguments = [f"--build-arg=BASE={base}", *([f"--build-arg=TORCH_INDEX={index}"] if index else [])]
    built = subprocess.run([engine, "build", "-q", *arguments, ROOT], capture_output=True, text=True, timeout=BUILD_S)
    assert built.returncode == 0, built.stderr[-3000:]
    training = ["train", "cartpole-ppo", "--mode", "sync", "--plain", "--set", "run.total_env_steps=2048"]
    for user in ("1000:0", "123456:0"):
        command = [engine, "run", "--rm", "--init", "--user", user, built.stdout.strip(), *training]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_paths_of_the_page_are_those_of_the_image() -> None:
    page = (ROOT / "docs" / "containers.md").read_text()
    (home,) = (line.removeprefix("ENV HOME=") for line in TEXT.splitlines() if line.startswith("ENV HOME="))
    assert f"{home}/runs" in page
    assert Path(home).is_absolute()
