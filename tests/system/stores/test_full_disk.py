"""The run directory on a disk of its own that fills up in mid-run: training goes on, and the user is told."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.runs.system_plans import IDLE, system_plan
from tests.support.runs.system_runs import PlanRun, newest_n
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection

Begin = Callable[[RunPlan], PlanRun]
DISK_MB = 16
FULL_S = 2.5
SLOW = EnvSection(
    id="tests.stand_ins.slow_envs:Slow", max_episode_steps=500, num_envs=2, vector_envs=4, segment_steps=32
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of `DISK_MB`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", folder], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # also with a run that did not end


def fill(disk: Path) -> Path:
    """To the last byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(disk).f_bavail == 0
    return filler


def keep_full(run: PlanRun, disk: Path, seconds: float) -> Path:
    """The store deletes old versions: what that frees is taken as well."""
    until = time.monotonic() + seconds
    filler = fill(disk)
    with filler.open("ab", buffering=0) as file:
        while time.monotonic() < until:
            assert run.process.poll() is None, run.end()
            with contextlib.suppress(OSError):
                file.write(bytes(4096))
            time.sleep(0.005)
    return filler


def plan_on(disk: Path, steps: int) -> RunPlan:
    return system_plan(disk / "run", "sync", 2, IDLE, SLOW, steps=steps, schedule_steps=steps)


def endless_plan_on(disk: Path) -> RunPlan:
    """Its checkpoints are elsewhere, so that it can be stopped."""
    return replace(plan_on(disk, 100_000), store_path=str(disk.with_name("checkpoints")))


def test_a_disk_that_is_full_for_a_while(disk: Path, begin: Begin) -> None:
    run = begin(plan_on(disk, 6000))
    run.wait_for_updates(5)
    filler = keep_full(run, disk, FULL_S)
    os.kill(run.processes()["worker-0"].pid, signal.SIGKILL)  # its successor has no room for a log
    filler.unlink()
    code, out, err = run.end()
    assert code == 0, f"{out}\n{err}"
    what = r"(status\.json|metrics|environment|a log)"
    full = rf"run directory {run.run_dir}: {what} cannot be written: No space left on device"
    assert re.search(full, err), err
    assert "writes succeed again" in err
    assert "Traceback" not in err
    summary = run.summary()
    assert (summary["status"], summary["restarts"]) == ("done", 1), "only the worker that was killed"
    assert summary["ledger"]["balanced"]
    assert newest_n(Path(run.plan.store_path), "full-") > 0
    assert json.loads((run.run_dir / "status.json").read_text())["phase"] == "ended"
    left = sorted(path.name for path in run.run_dir.iterdir() if path.name.startswith("."))
    assert left == [".owner"], "no temporary file stays"


def test_a_disk_that_stays_full_has_room_for_the_summary(disk: Path, begin: Begin) -> None:
    run = begin(endless_plan_on(disk))
    run.wait_for_updates(5)
    keep_full(run, disk, FULL_S)
    run.process.send_signal(signal.SIGUSR1)
    code, out, err = run.end()
    assert code == 0, f"{out}\n{err}"
    assert "Traceback" not in err
    assert run.summary()["status"] == "stopped"


def test_a_disk_that_goes_away_leaves_the_summary_on_stderr(disk: Path, begin: Begin) -> None:
    """Read-only, as a file system becomes after an error: not even the reserved space can be written."""
    run = begin(endless_plan_on(disk))
    run.wait_for_updates(5)
    # a file that is open for writing keeps a file system from being remounted; a bind mount elsewhere has no such files
    elsewhere = disk.with_name("read-only")
    elsewhere.mkdir()
    subprocess.run(["mount", "--bind", disk, elsewhere], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", elsewhere], check=True)
    try:
        subprocess.run(["mount", "--bind", elsewhere, disk], check=True)
        time.sleep(2.0)
        assert run.process.poll() is None
        run.process.send_signal(signal.SIGUSR1)
        code, out, err = run.end()
    finally:
        for mounted in (disk, elsewhere):
            subprocess.run(["umount", "--lazy", mounted], check=True)
    assert code == 0, f"{out}\n{err}"
    (line,) = [line for line in err.splitlines() if line.startswith("{")]
    assert json.loads(line)["status"] == "stopped"
    assert not (run.run_dir / "summary.json").exists()
