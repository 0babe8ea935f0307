"""Fixtures for every test: none may leave a process, a socket, a /dev/shm file or a run folder behind."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.nodeid import coerce_node_id
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.leaks import Held
from tests.support.s3_server import S3Server
from tests.support.stolen_time import RunAgain
from zmqrl.loading import prepare
from zmqrl.supervision import check_process
from zmqrl.supervision.gpus import has_nvidia_smi
from zmqrl.wire.runtime_folder import RUNTIME_VARIABLE

pytest.register_assert_rewrite("zmqrl.testing")

gc.disable()  # until all tests are collected: their modules stay, and to look through them again takes 0.5 s
prepare()  # also for the Python processes that tests start

# A shell that starts the tests in the background has SIGINT ignored, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What crashes on purpose leaves no core behind.
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

# torch logs each step of tracing at level DEBUG, whatever the root logger's level is: pytest would keep all of it.
logging.getLogger("torch.__trace").disabled = True

NICENESS = 7
"""Of tests without bounds on durations, and of the processes that they start."""
AUTOGROUP = Path("/proc/self/autogroup")


GROUPS = ("timed", "exports")
"""The `timed` tests, and those that export with torch, which takes seconds in each process that does it."""


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Of the processes of `pytest -n`, one runs all tests of a group; the others run one file after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for group in GROUPS if nodeid.endswith(f"@{group}")), nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`timed` tests first, then whole runs: no process has a long one left at the end."""
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.xdist_group("timed"))
        group = item.get_closest_marker("xdist_group")
        if group and hasattr(config, "workerinput"):  # pytest-xdist 3.8 does it in a field that pytest 9.2 ignores
            item._id = coerce_node_id(f"{item.nodeid}@{group.args[0]}")  # type: ignore[attr-defined]
    items.sort(key=lambda item: (item.get_closest_marker("timed") is None, item.get_closest_marker("whole") is None))


class Priority:
    """Of the processes of `pytest -n`, only the one that begins with a `timed` test keeps its priority."""

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.config.pluginmanager.unregister(self)  # the first test decides
        if not item.get_closest_marker("timed"):
            os.nice(NICENESS)
            os.setsid()
            with contextlib.suppress(OSError):  # a kernel without autogroup; others weigh sessions, not processes
                AUTOGROUP.write_text(str(NICENESS))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RunAgain())
    if hasattr(config, "workerinput"):  # a process of `pytest -n`
        config.pluginmanager.register(Priority())


def pytest_collection_finish() -> None:
    """Threads of several test processes take the cores from each other. Where torch is not loaded, it stays so.

    What the modules hold is no garbage: it is not looked through again.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def found_gpu() -> str:
    """Its name for torch, or why there is none. The driver keeps a socket open in a process that has looked."""
    if not has_nvidia_smi():
        return "this machine has no nvidia-smi"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    torch.cuda.init()
    return "cuda"


@pytest.fixture
def gpu(found_gpu: str) -> str:
    """A test that needs one is skipped where there is none."""
    if found_gpu != "cuda":
        pytest.skip(found_gpu)
    return found_gpu


@pytest.fixture(scope="session", autouse=True)
def runtime_dir() -> Iterator[None]:
    """A place of this session's own for socket folders: another run on the machine is no leak of ours."""
    with tempfile.TemporaryDirectory(prefix="zt-", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNTIME_VARIABLE, folder)
        yield


REAL_CALL, REAL_START = check_process.call, check_process.start


def call_in_process(
    function: str,
    *arguments: Any,
    subject: str,
    limit_s: float,
    key: str | None = None,
    on_stage: Callable[[Any], None] = lambda _: None,
) -> Any:
    """What a check process does, in this process: a test can replace parts of it, and saves the start of a process."""
    del subject, limit_s, key
    module, _, name = function.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = getattr(importlib.import_module(module), name)(*json.loads(json.dumps(arguments)))
        while isinstance(found, Generator):
            try:
                on_stage(next(found))
            except StopIteration as end:
                found = end.value
    return json.loads(json.dumps(found))


@pytest.fixture(scope="session", autouse=True)
def calls_in_process() -> Iterator[None]:
    """Tests that plan a run do without a check process; `check_processes` is for the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_process, "call", call_in_process)
        patch.setattr(check_process, "start", lambda: None)
        yield


@pytest.fixture(scope="module")
def check_processes(calls_in_process: None, runtime_dir: None) -> Iterator[None]:
    """Tests in which the user's code runs in check processes, as in a command."""
    del calls_in_process, runtime_dir
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_process, "call", REAL_CALL)
        patch.setattr(check_process, "start", REAL_START)
        check_process.start()
        yield
        check_process.end()


@pytest.fixture(scope="module", autouse=True)
def cheap_collections() -> None:
    """What the tests before have imported and collected is not looked at again: a full collection takes 1 s else."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, runtime_dir: None) -> Iterator[None]:
    """Fails a test that leaks. `@pytest.mark.keeps_sockets` is for those that hold a zmq context in a wider fixture."""
    del runtime_dir
    before = Held.now()
    yield
    before.check(sockets_too=request.node.get_closest_marker("keeps_sockets") is None)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server that checks signatures; tests that stop it have their own."""
    server = S3Server(tmp_path_factory.mktemp("s3") / "log", checks_signatures=True)
    try:
        server.start()
        yield server
    finally:
        server.kill()
