"""Commands that need SSH, with hosts that another kind of orchestrator reaches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.support.raising import compare

HOSTS = """
run: {preset: cartpole-ppo}
orchestrator: {kind: slurm, partition: cpu}
hosts: {n0: {workers: 2}, n1: {workers: 1, nice: 3}}
"""


@pytest.fixture(autouse=True)
def hosts_file(empty_directory: Path) -> None:
    """hosts.yaml in the current directory."""
    (empty_directory / "hosts.yaml").write_text(HOSTS)


def test_setup_is_refused(zmqrl: Command) -> None:
    ended = zmqrl("setup", "hosts.yaml")
    assert ended.code == 2
    compare(ended.error, key=("orchestrator", "kind"), value="'slurm'")


def test_dry_run_names_the_kind_and_not_a_login(zmqrl: Command) -> None:
    ended = zmqrl("launch", "hosts.yaml", "--dry-run")
    assert ended.code == 0, ended.err
    (line,) = [line for line in ended.out.splitlines() if line.startswith("host n1: ")]
    assert line.startswith("host n1: by orchestrator.kind slurm; ") and "nice 3 (hosts.yaml:4)" in line


@pytest.mark.parametrize(
    ("kind", "python"),
    [
        ("{kind: kubernetes, image: lab}", "python3"),
        ("{kind: slurm}", sys.executable),
        ("{kind: local}", sys.executable),
    ],
)
def test_dry_run_shows_the_python_that_the_kind_uses(zmqrl: Command, kind: str, python: str) -> None:
    hosts = "{n0: {workers: 2}, n1: {workers: 1, nice: 3}}"
    Path("hosts.yaml").write_text(f"run: {{preset: cartpole-ppo}}\norchestrator: {kind}\nhosts: {hosts}\n")
    ended = zmqrl("launch", "hosts.yaml", "--dry-run")
    assert ended.code == 0, ended.err
    (line,) = [line for line in ended.out.splitlines() if line.startswith("host n1: ")]
    assert f"; python {python}, w" in line
    assert ("nice 3" in line) == ("local" not in kind), "hosts that are this machine have the niceness of the launcher"
