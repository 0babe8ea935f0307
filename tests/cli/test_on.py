"""`--on`: what is passed to the other host, and what is refused before a connection is made."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.cli.commands import Command
from tests.support.raising import compare
from tests.support.waiting import until
from zmqrl.cli.run.on import login_file, remember, without_flags
from zmqrl.cli.run.status import StatusLines
from zmqrl.cli.start.launch_on import _Start
from zmqrl.cli.start.start_options import TrainRequest
from zmqrl.config.sections import Config


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["runs/a", "--on", "gpu1", "-f"], ["runs/a", "-f"]),
        (["--on=gpu1", "--hosts=lab.yaml", "--json"], ["--json"]),
        (["--hosts", "lab.yaml", "--on", "gpu1"], []),
        (["--grep", "x", "--", "--on"], ["--grep", "x", "--", "--on"]),
    ],
)
@pytest.mark.whole
def test_the_rest_is_passed_on(given: list[str], kept: list[str]) -> None:
    assert without_flags(given) == kept


@pytest.mark.parametrize(("given", "passed"), [((), []), (("--queue", "q"), ["--queue", "q"])])
def test_a_page_of_another_host_has_the_queue_of_that_host(
    zmqrl: Command, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], passed: list[str]
) -> None:
    seen: list[list[str]] = []

    def relay(words: list[str], *_: object) -> int:
        seen.append(words)
        return 2

    there = SimpleNamespace(accepted=(), check_version=lambda: None, relay=relay)
    monkeypatch.setattr("zmqrl.launcher_place.launcher_host.connected", lambda *_: contextlib.nullcontext(there))
    monkeypatch.setenv("ZMQRL_QUEUE", "/queue/here")
    assert zmqrl("view", *given, "--on", "h").code == 2
    assert seen == [["--until-eof", "view", *passed, "--", "runs"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fetch", "runs/a"), "--on HOST is required"),
        (("status", "--hosts", "x.yaml"), "--hosts requires --on HOST"),
        (
            ("train", "cartpole-ppo", "--on", "h", "--seeds", "2"),
            "--on cannot be combined with --resume URL or --seeds",
        ),
        (("train", "cartpole-ppo", "--on", "h", "--json"), "--on cannot be combined with --json"),
        (("train", "cartpole-ppo", "--on", "h", "--for", "9"), "--for requires --resume RUN"),
        (("train", "cartpole-ppo", "--on", "h", "--from-scratch"), "--from-scratch requires --resume"),
        (("train", "--on", "h", "--resume", "r", "--init-from", "w"), "--init-from starts a new run"),
        (("train", "cartpole-ppo", "--on", "local"), "local is this machine"),
        (("train", "cartpole-ppo", "--on", "h", "--resume", "auto"), "requires --run-dir"),
        (("train", "cartpole-ppo", "--on", "h", "--set", "run.sed=1"), "run.sed"),
    ],
)
def test_a_fault_gives_one_message_before_any_connection(zmqrl: Command, words: tuple[str, ...], message: str) -> None:
    ended = zmqrl(*words)
    assert ended.code == 2 and message in ended.err and ended.err.count("zmqrl: ") == 1


@pytest.mark.parametrize("words", [("status", "r"), ("down",), ("train", "cartpole-ppo"), ("logs", "-f")])
def test_an_unreachable_host_gives_one_message(zmqrl: Command, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: {gpu1: {ssh: 127.0.0.1, port: 1}}\n")
    ended = zmqrl(*words, "--on", "gpu1")
    assert ended.code == 2 and ended.err.count("zmqrl: ") == 1
    compare(ended.error, key=("--on",), value="gpu1")


@pytest.mark.usefixtures("own_folder")
def test_the_hosts_file_of_a_launch_defines_the_login_of_later_commands(tmp_path: Path) -> None:
    launched, here = tmp_path / "lab" / "gpus.yaml", Path("hosts.yaml")
    launched.parent.mkdir()
    launched.write_text("hosts: {gpu1: {ssh: 127.0.0.1}}\n")
    assert login_file(None, "gpu1") is None, "~/.ssh/config"
    remember("gpu1", launched)
    assert login_file(None, "gpu1") == launched and login_file(None, "gpu2") is None
    assert login_file(Path("other.yaml"), "gpu1") == Path("other.yaml"), "the one that is named"
    here.write_text("defaults: {user: ann}\n")
    assert login_file(None, "gpu1") == launched and login_file(None, "gpu2") == here
    launched.unlink()
    assert login_file(None, "gpu1") == here, "its file is gone"
    launched.write_text("hosts: {gpu1: {}}\n")
    here.write_text("hosts: {gpu1: {ssh: 127.0.0.2}}\n")
    assert login_file(None, "gpu1") == here


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZMQRL_CACHE", str(tmp_path / "cache"))


def test_a_command_that_another_machine_started_ends_with_its_stdin(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "launcher.log").write_text("begun\n")
    me = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    (tmp_path / "run.json").write_text(
        f'{{"run_id": "r-1", "pid": {os.getpid()}, "start_time": {me}, "host": "{os.uname().nodename}", '
        '"started_at": 0.0, "preset": null}'
    )
    command = [sys.executable, "-m", "zmqrl", "--until-eof", "logs", str(tmp_path), "-f"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdin is not None and follower.stdout is not None
        assert follower.stdout.readline() == b"launcher: begun\n"
        assert follower.poll() is None
        follower.stdin.close()
        assert until(lambda: follower.poll(), "its end") == 130


def test_the_view_of_another_host_reports_a_silent_launcher_by_the_clock_here() -> None:
    now = 100.0
    shown: list[tuple[int, list[str]]] = []
    lines = StatusLines(lambda status, notes: shown.append((status["env_steps"], [*notes])), lambda: now)

    def line(env_steps: int, written_at: float) -> bytes:
        status = {"env_steps": env_steps, "written_at": written_at}
        return json.dumps({"live": True, "status": status}).encode() + b"\n"

    whole = b"Welcome\n" + line(1, 5.0) + b'{"status": null}\n' + line(2, 6.0)
    assert all(lines.take(whole[start : start + 7]) for start in range(0, len(whole), 7))
    now += 9.0
    assert lines.take(line(2, 6.0))
    assert shown == [(1, []), (2, []), (2, ["no status from the launcher for 9 s"])]


@pytest.mark.parametrize(
    ("resume", "where"), [("auto", ["--run-dir", "runs/a", "--resume", "auto"]), ("runs/a", ["--resume", "runs/a"])]
)
def test_the_launcher_there_continues_what_auto_found(resume: str, where: list[str]) -> None:
    """With the run directory as `--resume`, `--from-scratch` would be refused there."""
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(TrainRequest))
    request = TrainRequest(**{**nothing, "resume": Path(resume), "from_scratch": True, "dry_run": False})
    start = _Start(request, cast("Any", None), Config(), cast("Any", None), "runs/a", b"{}")
    assert start._words("f.yaml") == ["launch", "f.yaml", *where, "--in-place", "--from-scratch"]


def test_this_machine_is_not_another_host(zmqrl: Command) -> None:
    for words in (("status",), ("stop",), ("fetch", "run-1")):
        ended = zmqrl(*words, "--on", "local")
        assert (ended.code, ended.err) == (
            2,
            "zmqrl: --on local: local is this machine; omit --on, or name another host\n",
        )
