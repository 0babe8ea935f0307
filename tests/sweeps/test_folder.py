"""The folder of a sweep: its records, and the versions that its runs have reached."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.queue.samples import record
from tests.support.raising import raises
from tests.sweeps.samples import RATES, made
from zmqrl.config.codec import replace
from zmqrl.config.paths import MOST_BYTES
from zmqrl.config.sections import Config
from zmqrl.data_stores import tensors
from zmqrl.errors import ConfigError
from zmqrl.queue.folder import STOP, QueueFolder
from zmqrl.queue.records import JobEnd
from zmqrl.run_files.stored_config import stored_config
from zmqrl.sweeps.folder import RECORDS, SWEEP, SweepFolder, ValueRecord

ME = os.geteuid()


def kept(run_dir: Path, version: str, env_steps: int) -> None:
    content = tensors.dump({}, {"env_steps": str(env_steps), "updates": "7"})
    (run_dir / "checkpoints").mkdir(exist_ok=True, parents=True)
    path = run_dir / "checkpoints" / f"kept-{version}.safetensors"
    path.write_bytes(content)
    os.truncate(path, MOST_BYTES + 1)


def with_job(folder: SweepFolder, queue: QueueFolder, trial: int = 0) -> Path:
    run_dir = folder.run_dir(trial, 0)
    queue.add(replace(record(ME), run_dir=str(run_dir)), is_numbered=False)
    return run_dir


def test_a_folder_is_found_again_and_that_of_another_sweep_is_refused(tmp_path: Path) -> None:
    folder, _ = made(tmp_path)
    folder.create_record("trial-0", {"algorithm.learning_rate": RATES[0]})
    folder.create_record("trial-0", {"algorithm.learning_rate": RATES[1]})
    again, _ = made(tmp_path)
    assert again.parameters(0) == SweepFolder(tmp_path / "s").parameters(0) == {"algorithm.learning_rate": RATES[0]}
    with raises(ConfigError, value=str(tmp_path / "s")):
        made(tmp_path, seeds=2)
    with raises(ConfigError, value=str(tmp_path / "q")):
        SweepFolder(tmp_path / "q")
    (tmp_path / "s" / SWEEP).write_bytes(b"\xff{}")
    with raises(ConfigError, value=str(tmp_path / "s")):
        SweepFolder(tmp_path / "s")


def test_a_stop_lasts_until_it_is_withdrawn(tmp_path: Path) -> None:
    folder, _ = made(tmp_path)
    for is_stopped in (True, True, False, False):
        folder.set_stopped(is_stopped)
        assert SweepFolder(tmp_path / "s").is_stopped is is_stopped


def test_a_trial_has_its_jobs_and_values(tmp_path: Path) -> None:
    folder, queue = made(tmp_path, seeds=2)
    for trial in range(2):
        folder.create_record(f"trial-{trial}", {})
    run_dir = with_job(folder, queue, 1)
    assert run_dir.relative_to(tmp_path) == Path("s/trial-1/seed-5")
    folder.create_record("value-1-0-0", ValueRecord(2.5))
    first, second = folder.trials(queue.read())
    assert (first.jobs, first.values) == ({}, {})
    assert ([job.number for job in second.jobs[0]], second.values) == ([1], {(0, 0): 2.5})
    (folder.path / RECORDS / "trial-2").write_bytes(b"")
    with raises(ConfigError, value=str(folder.path / RECORDS / "trial-2"), fix="remove it"):
        folder.trials(queue.read())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trial-0", b"[]"),
        ("trial-0", b"[" * 100_000),
        ("value-0-0-0", b""),
        ("value-0-0-0", b"[]"),
        ("value-0-0-0", b"{}"),
        ("value-0-0-0", b'{"value": "x"}'),
        ("value-0-0-0", b'{"value": 1e308}'),
        ("value-0-0-0", None),
    ],
)
def test_a_record_that_is_none_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    folder, queue = made(tmp_path)
    folder.create_record("trial-0", {})
    path = folder.path / RECORDS / name
    path.unlink(missing_ok=True)
    os.mkfifo(path) if content is None else path.write_bytes(content)
    with raises(ConfigError, value=str(path), fix="remove it"):
        folder.trials(queue.read())


def test_trials_count_up_to_the_first_without_a_record(tmp_path: Path) -> None:
    folder, queue = made(tmp_path)
    for name in ("trial-0", "trial-2", "trial-x"):
        folder.create_record(name, {})
    assert len(folder.trials(queue.read())) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"keys": {"seeds": 10**12}},
        {"keys": {"startup_trials": 0}},
        {"keys": {"rungs": [0]}},
        {"keys": {"rungs": list(range(1, 200))}},
        {"keys": {"needs": {"cores": 70_000}}},
        {"keys": {"parameters": {str(key): [1, 2] for key in range(20_000)}}},
        {"queue": "\0"},
        None,
    ],
)
def test_the_description_of_a_sweep_is_checked_when_it_is_read(tmp_path: Path, change: dict[str, Any] | None) -> None:
    folder, _ = made(tmp_path)
    path = folder.path / SWEEP
    data = json.loads(path.read_bytes())
    path.unlink()
    if change is None:
        os.mkfifo(path)
    else:
        keys = {**data["keys"], **change.pop("keys", {})}
        path.write_text(json.dumps({**data, "keys": keys, **change}))
    with raises(ConfigError, value=str(folder.path), fix="zmqrl sweep FILE makes one"):
        SweepFolder(folder.path)


def test_a_sweep_may_be_in_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"\xff")
    place.mkdir()
    folder, queue = made(place)
    folder.create_record("trial-0", {"a": "\udcff"})
    with_job(folder, queue)
    (trial,) = SweepFolder(folder.path).trials(queue.read())
    assert folder.sweep.folder == str(place) and trial.parameters == {"a": "\udcff"} and len(trial.jobs[0]) == 1


def test_a_rung_is_reached_by_the_first_version_that_has_its_env_steps(tmp_path: Path) -> None:
    folder, queue = made(tmp_path, rungs=(10, 30))
    folder.create_record("trial-0", {})
    run_dir = with_job(folder, queue)
    assert folder.trials(queue.read())[0].reached == {0: []}
    kept(run_dir, "0-4", 12)
    assert folder.trials(queue.read())[0].reached == {0: []}  # no run has begun
    (run_dir / "config.json").write_bytes(msgspec.json.encode(stored_config(Config())))
    assert folder.trials(queue.read())[0].reached == {0: ["0-4"]}
    kept(run_dir, "1-9", 29)
    assert folder.trials(queue.read())[0].reached == {0: ["0-4"]}
    kept(run_dir, "2-10", 31)
    kept(run_dir, "1-12", 40)
    assert folder.trials(queue.read())[0].reached == {0: ["0-4", "2-10"]}
    queue.end_job(1, JobEnd("done", 0))
    assert folder.trials(queue.read())[0].reached == {0: ["0-4", "2-10", "last"]}


@pytest.mark.parametrize(("status", "reached"), [("done", {0: ["last", "last"]}), ("failed", {0: []}), ("stopped", {})])
def test_a_run_that_ended_before_the_rung_has_its_last_version_there(
    tmp_path: Path, status: str, reached: dict[int, list[str]]
) -> None:
    folder, queue = made(tmp_path, rungs=(10,))
    folder.create_record("trial-0", {})
    with_job(folder, queue)
    queue.request(1, STOP)
    queue.end_job(1, msgspec.convert({"status": status}, JobEnd))
    assert folder.trials(queue.read())[0].reached == reached
