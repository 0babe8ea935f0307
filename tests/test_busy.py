"""A command alongside processes that never rest, and with a part of the cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.running import environment
from tests.support.waiting import WAIT_S

HALF = "import time; begun = time.monotonic()\nwhile time.process_time() < 0.5: pass\nprint(time.monotonic() - begun)"


def busy(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.busy", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_the_command_runs_with_others_which_end_with_it() -> None:
    listed = 'for path in /proc/$PPID/task/*/children; do cat "$path"; done; exit 3'
    done = busy("--loops", "2", "sh", "-c", listed)
    assert (done.returncode, len(done.stdout.split())) == (3, 3), "two and the command"


@pytest.mark.whole
def test_a_quota_is_that_of_all_that_the_command_starts() -> None:
    done = busy("--quota", "0.5", sys.executable, "-c", HALF)
    if done.returncode:
        assert os.getuid() != 0 or "no quota can be set here" in done.stderr
        pytest.skip(done.stderr.strip())
    assert float(done.stdout) > 0.75, "0.5 s of CPU time"
