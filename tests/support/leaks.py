"""What a test leaves behind: processes, sockets, and files in shared places."""

from __future__ import annotations

import gc
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zmqrl.supervision.process_table import ProcessId, await_gone, identify
from zmqrl.wire.runtime_folder import run_folder_root

DEATH_S, PAUSE_S = 60.0, 0.01
SHARED_MEMORY = Path("/dev/shm")


class Held(NamedTuple):
    """What there is at one moment. Comparing two moments takes about 1 ms: every test does it."""

    processes: frozenset[ProcessId]
    sockets: frozenset[str]
    files: frozenset[str]

    @classmethod
    def now(cls) -> Held:
        """Processes, sockets and run folders of this process; the files in shared memory are those of the machine."""
        return cls(frozenset(_descendants()), frozenset(_sockets()), frozenset(_files()))

    def check(self, sockets_too: bool = True) -> None:
        """AssertionError names what has come since. Processes and sockets have `DEATH_S` to end."""
        left = await_gone(set(_descendants()) - self.processes, DEATH_S)
        assert not left, f"processes left: {[(p, Path(f'/proc/{p.pid}/cmdline').read_bytes()) for p in left]}"
        if sockets_too:
            sockets = self._open_sockets()
            assert not sockets, f"sockets left open: {sockets}"
        files = set(_files()) - self.files
        assert not files, f"files left: {files}"

    def _open_sockets(self) -> set[str]:
        left = set(_sockets()) - self.sockets
        if left:
            gc.collect()  # 30 ms: what nothing refers to any more is no leak
            deadline = time.monotonic() + DEATH_S
            # The connections of a client written in Rust are closed by a thread of its own.
            while (left := set(_sockets()) - self.sockets - set(_of_env_indexes())) and time.monotonic() < deadline:
                time.sleep(PAUSE_S)
        return left


def _of_env_indexes() -> Iterator[str]:
    """Sockets that hold the number of an env, which may live in a traceback that was frozen."""
    for line in Path("/proc/net/unix").read_text().splitlines():
        if "@zmqrl-env-" in line:
            yield f"socket:[{line.split()[6]}]"


def _children(pid: int) -> Iterator[int]:
    """A process is the child of the thread that started it."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                yield from map(int, file.read().split())
    except OSError:  # it has just ended: its children have another parent now
        return


def _descendants() -> Iterator[ProcessId]:
    todo = [os.getpid()]
    while todo:
        for pid in _children(todo.pop()):
            todo.append(pid)
            process = identify(pid)
            if process is not None:
                yield process


def _sockets() -> Iterator[str]:
    """Inodes of the sockets that this process holds."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                yield os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue


def _files() -> Iterator[str]:
    """What runs leave in shared places."""
    root = run_folder_root()
    yield from (str(SHARED_MEMORY / name) for name in os.listdir(SHARED_MEMORY) if "zmqrl" in name)
    yield from (str(path) for path in (root.iterdir() if root.is_dir() else ()))
