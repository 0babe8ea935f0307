"""`down`: real runs ended with and without their launcher, and hosts that cannot be asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Command, live_run
from tests.support.raising import compare
from tests.support.waiting import until
from zmqrl.agent.run_processes import AGENT, agents, processes_of
from zmqrl.config.sections import Config
from zmqrl.launch.teardown import bring_down
from zmqrl.messages.orchestrator import Reaped
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.local import LocalOrchestrator
from zmqrl.run_files.run_info import RunInfo
from zmqrl.supervision.process_table import ProcessId, await_gone, is_alive
from zmqrl.wire.runtime_folder import private_folder

pytestmark = pytest.mark.whole


@dataclass(frozen=True)
class Live:
    directory: Path
    info: RunInfo
    processes: tuple[ProcessId, ...]

    @property
    def launcher(self) -> ProcessId:
        return ProcessId(self.info.pid, self.info.start_time)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For processes that do not end by themselves."""
    monkeypatch.setattr("zmqrl.launch.teardown.LAUNCHER_S", 1.0)
    monkeypatch.setattr("zmqrl.launch.teardown.bring_down", partial(bring_down, grace_s=1.0))


def agents_of(run: Live) -> list[ProcessId]:
    return [process for process, name in processes_of(run.info.run_id).items() if name == AGENT]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Live]]:
    """Runs without an end; the commands see these alone."""
    runs: list[Live] = []
    with ExitStack() as ends:

        def start(name: str) -> Live:
            directory = tmp_path / "elsewhere" / name
            info = ends.enter_context(live_run(directory))
            launcher = ProcessId(info.pid, info.start_time)
            runs.append(Live(directory, info, (launcher, *processes_of(info.run_id))))
            assert len(runs[-1].processes) >= 5
            return runs[-1]

        monkeypatch.setattr(
            "zmqrl.cli.run.find_run.agents", lambda: (a for a in agents() if a[1] in {run.info.run_id for run in runs})
        )
        yield start


def test_one_run_is_brought_down_and_another_continues(zmqrl: Command, begin: Callable[[str], Live]) -> None:
    other, target = begin("other"), begin("doomed")
    down = zmqrl("down", target.info.run_id)
    assert (down.code, down.err) == (0, "")
    launcher, local = down.out.splitlines()[1:]
    assert launcher == f"  launcher: ended launcher (pid {target.info.pid}), 0 processes left"
    assert local == "  local: 0 processes left"
    assert not await_gone(target.processes, 0.0)
    assert all(map(is_alive, other.processes))
    assert json.loads((target.directory / "summary.json").read_text())["status"] == "interrupted"
    rest = zmqrl("down", "--all")
    assert rest.code == 0
    assert rest.out.startswith(f"run {other.info.run_id}:")
    assert not await_gone(other.processes, 0.0)


@pytest.mark.usefixtures("short_waits")
def test_a_launcher_that_does_not_answer_is_killed_and_so_is_its_agent(
    zmqrl: Command, begin: Callable[[str], Live]
) -> None:
    run = begin("stopped")
    (agent,) = agents_of(run)
    for process in (run.launcher, agent):
        os.kill(process.pid, signal.SIGSTOP)
    down = zmqrl("down")
    assert down.code == 0, down.err
    assert f"killed launcher (pid {run.info.pid})" in down.out
    assert f"agent-0 (pid {agent.pid})" in down.out.splitlines()[2].partition("killed ")[2]
    assert not await_gone(run.processes, 0.0)
    assert not private_folder(run.info.run_id).exists()
    again = zmqrl("down", run.directory)
    assert again.out.splitlines()[1:] == ["  launcher: 0 processes left", "  local: 0 processes left"]
    assert zmqrl("down", "--all").out == "no active run of yours on this machine\n"


def is_removed(directory: Path) -> bool:
    """Whether it is gone; the learner may be writing and deleting checkpoints in it."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


@pytest.mark.usefixtures("short_waits")
def test_a_run_without_its_directory_is_known_by_its_processes(zmqrl: Command, begin: Callable[[str], Live]) -> None:
    run = begin("removed")
    for process in (run.launcher, *agents_of(run)):
        os.kill(process.pid, signal.SIGSTOP)  # or they would end by themselves
    until(lambda: is_removed(run.directory), "the end of the directory")
    down = zmqrl("down", run.info.run_id)
    assert down.code == 0, down.err
    assert not await_gone(run.processes[1:], 0.0)


def test_a_host_not_queried_is_named_with_its_cause(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    directory = copy_of(finished, tmp_path, {"gone": {"ssh": "127.0.0.1", "port": port}, "own": {"manual": True}})
    reports = [json.loads(line) for line in zmqrl("down", directory, "--json").out.splitlines()]
    assert {report["host"]: report["down"] for report in reports} == {
        "launcher": True, "local": True, "own": False, "gone": False,
    }  # fmt: skip
    assert str(port) in next(report["cause"] for report in reports if report["host"] == "gone")
    down = zmqrl("down", directory)
    assert down.code == 3
    lines = down.out.splitlines()
    assert lines[2] == "  local: 0 processes left"
    assert lines[3].startswith("  own: NOT VERIFIED: it joined manually")
    assert lines[4].startswith("  gone: NOT VERIFIED: ")
    assert str(port) in lines[4]
    assert down.err.startswith("zmqrl: not verified as ended: ")
    assert "on gone" in down.err
    assert zmqrl("down", directory, "--limit", "local").code == 0
    missing = zmqrl("down", directory, "--limit", "g0ne")
    assert (missing.code, missing.out) == (2, "")
    compare(missing.error, key=("--limit",), value="g0ne", what="unknown host or group")


def test_a_run_of_another_machine_is_not_reported_as_down(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    directory = copy_of(finished, tmp_path, {})
    data = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps({**data, "host": "far.away", "ended_at": None}))
    down = zmqrl("down", directory)
    assert down.code == 3
    assert down.out.count("far.away") == 2


class JobAccess(HostAccess):
    """Ends the job of a launcher, unless that has a bad name."""

    def end_job(self, job: str, wait_s: float) -> Reaped:
        return Reaped(left=(f"job {job}",)) if job == "stuck" else Reaped(ended=(f"job {job}",))


class Jobs(LocalOrchestrator):
    """An engine that can end the job of a launcher."""

    @classmethod
    def access(cls, config: Any, run: Config) -> HostAccess:
        return JobAccess(config, run)


@pytest.mark.parametrize(
    ("job", "code", "expected"), [("77", 0, "ended job 77, 0 processes left"), ("stuck", 3, "LEFT job stuck")]
)
def test_a_launcher_of_another_machine_is_ended_by_its_job(
    zmqrl: Command, finished: Path, tmp_path: Path, job: str, code: int, expected: str
) -> None:
    directory = copy_of(finished, tmp_path, {})
    stored = json.loads((directory / "config.json").read_text())
    stored["config"]["orchestrator"] = {"kind": "tests.cli.test_down:Jobs"}
    (directory / "config.json").write_text(json.dumps(stored))
    data = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps({**data, "host": "far.away", "ended_at": None, "job": job}))
    down = zmqrl("down", directory)
    assert (down.code, f"launcher: {expected}" in down.out) == (code, True), (down.out, down.err)
    assert (json.loads((directory / "run.json").read_text())["ended_at"] is None) == (code != 0)


def test_hosts_of_a_live_run_are_drained_not_brought_down(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    directory = copy_of(finished, tmp_path, {})
    data = json.loads((directory / "run.json").read_text())
    with subprocess.Popen(["sleep", "600"]) as launcher:
        start_time = int(Path(f"/proc/{launcher.pid}/stat").read_text().rpartition(")")[2].split()[19])
        live = {"pid": launcher.pid, "start_time": start_time, "ended_at": None}
        (directory / "run.json").write_text(json.dumps({**data, **live}))
        down = zmqrl("down", directory, "--limit", "local")
        typo = zmqrl("down", directory, "--limit", "l0cal")
        assert typo.code == 2
        compare(typo.error, key=("--limit",), value="l0cal")  # the name is checked first
        assert launcher.poll() is None
        launcher.kill()
    assert down.code == 2
    compare(down.error, key=("--limit",), fix=f"remove the host from the run: zmqrl drain {data['run_id']} HOST")


def copy_of(finished: Path, tmp_path: Path, hosts: dict[str, object]) -> Path:
    """A run that has ended, as if it had had further hosts."""
    directory = tmp_path / "copy"
    shutil.copytree(finished / "seed-1", directory, ignore=shutil.ignore_patterns(".owner"))
    stored = json.loads((directory / "config.json").read_text())
    stored["config"]["hosts"] |= {name: {**stored["config"]["hosts"]["local"], **host} for name, host in hosts.items()}
    (directory / "config.json").write_text(json.dumps(stored))
    return directory
