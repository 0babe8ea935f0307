"""The host agent leads a session, however the process was started that it begins in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.running import environment
from tests.support.waiting import WAIT_S
from zmqrl.messages.lines import handshake
from zmqrl.messages.orchestrator import Handshake
from zmqrl.orchestrators.handshake import SENTINEL
from zmqrl.supervision.process_table import await_gone, identify

AGENT = (sys.executable, "-m", "zmqrl.entry", "zmqrl.agent", "no-run", "0")


@contextmanager
def started(*command: str, **options: Any) -> Iterator[tuple[subprocess.Popen[bytes], Handshake]]:
    """An agent that waits for its boot line, and its handshake."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), **options
    ) as process:
        try:
            assert process.stdout is not None
            yield process, handshake(process.stdout.readline().decode().removeprefix(SENTINEL))
        finally:
            process.kill()


def test_a_process_without_a_group_makes_a_session() -> None:
    with started(*AGENT) as (process, said):
        assert said.pid == process.pid == os.getsid(process.pid)


def test_a_session_leader_stays_what_it_is() -> None:
    with started(*AGENT, start_new_session=True) as (process, said):
        assert said.pid == process.pid == os.getsid(process.pid)


def test_a_group_leader_has_a_child_that_makes_one() -> None:
    """As `srun` starts its tasks."""
    with started(*AGENT, process_group=0) as (process, said):
        assert said.pid != process.pid and os.getsid(said.pid) == said.pid
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(said.pid, 0)


def test_the_end_of_stdin_ends_both() -> None:
    with started(*AGENT, process_group=0) as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WAIT_S) == 1, "no boot line"


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="a pid namespace needs root and unshare")
def test_as_the_first_process_of_a_container_it_has_a_child() -> None:
    """As `docker run` starts a command: pid 1, which reaps orphans."""
    with started("unshare", "--pid", "--fork", "--kill-child", *AGENT) as (process, said):
        assert said.pid == 2, "in its own namespace"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WAIT_S) == 1


def test_a_killed_parent_takes_the_agent_with_it() -> None:
    with started(*AGENT, process_group=0) as (process, said):
        agent = identify(said.pid)
        assert agent is not None
        process.kill()
        assert await_gone([agent], WAIT_S) == []
