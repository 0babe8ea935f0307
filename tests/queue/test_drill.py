"""The drill of the queue in its smallest form, a kill of each kind; and an evening in a lab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import LabUnavailable
from tests.lab.kernel import check
from tests.lab.lab import PLACE
from tests.support.running import ROOT, RUN_S, environment
from zmqrl.queue.folder import QueueFolder
from zmqrl.queue.records import JobEnd

SMALL = ("--jobs", "4", "--users", "2", "--hosts", "2", "--kills", "4", "--every", "6")
NEEDED = ("useradd", "setpriv", "sshd")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not in /tmp, of which each host has its own."""
    if os.geteuid() != 0 or not all(map(shutil.which, NEEDED)):
        pytest.skip(f"needs root, {', '.join(NEEDED)}")
    try:
        check()
    except LabUnavailable as reason:
        pytest.skip(str(reason))
    folder = Path(tempfile.mkdtemp(prefix="zmqrl-drill-", dir=PLACE))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
def test_each_job_ends_once_whatever_is_killed(folder: Path) -> None:
    command = [sys.executable, "-m", "tests.queue.drill", str(folder), *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * RUN_S, check=False, env=environment())
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "passed"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl watches the page")
def test_an_evening_of_three_users_ends_with_all_runs_done(folder: Path) -> None:
    command = ["bash", str(ROOT / "examples" / "lab_evening.sh"), str(folder / "evening")]
    variables = environment({"PYTHON": sys.executable})
    done = subprocess.run(command, capture_output=True, text=True, timeout=6 * RUN_S, check=False, env=variables)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    jobs = QueueFolder(folder / "evening" / "queue").read().jobs.values()
    assert [job.end for job in jobs] == [JobEnd("done", 0)] * 12
    ends = [attempt.end.outcome for job in jobs for attempt in job.attempts if attempt.end is not None]
    assert "yielded" in ends and "lost" in ends, "a run was preempted, and one was on the host that was rebooted"
    assert "the page shows" in done.stdout
