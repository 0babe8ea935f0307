"""`zmqrl install-unit`: the unit that is written starts the run, and continues it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.support.raising import compare, fields
from tests.support.running import environment
from tests.support.waiting import WAIT_S

HOSTS = """
run: {preset: cartpole-ppo, mode: single, total_env_steps: 2048, name: pole}
algorithm: {kind: zmqrl.bench.noop:NoUpdate}
evaluator: {episodes: 0}
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "hosts.yaml"
    path.write_text(HOSTS)
    return path


@pytest.mark.whole
def test_the_command_of_the_unit_starts_the_run_and_then_continues_it(
    zmqrl: Command, hosts: Path, tmp_path: Path
) -> None:
    ended = zmqrl("install-unit", "hosts.yaml", "--set", "run.seed=7")
    assert ended.code == 0, ended.err
    unit = tmp_path / "config" / "systemd" / "user" / "zmqrl-pole.service"
    assert f"wrote {unit}" in ended.out and "enable --now zmqrl-pole.service" in ended.out
    (start,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    command = shlex.split(start.removeprefix("ExecStart="))
    first, second = (
        subprocess.run(command, cwd="/", env=environment(), capture_output=True, text=True, timeout=WAIT_S)
        for _ in range(2)
    )
    assert first.returncode == 0 and (tmp_path / "runs" / "pole" / "summary.json").exists(), first.stderr
    assert second.returncode == 0 and "nothing was trained" in second.stdout


def test_a_webhook_is_not_written_into_a_unit(zmqrl: Command, hosts: Path, tmp_path: Path) -> None:
    for words in ((), ("--print",)):
        ended = zmqrl("install-unit", "hosts.yaml", *words, "--set", "webhook=https://hooks.lab/services/SECRET")
        assert ended.code == 2 and "SECRET" not in ended.out + ended.err
        compare(ended.error, key=("--set",), value="webhook=https://hooks.lab/...")
    assert not (tmp_path / "config").exists()
    ended = zmqrl("install-unit", "hosts.yaml", "--set", "webhook=https://hooks.lab/services/$HOME")
    assert ended.code == 0, ended.err
    (unit,) = tmp_path.rglob("*.service")
    assert unit.stat().st_mode & 0o777 == 0o600


def test_a_fault_is_reported_before_a_unit_is_written(zmqrl: Command, hosts: Path, tmp_path: Path) -> None:
    for words, key, value in (
        (("--name", "a b"), ("--name",), "'a b'"),
        (("--limit", "nodes"), ("--limit",), "nodes"),
        (("--run-dir", "hosts.yaml/run"), ("--run-dir",), repr(str(tmp_path / "hosts.yaml" / "run"))),
    ):
        ended = zmqrl("install-unit", "hosts.yaml", *words)
        assert ended.code == 2
        compare(ended.error, key=key, value=value)
    for words, fault in (
        (("--set", "run.sed=1"), fields("run.sed", what="unknown key (value 1)")),
        (("--run-dir", "hosts.yaml"), fields(value=f"run directory {tmp_path}/hosts.yaml", what="is not a directory")),
        (
            ("--run-dir", "."),
            fields(value=f"run directory {tmp_path}", fix="it holds no run; choose another directory"),
        ),
    ):
        ended = zmqrl("install-unit", "hosts.yaml", *words)
        assert ended.code == 2
        compare(ended.error, **fault)
    assert not (tmp_path / "config").exists()
    assert "ExecStart=" in zmqrl("install-unit", "hosts.yaml", "--print").out and not (tmp_path / "config").exists()
