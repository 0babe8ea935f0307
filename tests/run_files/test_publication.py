"""What launchers publish of their runs on a machine: real files, other users, and what a liar can write."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import stand_in_plan
from tests.supervision.test_host_lock import NOBODY, entry_of, folder_of, needs_root, put
from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import RunPlan
from zmqrl.run_files.publication import SILENT_S, Publication
from zmqrl.run_files.published_runs import merged, published_runs
from zmqrl.run_files.run_list import RunRow
from zmqrl.supervision.host_entry import user_name

STATUS: dict[str, Any] = {"phase": "running", "env_steps": 640, "metrics": {"train_return_mean_100": 21.5}}
USER = user_name(os.getuid())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    os.chmod(tmp_path, 0o755)
    return tmp_path / "agents"


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    return stand_in_plan(tmp_path / "run")


def file_of(plan: RunPlan, folder: Path) -> Path:
    """The file of a run that is published now."""
    Publication(plan, folder).renew(STATUS)
    (path,) = folder.parent.glob(f"{folder.name}-*/*.run")
    return path


def changed(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_run_is_shown_to_all_from_its_first_status_to_its_end(plan: RunPlan, folder: Path) -> None:
    publication = Publication(plan, folder)
    publication.end()
    assert published_runs(folder) == []
    publication.renew({**STATUS, "phase": "starting"})
    publication.renew(STATUS)
    (path,) = folder.parent.glob(f"{folder.name}-*/*")
    assert [stat.S_IMODE(found.stat().st_mode) for found in (path.parent, path)] == [0o755, 0o644]
    assert published_runs(folder) == [
        RunRow(
            run_id=plan.run_id,
            run_dir="",
            env="CartPole-v1",
            algorithm="ppo",
            live=True,
            state="running",
            env_steps=640,
            train_return_mean_100=21.5,
            best_score=None,
            best_by=None,
            started_at=plan.started_at,
            ended_at=None,
            host=socket.gethostname(),
            user=USER,
            reason=None,
        )
    ]
    publication.renew({**STATUS, "env_steps": 700})
    assert published_runs(folder)[0].env_steps == 640, "renewed every 5 s"
    publication.renew({**STATUS, "phase": "ending", "env_steps": 700, "metrics": {}})
    assert [(row.state, row.env_steps, row.train_return_mean_100) for row in published_runs(folder)] == [
        ("ending", 700, None)
    ]
    publication.end()
    assert published_runs(folder) == [] and not path.exists()


def test_the_umask_of_the_launcher_keeps_a_run_private(plan: RunPlan, folder: Path) -> None:
    before = os.umask(0o077)
    try:
        assert stat.S_IMODE(file_of(plan, folder).stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_register_that_cannot_be_written_does_not_disturb_the_run(plan: RunPlan, tmp_path: Path) -> None:
    publication = Publication(plan, tmp_path / "missing" / "agents")
    publication.renew(STATUS)
    publication.end()


@pytest.fixture
def ended() -> Iterator[int]:
    """The pid of a process that has ended, which no other process has while the test runs."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process.pid


def test_a_killed_launcher_is_not_shown_and_the_next_one_removes_its_file(
    plan: RunPlan, folder: Path, ended: int
) -> None:
    path = file_of(plan, folder)
    changed(path, pid=ended)
    assert published_runs(folder) == []
    Publication(replace(plan, run_id="next"), folder).renew(STATUS)
    assert [row.run_id for row in published_runs(folder)] == ["next"] and not path.exists()


def test_a_launcher_without_renewals_is_silent_and_one_out_of_sight_has_ended(plan: RunPlan, folder: Path) -> None:
    path = file_of(plan, folder)
    changed(path, kernel="another pid namespace", pid=1)
    assert [row.state for row in published_runs(folder)] == ["running"]
    for change_s in (-2 * SILENT_S, 4 * SILENT_S):
        os.utime(path, (0, path.stat().st_mtime + change_s))
        assert published_runs(folder) == []
    path = file_of(plan, folder)
    os.utime(path, (0, path.stat().st_mtime - 2 * SILENT_S))
    (row,) = published_runs(folder)
    assert row.state == "unknown" and "its launcher has been silent for 60 s" in str(row.reason)


@pytest.mark.parametrize(
    "fields",
    [
        {"uid": os.getuid() + 1},
        {"pid": 1 << 70},
        {"run_id": "x" * 300},
        {"env": "\x1b]0;title\x07"},
        {"state": "running\nfake"},
        {"env_steps": -1},
        {"env_steps": "many"},
        {"train_return_mean_100": 1e300},
        {"started_at": None},
        {"later": 1},
        {"host": "h" * 5000},
    ],
)
def test_a_file_that_is_no_record_of_its_owner_is_left_out(
    plan: RunPlan, folder: Path, fields: dict[str, object]
) -> None:
    path = file_of(plan, folder)
    own = path.with_name("own.run")
    own.write_bytes(path.read_bytes())
    changed(own, run_id="own")
    changed(path, **fields)
    assert [row.run_id for row in published_runs(folder)] == ["own"]


def test_what_is_in_place_of_a_file_is_not_opened(plan: RunPlan, folder: Path) -> None:
    path = file_of(plan, folder)
    os.mkfifo(path.with_name("pipe.run"))
    path.with_name("folder.run").mkdir()
    path.with_name("link.run").symlink_to(path)
    path.with_name("empty.run").touch()
    assert [row.run_id for row in published_runs(folder)] == [plan.run_id]


@needs_root
def test_files_and_folders_of_another_user(plan: RunPlan, folder: Path) -> None:
    path = file_of(plan, folder)
    theirs = folder_of(folder, NOBODY) / path.name
    theirs.write_bytes(path.read_bytes())
    path.unlink()
    assert published_runs(folder) == [], "a file of mine in their folder"
    os.chown(theirs, NOBODY, -1)
    assert published_runs(folder) == [], "their file, which names me"
    with subprocess.Popen(["sleep", "600"], user=NOBODY) as process:
        own = entry_of(process.pid, uid=NOBODY)
        changed(theirs, uid=NOBODY)
        assert published_runs(folder) == [], "their file, which names my process"
        changed(theirs, pid=own.pid, start_time=own.start_time)
        assert [row.user for row in published_runs(folder)] == [user_name(NOBODY)]
        process.kill()


def test_a_run_whose_launcher_is_elsewhere_is_shown_by_its_agent(plan: RunPlan, folder: Path) -> None:
    put(folder, replace(entry_of(os.getpid(), "far-1"), launcher="anna@laptop"))
    put(folder, entry_of(os.getpid(), plan.run_id))
    file_of(plan, folder)
    rows = {row.run_id: row for row in published_runs(folder)}
    assert rows.keys() == {"far-1", plan.run_id} and rows[plan.run_id].env == "CartPole-v1"
    assert to_json(rows["far-1"]) | {"started_at": 0} == {
        **dict.fromkeys(to_json(rows["far-1"])),
        "run_id": "far-1",
        "run_dir": "",
        "live": True,
        "state": "running",
        "started_at": 0,
        "host": "laptop",
        "user": USER,
    }
    complete = replace(rows["far-1"], env="CartPole-v1")
    assert [row.env for row in merged([[complete], [rows["far-1"]]])] == ["CartPole-v1"]
