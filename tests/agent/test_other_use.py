"""What others do on this machine, measured on real processes and a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cut_name import process_with_cut_name
from tests.support.waiting import until
from zmqrl.agent import other_use
from zmqrl.agent.other_use import OtherUseMeter, input_idle_s

HOGS = 30
SPIN = "import os\nos.nice(19)\nwhile True: pass"
LAUNCH = f"""
import os, subprocess, sys
hogs = [subprocess.Popen([sys.executable, "-c", {SPIN!r}]) for _ in range({HOGS})]
print(*[hog.pid for hog in hogs], flush=True)
sys.stdin.read()
for hog in hogs: hog.kill()
for hog in hogs: hog.wait()
"""


@contextmanager
def hogs() -> Iterator[None]:
    """Processes that want a core each; they end with the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LAUNCH], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        until(lambda: sum(other_use._busy_threads_of(pid) for pid in pids) == HOGS)
        yield


def others(meter: OtherUseMeter) -> float:
    """The mean of what is sampled over a short time, as after many minutes."""
    found = []
    for _ in range(9):
        meter._load = 0.0
        found.append(meter.sample(meter._sampled_at + 1e6).load)
        time.sleep(0.05)
    return sorted(found)[len(found) // 2]


@pytest.mark.whole
def test_the_load_is_that_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = OtherUseMeter(0.0)
    with hogs():
        of_this_run = others(meter)
        monkeypatch.setattr(other_use, "_own", lambda: iter([os.getpid()]))
        of_others = others(meter)
    assert of_others - of_this_run > 0.7 * HOGS


def test_it_is_a_mean_of_about_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_use, "_own", lambda: iter(()))
    monkeypatch.setattr(other_use, "_busy_threads", lambda: 10)
    meter = OtherUseMeter(0.0)
    found = [meter.sample(5.0 * (number + 1)).load for number in range(60)]
    assert found[0] == pytest.approx(0.8, abs=0.01)
    assert found[11] == pytest.approx(6.32, abs=0.01)
    assert found[-1] == pytest.approx(9.93, abs=0.01)


@pytest.mark.skipif(not Path("/dev/pts/ptmx").exists(), reason="no terminals here")
def test_input_on_a_terminal_is_seen_and_output_is_not() -> None:
    master, slave = pty.openpty()
    try:
        past = time.time() - 1000
        os.utime(os.ttyname(slave), (past, past))
        os.write(slave, b"output\n")
        before = input_idle_s(time.time())
        assert before is not None
        if before < 900:
            pytest.skip("a user is active on this machine")
        os.write(master, b"input\n")
        assert os.read(slave, 100)
        after = input_idle_s(time.time())
        assert after is not None and after < 30
    finally:
        os.close(master)
        os.close(slave)


def test_without_terminals_there_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "dev" / "pts").mkdir(parents=True)
    assert input_idle_s(time.time(), tmp_path) is None


def test_a_name_that_is_not_valid_utf_8(tmp_path: Path) -> None:
    with process_with_cut_name(tmp_path) as pid:
        assert other_use._busy_threads_of(pid) in (0, 1)
