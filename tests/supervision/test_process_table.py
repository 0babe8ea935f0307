from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.support.cut_name import process_with_cut_name
from tests.support.held_process import held_process
from tests.support.waiting import WAIT_S, until
from zmqrl.supervision.process_table import (
    ProcessId,
    await_gone,
    children_of,
    cpu_seconds,
    held_by_kernel,
    identify,
    is_alive,
    kill,
    pss_mb,
)


def test_a_process_is_its_pid_and_its_start_time() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert is_alive(me)
    assert not is_alive(ProcessId(me.pid, me.start_time + 1)), "another process with that pid"


def test_the_name_of_a_process_is_any_bytes() -> None:
    name = "printf '\\377) \\344' >/proc/$$/comm; echo; read -r line"
    with subprocess.Popen(["sh", "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        found = identify(process.pid)
        assert found is not None and is_alive(found)


def test_kill_hits_only_the_one_it_names() -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        process = identify(sleeper.pid)
        assert process is not None
        assert not kill(ProcessId(process.pid, process.start_time + 1))
        assert await_gone([process], 0.0) == [process]
        assert kill(process)
        assert await_gone([process], WAIT_S) == []
        assert sleeper.wait(WAIT_S) == -signal.SIGKILL


def test_await_gone_is_bounded_and_a_zombie_is_gone() -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        process = identify(sleeper.pid)
        assert process is not None
        assert await_gone([process], 0.1) == [process], "it sleeps for minutes"
        sleeper.kill()
        assert await_gone([process], WAIT_S) == [], "not reaped yet"


def test_a_process_that_the_kernel_holds_is_told_from_one_that_waits() -> None:
    with held_process() as held:
        assert held_by_kernel(held)
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        waits = identify(sleeper.pid)
        assert waits is not None and not held_by_kernel(waits)
        sleeper.kill()


def test_children_are_those_of_one_generation_and_zombies_too() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], stdout=subprocess.PIPE) as shell:
        (sleeper,) = until(lambda: children_of(shell.pid), "its child")
        assert identify(shell.pid) in children_of(os.getpid()) and sleeper not in children_of(os.getpid())
        assert kill(sleeper)
        assert shell.wait(WAIT_S) == 0


def test_a_name_that_is_not_valid_utf_8(tmp_path: Path) -> None:
    with process_with_cut_name(tmp_path) as pid:
        process = identify(pid)
        assert process is not None and is_alive(process)
        assert process in children_of(os.getpid()), "it looks at every process of the machine"


def test_usage_of_this_process_and_of_none() -> None:
    pss, cpu = pss_mb(os.getpid()), cpu_seconds(os.getpid())
    assert pss is not None and pss > 1.0
    assert cpu is not None and cpu > 0.0
    assert pss_mb(2**22 + 1) is None
    assert cpu_seconds(2**22 + 1) is None
