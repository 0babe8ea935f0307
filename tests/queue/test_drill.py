"""The drill of the queue in its smallest form: a kill of each kind."""

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
from tests.support.running import RUN_S, environment

SMALL = ("--jobs", "4", "--users", "2", "--hosts", "2", "--kills", "4", "--every", "6")
NEEDED = ("useradd", "setpriv", "sshd")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not in /tmp, of which each host has its own."""
    folder = Path(tempfile.mkdtemp(prefix="zmqrl-drill-", dir=PLACE))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
def test_each_job_ends_once_whatever_is_killed(folder: Path) -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, NEEDED)):
        pytest.skip(f"needs root, {', '.join(NEEDED)}")
    try:
        check()
    except LabUnavailable as reason:
        pytest.skip(str(reason))
    command = [sys.executable, "-m", "tests.queue.drill", str(folder), *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * RUN_S, check=False, env=environment())
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "passed"
