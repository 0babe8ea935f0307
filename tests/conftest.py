"""Fixtures for every test: none may leave a process, a socket, a /dev/shm file or a run folder behind."""

from __future__ import annotations

import gc
import os
import resource
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from zmqrl.agent.ipc_folder import RUNTIME_VARIABLE, run_folder_root
from zmqrl.supervision.process_table import ProcessId, await_gone, identify

DEATH_S = 2.0

# A shell that starts the tests in the background has SIGINT ignored, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What crashes on purpose leaves no core behind.
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _descendants() -> set[ProcessId]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        children.setdefault(int(text[text.rindex(")") + 2 :].split()[1]), []).append(int(name))
    found, todo = set(), [os.getpid()]
    while todo:
        for pid in children.get(todo.pop(), ()):
            todo.append(pid)
            process = identify(pid)
            if process is not None:
                found.add(process)
    return found


def _sockets() -> set[str]:
    """Inodes of the sockets that this process holds."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found


def _files() -> set[Path]:
    """What runs leave in shared places."""
    root = run_folder_root()
    mine = [path for path in Path("/dev/shm").iterdir() if "zmqrl" in path.name]
    return {*mine, *(root.iterdir() if root.is_dir() else ())}


@pytest.fixture(scope="session", autouse=True)
def runtime_dir() -> Iterator[None]:
    """A place of this session's own for socket folders: another run on the machine is no leak of ours."""
    with tempfile.TemporaryDirectory(prefix="zt-", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNTIME_VARIABLE, folder)
        yield


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, runtime_dir: None) -> Iterator[None]:
    """Fails a test that leaks. `@pytest.mark.keeps_sockets` is for those that hold a zmq context in a wider fixture."""
    del runtime_dir
    processes, sockets, files = _descendants(), _sockets(), _files()
    yield
    left = await_gone(_descendants() - processes, DEATH_S)
    assert not left, f"processes left: {[(p, Path(f'/proc/{p.pid}/cmdline').read_bytes()) for p in left]}"
    gc.collect()
    if request.node.get_closest_marker("keeps_sockets") is None:
        assert not _sockets() - sockets, "sockets left open"
    assert not _files() - files, f"files left: {_files() - files}"
