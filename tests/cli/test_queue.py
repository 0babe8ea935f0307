"""`zmqrl queue`: what its commands print, change and refuse. `tests/queue/test_runner.py` has the runs."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.commands import Command
from tests.cli.test_run_table import stored
from tests.support.raising import compare, fields
from zmqrl.queue.folder import OUTPUT, QueueFolder
from zmqrl.queue.records import AttemptRecord, JobEnd, JobNeeds, JobRecord

QUEUE = Path("queue")
NO_SLOTS = "is not a number of cores and of GPUs"
URL = "https://hooks.lab"
FILE = "run: {name: own, preset: cartpole-ppo}\n"


def test_jobs_are_added_listed_held_and_stopped(zmqrl: Command, tmp_path: Path) -> None:
    Path("own.yaml").write_text(FILE)
    added = zmqrl("queue", "add", "cartpole-ppo", "--priority", "3", "--needs", "cores=4,gpus=1", "--set", "run.seed=5")
    assert (added.code, added.err) == (0, "")
    assert str(tmp_path / QUEUE) in added.out
    assert zmqrl("queue", "add", "own.yaml", "--after", "1").code == 0
    queue = QueueFolder(QUEUE)
    first, second = (job.record for job in queue.read().jobs.values())
    assert (first.preset, first.overrides, first.priority) == ("cartpole-ppo", ("run.seed=5",), 3)
    assert (first.needs, second.needs, second.after) == (JobNeeds(4, 1), JobNeeds(2, 0), (1,))
    assert (second.preset, second.folder) == (str(tmp_path / "own.yaml"), str(tmp_path))
    assert Path(second.run_dir).parent == tmp_path / "runs" and Path(second.run_dir).name.startswith("own-")
    rows = json.loads(zmqrl("queue", "list", "--json").out)
    assert [(row["job"], row["state"], row["position"], row["priority"], row["needs"]) for row in rows] == [
        (1, "waiting", 1, 3, "4 cores, 1 GPU"),
        (2, "after 1", None, 0, "2 cores"),
    ]
    assert zmqrl("queue", "hold", "1").code == 0
    stopped, listed = zmqrl("queue", "stop", "2"), zmqrl("queue", "list")
    held = listed.out.splitlines()
    assert stopped.code == 0 and stopped.err == listed.err != "", "no runner is active"
    assert [line.split()[2:4] for line in held] == [["STATE", "POSITION"], ["held", "-"], ["stopping", "-"]]
    assert zmqrl("queue", "hold", "1", "--release").code == 0
    queue.create_attempt(1, AttemptRecord(os.geteuid(), 1, "a", (), "r"))
    unstarted = zmqrl("queue", "log", "1")
    assert (unstarted.code, unstarted.out) == (0, "")
    (queue.job_folder(1) / OUTPUT).write_bytes(b"env steps \x1b[2J\n")
    assert zmqrl("queue", "log", "1").out == "env steps \\x1b[2J\n"
    (queue.job_folder(1) / OUTPUT).rename("moved")
    (queue.job_folder(1) / OUTPUT).symlink_to(Path("moved").absolute())
    assert (zmqrl("queue", "log", "1").code, zmqrl("queue", "log", "1").out) == (2, "")
    queue.end_job(2, JobEnd("stopped"))
    assert [row["state"] for row in json.loads(zmqrl("queue", "list", "--json").out)] == ["running", "stopped"]
    assert "will be" not in zmqrl("queue", "log", "2").err
    queue.end_job(1, JobEnd("done", 0))
    assert zmqrl("queue", "list").err == ""


def test_the_runs_of_a_folder_have_their_jobs_and_those_that_wait_a_position(zmqrl: Command, tmp_path: Path) -> None:
    for _ in range(3):
        assert zmqrl("queue", "add", "cartpole-ppo").code == 0
    queue = QueueFolder(QUEUE)
    run_dirs = [Path(job.record.run_dir) for job in queue.read().jobs.values()]
    assert not Path("runs").exists()
    assert len(json.loads(zmqrl("runs", "--json").out)) == 3
    assert zmqrl("runs", "none").code == 2
    stored(run_dirs[1], 40, live=True)
    queue.create_attempt(1, AttemptRecord(os.geteuid(), 2, "a", (), "r"))
    rows = json.loads(zmqrl("runs", "--json").out)
    assert [(row["run_dir"], row["state"], row["job"], row["position"]) for row in rows] == [
        (str(run_dirs[0]), "waiting", 1, 1),
        (str(run_dirs[2]), "waiting", 3, 2),
        (str(run_dirs[1]), "ending", 2, None),
    ]
    assert [line.split()[-1] for line in zmqrl("runs", "--state", "waiting").out.splitlines()[1:]] == ["1)", "2)"]
    (tmp_path / "other").mkdir()
    assert zmqrl("runs", "other").out == ""
    assert "JOB" not in zmqrl("runs", "--queue", "none").out


def test_runs_are_listed_without_a_queue_that_cannot_be_read(
    zmqrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: QueueFolder) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "queue")

    QUEUE.mkdir()
    stored(tmp_path / "runs" / "own", 40, live=True)
    monkeypatch.setattr(QueueFolder, "read", refused)
    ended = zmqrl("runs", "--json")
    assert (ended.code, len(json.loads(ended.out)), len(ended.err.splitlines())) == (0, 1, 1)


def test_another_folder_is_named_by_an_option_or_a_variable(zmqrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert zmqrl("queue", "add", "cartpole-ppo", "--queue", "lab/queue").code == 0
    monkeypatch.setenv("ZMQRL_QUEUE", "lab/queue")
    assert len(json.loads(zmqrl("queue", "list", "--json").out)) == 1
    assert not QUEUE.exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["add", "no-preset"], fields("run.preset")),
        (["add", "cartpole-ppo", "--set", "run.sede=1"], fields("run.sede")),
        *[
            (["add", "cartpole-ppo", "--needs", needs], fields("--needs", f"'{needs}'", what=NO_SLOTS))
            for needs in ("cores=0", "cores=two", "coers=1", "cores")
        ],
        (["add", "cartpole-ppo", "--after", "1"], fields("--after", "1")),
        (["add", "cartpole-ppo", "--set", "hosts.a.workers=1"], fields("hosts", "a")),
        (["add", "cartpole-ppo", "--set", f"webhook={URL}/SECRET"], fields("--set", f"webhook={URL}/...")),
        (["list"], fields("--queue", "queue")),
        (["list", "--queue", "file"], fields("--queue", "file")),
        (["run", "hosts.yaml"], fields("hosts", source="hosts.yaml")),
    ],
)
def test_what_is_refused(zmqrl: Command, words: list[str], error: dict[str, Any]) -> None:
    Path("hosts.yaml").write_text("hosts: {a: {workers: 1}}\n")
    Path("file").write_text("")
    ended = zmqrl("queue", *words)
    assert ended.code == 2
    compare(ended.error, **error)
    assert not list(QUEUE.glob("job-*"))


@pytest.mark.parametrize("command", ["stop", "hold"])
def test_requests_for_other_jobs_are_refused(zmqrl: Command, command: str) -> None:
    assert zmqrl("queue", "add", "cartpole-ppo").code == zmqrl("queue", "add", "cartpole-ppo").code == 0
    queue = QueueFolder(QUEUE)
    queue.end_job(2, JobEnd("done", 0))
    compare(zmqrl("queue", command, "1", "7").error, what="no such job", value="7")
    compare(zmqrl("queue", command, "1", "2").error, what="has ended: done", value="2")
    assert not queue.read().jobs[1].is_stopped and not queue.read().jobs[1].is_held


def test_a_queue_to_which_this_user_cannot_write_is_refused(
    zmqrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    QUEUE.mkdir()
    monkeypatch.setattr(os, "access", lambda path, *_: Path(path) != QUEUE)  # root writes to all
    for words in (["add", "cartpole-ppo"], ["run"]):
        refused = zmqrl("queue", *words)
        assert refused.code == 2
        compare(refused.error, key=("--queue",), value="queue")
    assert zmqrl("queue", "list").code == 0
    assert not list(QUEUE.iterdir())


def test_a_job_that_would_be_skipped_at_once_is_refused(zmqrl: Command) -> None:
    for _ in range(3):
        assert zmqrl("queue", "add", "cartpole-ppo").code == 0
    queue = QueueFolder(QUEUE)
    queue.end_job(1, JobEnd("done", 0))
    queue.end_job(2, JobEnd("failed", 1))
    assert zmqrl("queue", "stop", "3").code == 0
    for number in ("2", "3"):
        refused = zmqrl("queue", "add", "cartpole-ppo", "--after", "1", "--after", number)
        assert refused.code == 2
        compare(refused.error, key=("--after",), value=number)
    assert zmqrl("queue", "add", "cartpole-ppo", "--after", "1").code == 0
    assert queue.read().jobs.keys() == {1, 2, 3, 4}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_jobs_of_another_user_are_listed_and_not_changed(zmqrl: Command) -> None:
    assert zmqrl("queue", "add", "cartpole-ppo").code == 0
    path = QUEUE / "job-1" / "job"
    path.write_bytes(path.read_bytes().replace(b'"uid": 0', b'"uid": 12345'))
    assert msgspec.json.decode(path.read_bytes(), type=JobRecord).uid == 12345
    for each in (path, path.parent):
        os.chown(each, 12345, -1)
    assert [row["user"] for row in json.loads(zmqrl("queue", "list", "--json").out)] == ["12345"]
    compare(zmqrl("queue", "stop", "1").error, what="is a job of another user", value="1")
