"""`stop --wait`: what it waits for, how long, and the exit code; the launcher is a stand-in."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.cli.commands import Command
from tests.support.stored_runs import summary_data
from zmqrl.run_files.run_info import RunInfo
from zmqrl.supervision.process_table import identify

LAUNCHER = """
import pathlib, signal, sys, time
directory, summary, delay_s = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
requested = []
signal.signal(signal.SIGUSR1, lambda *_: requested.append(1))
print("ready", flush=True)
while not requested:
    time.sleep(0.01)
time.sleep(delay_s)
if summary:
    (directory / "summary.json").write_text(summary)
"""
Launch = Callable[[str, float], Path]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """A run whose launcher ends so many seconds after it is stopped, with this summary."""
    started: list[subprocess.Popen[str]] = []

    def start(summary: str, delay_s: float) -> Path:
        directory = tmp_path / "run"
        directory.mkdir()
        command = [sys.executable, "-c", LAUNCHER, str(directory), summary, str(delay_s)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        me = identify(process.pid)
        assert me is not None
        info = RunInfo("run-1", me.pid, me.start_time, socket.gethostname(), time.time(), None, lineage="x")
        (directory / "run.json").write_bytes(msgspec.json.encode(info))
        return directory

    yield start
    for process in started:
        process.kill()
        process.communicate()


def summary_of(code: int, run_id: str = "run-1") -> str:
    return json.dumps(summary_data(run_id=run_id, status="stopped", exit_code=code, env_steps=32_608))


@pytest.mark.parametrize("code", [0, 3])
def test_it_waits_for_the_end_and_has_the_exit_code_of_the_run(zmqrl: Command, launch: Launch, code: int) -> None:
    directory = launch(summary_of(code), 0.3)
    begun = time.monotonic()
    ended = zmqrl("stop", directory, "--wait", "600")
    assert time.monotonic() - begun >= 0.3
    assert (ended.code, ended.out) == (code, f"run-1: stopped, 32,608 env steps; see {directory}/summary.json\n")


def test_a_run_that_does_not_end_in_time_is_exit_1(zmqrl: Command, launch: Launch) -> None:
    ended = zmqrl("stop", launch(summary_of(0), 600.0), "--wait", "0.2")
    assert (ended.code, ended.out) == (1, "")
    assert "has not ended within 0.2 s" in ended.err


@pytest.mark.parametrize("summary", ["", "{}", "[]", summary_of(0, "run-0")])
def test_a_run_that_ends_without_its_summary_is_exit_1(zmqrl: Command, launch: Launch, summary: str) -> None:
    ended = zmqrl("stop", launch(summary, 0.0), "--wait", "--json")
    assert (ended.code, ended.out) == (1, "")
    assert "ended without a summary" in ended.err


def test_without_wait_it_returns_at_once(zmqrl: Command, launch: Launch) -> None:
    directory = launch(summary_of(0), 600.0)
    ended = zmqrl("stop", directory, "--json")
    assert ended.code == 0
    assert json.loads(ended.out) == {"run_dir": str(directory), "run_id": "run-1", "ended": False, "summary": None}


def test_the_run_goes_before_wait(zmqrl: Command) -> None:
    ended = zmqrl("stop", "--wait", "runs/a")
    assert ended.code == 2
    assert "write the run before --wait: zmqrl stop RUN --wait 60" in ended.err
