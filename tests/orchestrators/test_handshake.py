"""What an agent says of itself, first and unasked."""

from __future__ import annotations

import json
import select
import subprocess
import sys

from tests.support.waiting import WAIT_S
from zmqrl.orchestrators.handshake import SENTINEL


def test_an_agent_sends_it_before_it_reads_anything() -> None:
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
