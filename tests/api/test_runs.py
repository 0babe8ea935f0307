"""Runs from Python: side by side in threads, in the background, stopped, failed, continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import zmqrl
from tests.cli.commands import SLOW, Command
from tests.cli.conftest import zmqrl as zmqrl_command  # noqa: F401 - a fixture
from tests.support.raising import fields, raises
from tests.support.running import RUN_S, environment
from tests.support.waiting import until
from zmqrl.run_files.run_info import read_info

pytestmark = pytest.mark.whole
SMALL: dict[str, Any] = {
    "mode": "single",
    "quiet": True,
    "run__total_env_steps": 512,
    "evaluator__episodes": 0,
    "algorithm": {"kind": "zmqrl.bench.noop:NoUpdate"},
}
ENDLESS = {**SMALL, **SLOW, "run__total_env_steps": 10**9, "run__stop_at_return": None}


def test_runs_in_threads_side_by_side_leave_the_process_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ), sys.stdout, signal.getsignal(signal.SIGINT)
    summaries: list[zmqrl.Summary] = []
    threads = [threading.Thread(target=lambda: summaries.append(zmqrl.train("cartpole-ppo", **SMALL))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RUN_S)
    assert [summary.status for summary in summaries] == ["done", "done"]
    assert summaries[0].weights_sha256 == summaries[1].weights_sha256
    assert len({summary.run_id for summary in summaries}) == len(os.listdir("runs")) == 2
    assert before[1:] == (sys.stdout, signal.getsignal(signal.SIGINT))
    changed = {name for name, value in os.environ.items() if before[0].get(name) != value}
    assert changed <= {"PYGAME_HIDE_SUPPORT_PROMPT"}, "which gymnasium sets"
    assert capfd.readouterr() == ("", "")
    directory = next(Path("runs").iterdir())
    (directory / "stop-requested").touch()  # it came too late for the first attempt
    again = zmqrl.resume(directory, for_env_steps=256, quiet=True)  # its lock was released
    assert again.status == "done"
    assert again.trained_env_steps is not None and again.trained_env_steps >= 256
    assert zmqrl.resume(directory, quiet=True).trained_env_steps == 0


def test_a_run_in_the_background_is_listed_and_stopped(
    tmp_path: Path,
    zmqrl_command: Command,  # noqa: F811
) -> None:
    run = zmqrl.start("cartpole-ppo", run_dir=tmp_path / "run", **ENDLESS)
    with pytest.raises(TimeoutError, match=f"run {run.run_id} has not ended within 0.1 s"):
        run.wait(0.1)
    until(lambda: run.metrics and run.progress.env_steps, "metrics", RUN_S)
    assert run.is_running and run.summary is None and run.progress.phase == "running"
    fix = f"stop it: `zmqrl stop {tmp_path / 'run'}`"
    with raises(zmqrl.ConfigError, value=f"run directory {tmp_path / 'run'}", fix=fix):
        zmqrl.start("cartpole-ppo", run_dir=tmp_path / "run", **ENDLESS)
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        run.wait(RUN_S)
    assert run.is_running and run.summary is None, "what was interrupted is the wait"
    info = read_info(tmp_path / "run")
    assert info is not None and info.in_thread and info.pid == os.getpid()
    assert zmqrl_command("stop", tmp_path / "run").code == 0, "and this process lives"
    summary = run.wait(RUN_S)
    assert (summary.status, summary.exit_code, run.summary) == ("stopped", 0, summary)
    assert (run.progress.phase, run.progress.env_steps) == ("ended", summary.env_steps)
    assert os.listdir(tmp_path / "run").count("stop-requested") == 0


def test_a_home_directory_is_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    zmqrl.train("cartpole-ppo", run_dir="~/a", **SMALL)
    assert (tmp_path / "a" / "summary.json").exists() and not Path("~").exists()
    with raises(zmqrl.ConfigError, value=f"run directory {tmp_path}/a", what="exists and is not empty"):
        zmqrl.train("cartpole-ppo", run_dir="~/a", **SMALL)
    assert zmqrl.resume("~/a", quiet=True).trained_env_steps == 0
    assert zmqrl.read_metrics("~/a", frame=False)


def test_a_callback_stops_a_run(tmp_path: Path) -> None:
    rows: list[Any] = []
    summary = zmqrl.train(
        "cartpole-ppo", run_dir=tmp_path / "run", on_metrics=lambda row: rows.append(row) or len(rows) < 2, **ENDLESS
    )
    assert summary.status == "stopped" and len(rows) >= 2


def test_a_callback_stops_no_run_that_is_done(tmp_path: Path) -> None:
    options = {**SMALL, "evaluator__episodes": 1}
    final = zmqrl.train("cartpole-ppo", run_dir=tmp_path / "run", on_score=lambda score: not score.is_final, **options)
    assert final.status == "done"


def test_a_failed_training_raises_with_its_summary(tmp_path: Path) -> None:
    fails = {**SMALL, "env__id": "tests.stand_ins.faulty_envs:Faulty", "env__max_episode_steps": 25}
    fails |= {"env__kwargs": {"fault": "raise", "after": 0, "works_in": os.getpid()}}
    with pytest.raises(zmqrl.TrainingFailed, match="the wheel came off") as caught:
        zmqrl.train("cartpole-ppo", run_dir=tmp_path / "a", **fails)
    summary = caught.value.summary
    assert summary is not None and (summary.status, summary.exit_code, summary.restarts) == ("failed", 1, 1)
    assert summary.error is not None and "twice before its first step" in summary.error
    assert summary.error.count("faulty_envs.py") == 1, "one traceback"
    unchecked = zmqrl.train("cartpole-ppo", run_dir=tmp_path / "b", check=False, **fails)
    assert unchecked.status == "failed"
    fails["env__kwargs"]["works_in"] = 0
    with raises(zmqrl.errors.ConfigError, key=("env", "id")) as refused:
        zmqrl.train("cartpole-ppo", run_dir=tmp_path / "c", **fails)
    assert refused.value.what.splitlines()[0] == "step raised RuntimeError: the wheel came off"
    assert not (tmp_path / "c").exists()


def test_nothing_is_left_of_a_run_that_its_learner_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = {**SMALL, "algorithm": {"kind": "tests.stand_ins.refused_learners:Refused"}}
    with raises(zmqrl.ConfigError, key=(), what="ConfigError: algorithm: no learner for this network"):
        zmqrl.train("cartpole-ppo", **refused)
    assert not os.listdir(tmp_path)
    with raises(zmqrl.ConfigError, key=(), what="ConfigError: algorithm: no learner for this network"):
        zmqrl.start("cartpole-ppo", **refused).wait(RUN_S)
    assert not os.listdir(tmp_path)


def test_a_run_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = f"import zmqrl\nrun = zmqrl.start('cartpole-ppo', run_dir='run', **{ENDLESS!r})\n"
    code += "import time\nuntil = time.monotonic() + 120\n"
    code += "while not run.metrics and time.monotonic() < until: time.sleep(0.05)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, timeout=RUN_S, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted" and summary["env_steps"] > 0


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (
            {"for_env_steps": 9},
            fields(what="for_env_steps continues a run: give resume=DIR; a new run has run__total_env_steps"),
        ),
        (
            {"resume": ".", "for_env_steps": 9, "run__total_env_steps": 99},
            fields("for_env_steps", "9", what="sets run.total_env_steps"),
        ),
        (
            {"resume": ".", "for_env_steps": 9, "run": {"total_env_steps": 99}},
            fields("for_env_steps", "9", what="sets run.total_env_steps"),
        ),
        ({"resume": "nowhere"}, fields("resume", "nowhere", what="run directory not found")),
        ({"resume": "nowhere", "seed": 3}, fields("seed", what="a resumed run keeps its own")),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], fault: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(zmqrl.ConfigError, **fault):
        zmqrl.start("cartpole-ppo", **arguments)
    assert os.listdir(tmp_path) == []
