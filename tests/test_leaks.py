"""The fixture that every test has finds what is left behind, and costs little."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import leaks
from tests.support.leaks import Held
from tests.support.waiting import WAIT_S
from tests.support.yardstick import cpu_s, loop_s
from zmqrl.wire.runtime_folder import run_folder_root

MOST_LOOPS = 5
"""Of the yardstick: CPU time of both looks at one test."""


def child(stack: ExitStack) -> None:
    process = stack.enter_context(subprocess.Popen(["sleep", "600"]))
    stack.callback(process.kill)


def child_of_a_thread(stack: ExitStack) -> None:
    started = threading.Event()
    over = threading.Event()

    def start() -> None:
        child(stack)
        started.set()
        over.wait()

    thread = threading.Thread(target=start)
    thread.start()
    stack.callback(thread.join)
    stack.callback(over.set)
    started.wait()


def grandchild(stack: ExitStack) -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(flush=True); sys.stdin.read(); p.kill()"
    )
    process = stack.enter_context(
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    assert process.stdin is not None and process.stdout is not None
    stack.callback(process.communicate, "\n")
    process.stdout.readline()


def open_socket(stack: ExitStack) -> None:
    stack.enter_context(socket.socket())


def run_folder(stack: ExitStack) -> None:
    path = run_folder_root() / "left"
    path.mkdir(parents=True)
    stack.callback(path.rmdir)


def shared_memory(stack: ExitStack) -> None:
    path = leaks.SHARED_MEMORY / "zmqrl-left"
    path.touch()
    stack.callback(path.unlink)


@pytest.mark.parametrize(
    ("leak", "words"),
    [
        (child, "processes left: .*sleep"),
        (child_of_a_thread, "processes left: .*sleep"),
        (grandchild, "processes left: .*sleep"),
        (open_socket, "sockets left"),
        (run_folder, "files left"),
        (shared_memory, "files left"),
    ],
)
def test_what_is_left_is_named(
    leak: Callable[[ExitStack], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "DEATH_S", 0.5)
    monkeypatch.setattr(leaks, "SHARED_MEMORY", tmp_path)  # every test process looks into the one of the machine
    before = Held.now()
    with ExitStack() as stack:
        leak(stack)
        with pytest.raises(AssertionError, match=words):
            before.check()
    monkeypatch.setattr(leaks, "DEATH_S", WAIT_S)
    before.check()


def test_a_socket_in_a_cycle_that_nothing_refers_to_is_none() -> None:
    """It is closed by the collector, which the fixture calls once it sees a socket."""

    class Holder:
        def __init__(self) -> None:
            self.me, self.fd = self, os.dup(peer.fileno())

        def __del__(self) -> None:
            os.close(self.fd)

    with socket.socket() as peer:
        before = Held.now()
        Holder()
        before.check()


def test_the_leak_checks_are_cheap() -> None:
    assert cpu_s(lambda: Held.now().check()) < MOST_LOOPS * loop_s()
