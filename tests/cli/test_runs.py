"""`status`, `logs`, `stop`, `clean`: of a run that lives, started detached, and of one that has ended."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import ENDLESS, Command, live_run, with_constant
from tests.support.raising import compare
from tests.support.waiting import WAIT_S, until
from zmqrl.cli.run.find_run import agents
from zmqrl.errors import ConfigError
from zmqrl.run_files.run_info import RunInfo, read_info
from zmqrl.supervision import owner_record, run_owner
from zmqrl.supervision.process_table import ProcessId, await_gone, identify, kill
from zmqrl.wire.runtime_folder import RUNTIME_VARIABLE, private_folder

pytestmark = pytest.mark.whole


NO_RUN_OR_LOG = (
    "no run {!r}: it is not a run directory, and not the id of a run that is active or in runs/; "
    "{} has no log with this name"
)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, RunInfo]]:
    """The one live run that the commands see; others of this user on this machine are not this test's business.

    A sync run without an end, in a directory that is not below the tests' working directory.
    """
    run_dir = tmp_path / "elsewhere" / "live"
    with live_run(run_dir) as info:
        monkeypatch.setattr("zmqrl.cli.run.find_run.agents", lambda: (a for a in agents() if a[1] == info.run_id))
        yield run_dir, info


def test_a_live_run_is_found_shown_and_stopped(
    zmqrl: Command, live: tuple[Path, RunInfo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, info = live
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fix = f"give RUN: your active runs elsewhere are\n  {run_dir}"
    for command in ("status", "stop"):
        refused = zmqrl(command)
        assert refused.code == 2
        compare(refused.error, what=f"no active run below {Path.cwd()} and no run in runs/", fix=fix)
    compare(zmqrl("drain", "node01").error, fix=fix)
    refused = zmqrl("logs", "learner")
    what = f"no run 'learner'; no active run below {Path.cwd()} and no run in runs/; {fix}"
    compare(refused.error, what=what)
    monkeypatch.chdir(tmp_path)
    for named in ([], [info.run_id], [run_dir]):
        shown = zmqrl("status", *named)
        assert shown.code == 0
        assert shown.out.startswith((f"{info.run_id}: starting", f"{info.run_id}: running"))
        data = json.loads(zmqrl("status", *named, "--json").out)
        assert (data["run_id"], data["run_dir"], data["live"]) == (info.run_id, str(run_dir), True)
        assert data["summary"] is None and (data["status"] is None or data["status"]["run_id"] == info.run_id)
    assert "local/worker-0" not in zmqrl("logs", info.run_id, "learner").out
    lines = [json.loads(line) for line in zmqrl("logs", info.run_id, "agent", "--json").out.splitlines()]
    assert all(line["process"] == "local/agent-0" for line in lines)
    assert any("INFO zmqrl.agent.process_events: worker-0 started (pid " in line["line"] for line in lines)
    ended = zmqrl("clean")
    assert ended.code == 0
    assert private_folder(info.run_id).is_dir()
    stopped = zmqrl("stop", "--wait", "--json")
    assert stopped.code == 0
    assert not await_gone([ProcessId(info.pid, info.start_time)], WAIT_S)
    summary = json.loads((run_dir / "summary.json").read_text())
    place = {"run_dir": str(run_dir), "run_id": info.run_id}
    assert json.loads(stopped.out) == {**place, "ended": True, "summary": summary}
    assert (summary["status"], summary["exit_code"]) == ("stopped", 0)
    assert zmqrl("status", run_dir).out.startswith(f"{info.run_id}: stopped with exit code 0")


@pytest.mark.whole
def test_a_detached_launch_waiting_for_a_host_reports_it_and_stops_at_sigterm(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("run: {preset: cartpole-ppo}\nhosts: {local: {workers: 1}, away: {manual: true, workers: 1}}\n")
    run_dir = tmp_path / "run"
    program = with_constant("zmqrl.launcher_place.detach", "REPORT_S", 1.0)
    command = [*program, "launch", hosts, *ENDLESS[:-2], "--run-dir", run_dir, "--detach"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launch:
        assert launch.stdout is not None and launch.stderr is not None
        line = next(line for line in launch.stderr if "zmqrl status" in line)
        info = until(lambda: read_info(run_dir), "run.json")
        launch.terminate()
        out, err = launch.communicate(timeout=WAIT_S)
    assert str(run_dir) in line and "not ready" in line
    assert launch.returncode == 130, err
    assert "continues in the background" not in out
    assert not await_gone([ProcessId(info.pid, info.start_time)], 0.0)


def test_following_ends_with_the_run(live: tuple[Path, RunInfo]) -> None:
    run_dir, info = live
    command = [sys.executable, "-m", "zmqrl", "status", "-f", str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as status:
        assert status.stdout is not None
        first = status.stdout.readline()
        kill(ProcessId(info.pid, info.start_time))
        rest, _ = status.communicate(timeout=WAIT_S)
    assert first.startswith((f"{info.run_id}: starting", f"{info.run_id}: running"))
    assert "ended without a summary" in rest
    assert rest.rstrip().endswith(f"resume with: zmqrl train --resume {run_dir}")
    assert status.returncode == 0


def test_an_ended_run_is_shown_by_its_summary(zmqrl: Command, finished: Path) -> None:
    shown = zmqrl("status", finished / "seed-2")
    summary = json.loads((finished / "seed-2" / "summary.json").read_text())
    assert shown.out.startswith(f"{summary['run_id']}: done with exit code 0, {summary['env_steps']:,} env steps")


def test_an_ended_run_as_json(zmqrl: Command, finished: Path) -> None:
    data = json.loads(zmqrl("status", finished / "seed-2", "--json").out)
    assert data["live"] is False
    assert data["summary"] == json.loads((finished / "seed-2" / "summary.json").read_text())
    assert data["status"]["phase"] == "ended"


def test_the_newest_run_here_is_meant_by_default(
    zmqrl: Command, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished.parent)
    newest = read_info(finished / "seed-2")
    assert newest is not None
    first, second, *_ = zmqrl("status").out.splitlines()
    assert first == f"no active run here; the last one is {newest.run_id} in runs/seed-2, done"
    assert second.startswith(f"{newest.run_id}: ")
    data = json.loads(zmqrl("status", "--json").out)
    assert (data["run_id"], data["live"], data["state"]) == (newest.run_id, False, "done")
    older = read_info(finished / "seed-1")
    assert older is not None
    assert zmqrl("status", older.run_id).out.startswith(f"{older.run_id}: ")


def test_the_logs_of_a_healthy_run_name_its_processes(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    lines = zmqrl("logs", finished / "seed-2").out.splitlines()
    for name in ("local/agent-0", "local/learner-0", "local/evaluator-0"):
        (line,) = (line for line in lines if line.startswith(f"{name}: ") and ") starts: " in line)
        role = name.removeprefix("local/")
        assert f" {role} (pid " in line and ") starts: zmqrl " in line and "device cpu, 1 thread" in line
    empty = shutil.copytree(finished / "seed-2", tmp_path / "empty")
    for log in (empty / "logs").iterdir():
        log.write_text("")
    shown = zmqrl("logs", empty)
    assert (shown.code, shown.out, shown.err) == (0, "", f"no log lines yet in {empty / 'logs'}\n")


def test_logs_are_narrowed_by_role(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished / "seed-1", run)
    log = run / "logs" / "local-learner-0.log"
    log.write_text("".join(f"line {n}\n" for n in range(30)))
    shown = zmqrl("logs", run, "learner", "-n", "2")
    assert shown.out.splitlines() == ["local/learner-0: line 28", "local/learner-0: line 29"]
    missing = zmqrl("logs", run, "worker-3")
    assert missing.code == 2
    compare(missing.error, what=f"no log of 'worker-3' in {run}")


@pytest.fixture
def logs(finished: Path, tmp_path: Path) -> Path:
    """A finished run's directory with logs of our own, the newest run in `runs/`."""
    directory = tmp_path / "runs" / "two-hosts"
    shutil.copytree(finished / "seed-2", directory)
    shutil.rmtree(directory / "logs")
    (directory / "logs").mkdir()
    for at, stem in enumerate(("local-learner-0", "node-1-worker-0", "node-1-worker-1", "local-worker-10", "launcher")):
        log = directory / "logs" / f"{stem}.log"
        log.write_text(f"first of {stem}\nsecond of {stem}\nbegun")
        os.utime(log, (at, at))
    return directory


@pytest.mark.parametrize(
    ("who", "shown"),
    [
        ("node-1/1", ["node-1/worker-1"]),
        ("node-1/worker-0", ["node-1/worker-0"]),
        ("node-1", ["node-1/worker-0", "node-1/worker-1"]),
        ("worker-1", ["node-1/worker-1"]),
        ("worker", ["node-1/worker-0", "node-1/worker-1", "local/worker-10"]),
        ("learner", ["local/learner-0"]),
        ("local-learner-0", ["local/learner-0"]),
        ("launcher", ["launcher"]),
    ],
)
def test_one_argument_names_a_log_of_the_newest_run(zmqrl: Command, logs: Path, who: str, shown: list[str]) -> None:
    for arguments in ((who,), (logs, who)):
        ended = zmqrl("logs", *arguments, "-n", "1")
        assert ended.out.splitlines() == [f"{name}: begun" for name in shown]


@pytest.mark.parametrize("name", ["node-1/3", "worker-9", "node07"])
def test_an_argument_that_is_neither_run_nor_log_lists_the_logs(zmqrl: Command, logs: Path, name: str) -> None:
    ended = zmqrl("logs", name)
    assert ended.code == 2
    known = "known: launcher, local/learner-0, local/worker-10, node-1/worker-0, node-1/worker-1"
    compare(ended.error, what=NO_RUN_OR_LOG.format(name, f"runs/{logs.name}"), fix=known)


def test_lines_are_picked_by_a_pattern(zmqrl: Command, logs: Path) -> None:
    shown = zmqrl("logs", "--grep", "^second.*worker-1$|launcher")
    assert shown.out.splitlines() == [
        "node-1/worker-1: second of node-1-worker-1",
        "launcher: first of launcher",
        "launcher: second of launcher",
    ]
    none = zmqrl("logs", "launcher", "--grep", "third")
    assert (none.code, none.out, none.err) == (0, "", f"no line in runs/{logs.name}/logs of launcher matches 'third'\n")
    bad = zmqrl("logs", "--grep", "(")
    assert bad.code == 2
    compare(bad.error, key=("--grep",), value="'('")


def test_a_pattern_shows_every_line_that_matches(zmqrl: Command, logs: Path) -> None:
    (logs / "logs" / "launcher.log").write_text("".join(f"line {n}\n" for n in range(30)))
    assert len(zmqrl("logs", "launcher").out.splitlines()) == 20
    assert len(zmqrl("logs", "launcher", "--grep", "line").out.splitlines()) == 30
    assert len(zmqrl("logs", "launcher", "--grep", "line", "-n", "2").out.splitlines()) == 2


def test_an_argument_that_is_no_run_or_log_is_refused(zmqrl: Command, logs: Path) -> None:
    missing = zmqrl("logs", "node-2/0")
    assert missing.code == 2
    compare(missing.error, what=NO_RUN_OR_LOG.format("node-2/0", f"runs/{logs.name}"))


@contextmanager
def ended_by_then(process: subprocess.Popen[str]) -> Iterator[None]:
    """A failed test does not wait for it."""
    try:
        yield
    finally:
        process.kill()


def test_following_shows_lines_of_all_logs_as_they_come(live: tuple[Path, RunInfo]) -> None:
    """Also of a log that was not there, of one that was emptied, and only whole lines until the run has ended."""
    run_dir, info = live
    one, two = run_dir / "logs" / "far-worker-7.log", run_dir / "logs" / "far-worker-8.log"
    one.write_text("there before\n")
    command = [sys.executable, "-m", "zmqrl", "logs", str(run_dir), "far", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as logs, ended_by_then(logs):
        assert logs.stdout is not None
        lines = iter(logs.stdout.readline, "")
        assert next(lines) == "far/worker-7: there before\n"
        two.write_text("new\nhalf")
        assert next(lines) == "far/worker-8: new\n"
        one.write_text("emptied\n")
        assert next(lines) == "far/worker-7: emptied\n"
        with two.open("a") as log:
            log.write(" a line\nand no end")
        assert next(lines) == "far/worker-8: half a line\n"
        kill(ProcessId(info.pid, info.start_time))
        assert list(lines) == ["far/worker-8: and no end\n"]
        assert logs.wait(WAIT_S) == 0


def test_the_hosts_of_a_live_run_are_shown_as_a_table(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    status = {
        "run_id": "r",
        "mode": "sync",
        "phase": "running",
        "progress": 0.5,
        "eta_s": None,
        "score": {},
        "env_steps": 5,
        "total_env_steps": 10,
        "wall_s": 3.0,
        "written_at": time.time() - 60,
        "metrics": {"checkpoint_interval_s": 42.4, "train_return_mean_100": 22.0, "report/comfort": -0.61},
        "checkpoint_every_s": 10.0,
        "bottleneck": None,
        "workers": [{"index": 3, "env_steps_per_s": 1234.567890123456, "wait_fraction": 0.123456789012345}],
        "problems": ["gpu1: was away for 9 s"],
        "severities": ["note"],
        "refused": {"curve": 3},
        "recovery": "restart_episode",
        "hosts": [
            {"host": "gpu1", "state": "ready", "workers": 8, "ready": 8, "env_steps_per_s": 6100.0, "last_s": 0.2},
            {"host": "n07", "state": "lost", "workers": 15, "ready": 0, "cause": "no lease for 34 s\n  fix"},
        ],
    }
    me = identify(os.getpid())
    assert me is not None
    info = {"run_id": "r", "pid": me.pid, "start_time": me.start_time, "host": socket.gethostname()}
    (tmp_path / "run.json").write_text(json.dumps({**info, "started_at": time.time(), "preset": None}))
    (tmp_path / "status.json").write_text(json.dumps(status))
    shown = zmqrl("status", tmp_path)
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    slow = "a durable checkpoint every 42 s (slow writes)"
    assert lines[0].endswith(f"return 22.0, comfort -0.61, {slow}, env.recovery restart_episode, rejected curve: 3")
    assert lines[1] == "no status from the launcher for 60 s"
    assert [line.split() for line in lines[2:]] == [
        ["HOST", "STATE", "WORKERS", "STEPS/s", "LAST"],
        ["gpu1", "ready", "8/8", "6,100", "0"],
        ["n07", "lost", "0/15", "-", "-", "no", "lease", "for", "34", "s"],
        ["index", "3", "env_steps_per_s", "1,235", "wait_fraction", "0.1235"],
        ["note:", "gpu1:", "was", "away", "for", "9", "s"],
    ]


def test_on_a_terminal_following_shows_the_launchers_display(live: tuple[Path, RunInfo]) -> None:
    run_dir, info = live
    ours, theirs = pty.openpty()
    wide = {**os.environ, "COLUMNS": "160", "TERM": "xterm"}
    command = [sys.executable, "-m", "zmqrl", "status", "-f", str(run_dir)]
    with subprocess.Popen(command, stdout=theirs, text=True, env=wide) as status, ended_by_then(status):
        os.close(theirs)
        seen = b""
        while b"bottleneck:" not in seen or b"EPISODES" not in seen:
            seen += os.read(ours, 4096)
        kill(ProcessId(info.pid, info.start_time))
        try:
            while more := os.read(ours, 4096):
                seen += more
        except OSError:
            pass  # EIO: the other end is closed
        assert status.wait(WAIT_S) == 0
    os.close(ours)
    assert info.run_id.encode() in seen and b" sync " in seen
    assert b"ended without a summary" in seen


def test_stop_means_the_whole_series(zmqrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "series"
    endless = [*ENDLESS, "--mode", "single", "--plain"]
    command = [sys.executable, "-m", "zmqrl", "train", "cartpole-ppo", *endless, "--seeds", "3"]
    command += ["--run-dir", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as series, ended_by_then(series):
        begun = folder / "seed-1" / "metrics.jsonl"
        until(lambda: begun.exists() or series.poll() is not None, "metrics", WAIT_S)
        assert zmqrl("stop", folder / "seed-1").code == 0
        _, errors = series.communicate(timeout=WAIT_S)
    assert series.returncode == 0
    assert "2 of 3 seeds were not run" in errors
    assert sorted(path.name for path in folder.iterdir()) == ["seed-1"]
    assert json.loads((folder / "seed-1" / "summary.json").read_text())["status"] == "stopped"


def test_a_run_that_ended_or_is_elsewhere_is_not_stopped(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    ended = zmqrl("stop", finished / "seed-1")
    assert ended.code == 2
    compare(ended.error, what="is not running")
    data = json.loads((finished / "seed-1" / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**data, "host": "far.away", "ended_at": None}))
    ended = zmqrl("stop", tmp_path)
    assert ended.code == 2
    compare(ended.error, fix=f"stop it there: zmqrl stop {tmp_path}")
    assert isinstance(ended.error, ConfigError) and "far.away" in ended.error.what


def test_the_status_of_a_run_on_another_machine_is_shown_while_it_renews_its_directory(
    zmqrl: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "far"
    shutil.copytree(finished / "seed-1", directory)
    (directory / "summary.json").unlink()
    data = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps({**data, "host": "far.away", "ended_at": None}))
    with monkeypatch.context() as patch:
        patch.setattr(owner_record, "machine", lambda: "another")
        owner = run_owner.RunOwner.acquire(directory, data["run_id"])
    live, shown = zmqrl("status", directory), json.loads(zmqrl("status", directory, "--json").out)
    owner.release()
    ended = zmqrl("status", directory)
    assert (shown["live"], shown["state"]) == (True, "ending"), "its processes have ended, its launcher has not"
    assert live.out.startswith(f"{data['run_id']}: ended, ") and "env steps in" in live.out, "the last phase"
    assert "ended without a summary: the launcher" in ended.out and f"zmqrl down {directory}" in ended.out


def test_a_pid_that_came_back_is_not_signalled(zmqrl: Command, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as bystander:
        process = identify(bystander.pid)
        assert process is not None
        info = {"run_id": "r", "pid": process.pid, "start_time": process.start_time - 1, "host": socket.gethostname()}
        (tmp_path / "run.json").write_text(json.dumps({**info, "started_at": time.time(), "preset": None}))
        assert zmqrl("stop", tmp_path).code == 2
        assert bystander.poll() is None
        bystander.kill()


def test_clean_removes_what_a_dead_run_left(
    zmqrl: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    monkeypatch.setenv(RUNTIME_VARIABLE, str(root))
    (root / "dead").mkdir(parents=True)
    (root / "held").mkdir()
    (root / "dead" / "control").touch()
    (root / "tmp-new-a").mkdir()  # of a process that was killed
    with socket.socket(socket.AF_UNIX) as bound, socket.socket(socket.AF_UNIX) as other:
        bound.bind(str(root / "held" / "control"))
        bound.listen()
        other.bind(bytes(tmp_path) + b"/\xff")  # of any process of the machine
        here = json.loads((Path(shutil.copytree(finished, "runs")) / "seed-1" / "run.json").read_text())["run_id"]
        (root / here).mkdir()
        ended = zmqrl("clean")
        assert ended.code == 0
        assert ended.out.splitlines() == [
            f"removed {root / here}",
            f"removed {root / 'tmp-new-a'}",
            "2 folders of dead runs removed",
            "of dead runs elsewhere: zmqrl clean dead",
        ]
        ended = zmqrl("clean", "dead", "held", "foo")
    assert ended.out.splitlines() == [f"removed {root / 'dead'}", "1 folder of dead runs removed"]
    held, foo = ended.err.splitlines()
    assert held.startswith("held: not removed: the run is active") and foo.startswith("foo: not removed: no socket")
    assert os.listdir(root) == ["held"]
    shutil.rmtree(root)
