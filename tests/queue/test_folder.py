"""The folder of a queue: what counts, what is created once, and what it costs to read."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.queue.samples import record
from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.queue.folder import HOLD, STOP, QueueFolder, open_queue
from zmqrl.queue.records import AttemptEnd, AttemptRecord, JobEnd, JobNeeds, JobRecord, RunnerRecord
from zmqrl.supervision import owner_record

ME = os.geteuid()
OTHER = ME + 1
JOBS = 1000


def own(**changes: Any) -> JobRecord:
    return replace(record(ME), **changes)


def of_job(number: int, **changes: Any) -> AttemptRecord:
    return replace(AttemptRecord(ME, number, "a", (0,), "r"), **changes)


@pytest.fixture
def queue(tmp_path: Path) -> QueueFolder:
    return open_queue(tmp_path)


def test_what_is_written_is_read(queue: QueueFolder) -> None:
    job = queue.add(own())
    assert (job.number, job.record.run_dir) == (1, "/runs/x-job1")
    assert queue.add(own()).number == 2
    assert queue.add(own(), is_numbered=False).record.run_dir == "/runs/x"
    assert queue.create_attempt(1, of_job(1))
    assert not queue.create_attempt(1, of_job(2))
    queue.request(1, STOP)
    queue.request(1, STOP)
    queue.request(2, HOLD)
    queue.request(2, "preempt-1")
    for reader in (queue, QueueFolder(queue.path)):
        found = reader.read()
        assert found.last_attempt == 1
        assert [attempt.record for attempt in found.jobs[1].attempts] == [of_job(1)]
        assert (found.jobs[1].is_stopped, found.jobs[1].is_held, found.jobs[1].preempts) == (True, False, frozenset())
        assert (found.jobs[2].is_stopped, found.jobs[2].is_held, found.jobs[2].preempts) == (
            False,
            True,
            frozenset({1}),
        )
    assert queue.close_attempt(1, 1, AttemptEnd("done", 0))
    assert not queue.close_attempt(1, 1, AttemptEnd("lost"))
    assert queue.end_job(1, JobEnd("done", 0))
    assert not queue.end_job(1, JobEnd("failed", 1))
    queue.withdraw(2, HOLD)
    for reader in (queue, QueueFolder(queue.path)):
        found = reader.read()
        assert (found.jobs[1].end, found.jobs[1].last_end) == (JobEnd("done", 0), AttemptEnd("done", 0))
        assert not found.jobs[2].is_held
    assert not list(queue.path.rglob(".*"))


@pytest.mark.parametrize(
    "changes",
    [{"needs": JobNeeds(70_000)}, {"needs": JobNeeds(1, 2000)}, {"overrides": ("x" * (1 << 19),) * 3}],
)
def test_a_job_that_would_not_count_is_refused(queue: QueueFolder, changes: dict[str, Any]) -> None:
    with raises(ConfigError, value="the job"):
        queue.add(own(**changes))
    assert not os.listdir(queue.path)


def test_a_job_and_its_end_survive_a_power_cut(queue: QueueFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = dict[int, int]()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.update({os.fstat(fd).st_ino: os.fstat(fd).st_size}))

    def is_synced(*paths: Path) -> bool:
        return all(synced.get(path.stat().st_ino) == path.stat().st_size for path in paths)

    folder = queue.job_folder(queue.add(own()).number)
    assert is_synced(folder / "job", folder, queue.path)
    synced.clear()
    queue.end_job(1, JobEnd("done", 0))
    assert is_synced(folder / "end", folder)


def test_a_path_is_of_any_bytes(queue: QueueFolder) -> None:
    job = queue.add(own(folder=os.fsdecode(b"/\xff")))
    assert QueueFolder(queue.path).read().jobs[1] == job


def test_numbers_are_given_once_also_where_a_creation_did_not_complete(queue: QueueFolder) -> None:
    queue.job_folder(1).mkdir()
    assert queue.add(own()).number == 2
    assert queue.read().jobs.keys() == {2}


@pytest.mark.parametrize("digits", [9, 18, 200])
def test_a_file_with_a_high_number_does_not_use_up_the_numbers(queue: QueueFolder, digits: int) -> None:
    assert queue.add(own()).number == 1
    for kind in ("job", "attempt"):
        (queue.path / f"{kind}-{'9' * digits}").mkdir()
    assert queue.add(own()).number == 2
    assert queue.create_attempt(queue.read().last_attempt + 1, of_job(2))
    found = QueueFolder(queue.path).read()
    assert (found.last_attempt, [attempt.number for attempt in found.jobs[2].attempts]) == (1, [1])
    (queue.path / "job-1000").mkdir()  # others were removed
    assert queue.add(own()).number == 1001


def write(path: Path, value: msgspec.Struct) -> None:
    path.write_bytes(msgspec.json.encode(value))
    path.chmod(0o644)


def linked(queue: QueueFolder) -> None:
    (queue.path / "record").write_bytes(msgspec.json.encode(own()))
    (queue.job_folder(1) / "job").symlink_to(queue.path / "record")


FOREIGN: dict[str, Callable[[QueueFolder], object]] = {
    "a record that names another user": lambda queue: write(queue.job_folder(1) / "job", own(uid=OTHER)),
    "a link": linked,
    "a pipe": lambda queue: os.mkfifo(queue.job_folder(1) / "job"),
    "a folder": lambda queue: (queue.job_folder(1) / "job").mkdir(),
    "no JSON": lambda queue: (queue.job_folder(1) / "job").write_bytes(b"\xff{"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_does_not_count(queue: QueueFolder, name: str) -> None:
    queue.job_folder(1).mkdir(mode=0o755)
    FOREIGN[name](queue)
    assert queue.read().jobs == {}
    assert queue.add(own()).number == 2


@pytest.mark.parametrize("path", ["job-1", "job-1/job"])
def test_a_job_that_others_can_write_to_does_not_count(queue: QueueFolder, path: str) -> None:
    queue.add(own())
    (queue.path / path).chmod(0o775)
    assert queue.read().jobs == {}


def test_an_attempt_counts_for_the_job_of_its_user(queue: QueueFolder) -> None:
    queue.add(own())
    write(queue.path / "attempt-1", of_job(1, uid=OTHER))
    assert queue.create_attempt(2, of_job(7))
    found = queue.read()
    assert found.jobs[1].attempts == ()
    assert found.last_attempt == 2


@pytest.mark.skipif(ME != 0, reason="only root gives files away")
def test_the_files_of_another_user_are_not_those_of_this_one(queue: QueueFolder) -> None:
    queue.add(own())
    os.chown(queue.job_folder(1) / "job", OTHER, -1)
    assert queue.read().jobs == {}
    write(queue.job_folder(1) / "job", own(uid=OTHER))
    os.chown(queue.job_folder(1) / "job", OTHER, -1)
    assert queue.read().jobs == {}  # its folder is root's
    os.chown(queue.job_folder(1), OTHER, -1)
    assert queue.read().jobs[1].record.uid == OTHER


def test_an_attempt_that_is_being_written_counts_once_it_is_whole(queue: QueueFolder) -> None:
    """A file system without links shows a record before it is written."""
    queue.add(own())
    (queue.path / "attempt-1").touch()
    assert (queue.read().jobs[1].attempts, queue.read().last_attempt) == ((), 1)
    write(queue.path / "attempt-1", of_job(1))
    assert [attempt.record for attempt in queue.read().jobs[1].attempts] == [of_job(1)]


def test_an_end_that_a_power_cut_emptied_is_an_end(queue: QueueFolder) -> None:
    queue.add(own())
    queue.create_attempt(1, of_job(1))
    for name in ("ended-1", "end"):
        (queue.job_folder(1) / name).touch()
    found = queue.read().jobs[1]
    assert (found.end, found.last_end) == (JobEnd("failed"), AttemptEnd("lost"))


def test_records_that_could_not_be_read_for_a_time_count_afterwards(queue: QueueFolder) -> None:
    """As those of a user whose Kerberos ticket has expired."""
    queue.add(own())
    queue.create_attempt(1, of_job(1))
    queue.close_attempt(1, 1, AttemptEnd("done", 0))
    queue.end_job(1, JobEnd("done", 0))
    records = [queue.path / "attempt-1", *(queue.job_folder(1) / name for name in ("ended-1", "end"))]
    contents = [path.read_bytes() for path in records]
    for path in records:
        path.unlink()
        path.symlink_to(path)
    found = queue.read()
    assert (found.jobs[1].attempts, found.jobs[1].end, found.last_attempt) == ((), None, 1)
    for path, content in zip(records, contents, strict=True):
        path.unlink()
        path.write_bytes(content)
        path.chmod(0o644)
    job = queue.read().jobs[1]
    assert (job.last_end, job.end) == (AttemptEnd("done", 0), JobEnd("done", 0))


@pytest.mark.skipif(ME != 0, reason="only root gives files away")
def test_a_uid_has_ten_digits(queue: QueueFolder) -> None:
    """As those of a directory service."""
    uid, folder = 3_000_000_000, queue.runner_folder(3_000_000_000)
    folder.mkdir(mode=0o755)
    (folder / owner_record.FOLDER).mkdir()
    write(folder / "runner", RunnerRecord(uid, ("a",)))
    for path in (folder / "runner", folder):
        os.chown(path, uid, -1)
    assert [found for found, _, _ in queue.runners()] == [uid]


def test_runners_are_read_with_their_heartbeat(queue: QueueFolder) -> None:
    assert list(queue.runners()) == []
    owners = queue.runner_folder(ME) / owner_record.FOLDER
    owners.mkdir(parents=True)
    (owners / "3").write_bytes(b"beat")
    for record_of in (RunnerRecord(OTHER, ("a",)), RunnerRecord(ME, ("a",))):
        write(queue.runner_folder(ME) / "runner", record_of)
        queue.runner_folder(ME).chmod(0o755)
        assert list(queue.runners()) == ([(ME, record_of, b"beat")] if record_of.uid == ME else [])
    os.truncate(owners / "3", 1 << 20)
    assert list(queue.runners()) == [], "a heartbeat has a few bytes"


def test_a_folder_in_which_others_can_remove_files_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError, key=("--queue",), value=str(tmp_path / "none")):
        open_queue(tmp_path / "none")
    tmp_path.chmod(0o777)
    with raises(ConfigError, key=("--queue",), what="other users can remove files in it"):
        open_queue(tmp_path)
    tmp_path.chmod(0o1777)
    open_queue(tmp_path)


def test_a_folder_to_which_this_user_cannot_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root writes to all
    open_queue(tmp_path)
    with raises(ConfigError, key=("--queue",), value=str(tmp_path), what="you cannot add files to it"):
        open_queue(tmp_path, writes=True)


def test_a_thousand_jobs_are_read_in_a_few_times_what_their_files_take(
    queue: QueueFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for number in range(1, JOBS + 1):
        queue.add(own())
        queue.create_attempt(number, of_job(number))
        if number % 2:
            queue.close_attempt(number, number, AttemptEnd("done", 0))
            queue.end_job(number, JobEnd("done", 0))
    files = [path for path in queue.path.rglob("*") if path.is_file()]

    def seconds(act: Callable[[], object]) -> float:
        begun = time.process_time()
        act()
        return time.process_time() - begun

    pairs = [
        (seconds(lambda: [path.read_bytes() for path in files]), seconds(QueueFolder(queue.path).read))
        for _ in range(3)
    ]
    ratio = min(reading / plain for plain, reading in pairs)
    assert ratio < 12, pairs
    again = min(seconds(queue.read) for _ in itertools.repeat(None, 3))
    assert again < min(reading for _, reading in pairs)
