"""What an agent says of itself, first and unasked."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import WAIT_S
from zmqrl.orchestrators.handshake import SENTINEL, physical_cores


def test_an_agent_says_it_before_it_reads_anything() -> None:
    agent = subprocess.Popen(
        [sys.executable, "-m", "zmqrl.entry", "zmqrl.agent", "r", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert agent.stdin is not None and agent.stdout is not None
    came, _, _ = select.select([agent.stdout], [], [], WAIT_S)  # stdin is open, and nothing was written
    line = agent.stdout.readline().decode() if came else ""
    agent.stdin.close()
    assert (agent.wait(WAIT_S), agent.stdout.read()) == (1, b"")
    agent.stdout.close()
    assert line.startswith(SENTINEL)
    received = json.loads(line.removeprefix(SENTINEL))
    assert received["pid"] == agent.pid
    assert received["cores"] >= 1
    assert {"zmqrl", "protocol", "python", "pyzmq", "msgpack", "numpy", "torch", "byteorder"} <= set(
        received["versions"]
    )


def test_two_threads_of_a_core_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 10})
    assert physical_cores(tmp_path) == 5, "nothing is said there"
    for cpu, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3"), (10, "10"), (4, "4")):
        path = tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(siblings + "\n")
    assert physical_cores(tmp_path) == 3
