from __future__ import annotations

import json
import os

from zmqrl.agent.output import PENDING_LIMIT_BYTES, AgentOutput
from zmqrl.messages.agent import HostFinished, ProcessReport, RunFailed, Warned
from zmqrl.messages.process import Metrics


def test_a_launcher_that_does_not_read_loses_measurements_only() -> None:
    read_fd, write_fd = os.pipe()
    output = AgentOutput(write_fd)
    filler = "x" * 100_000
    for _ in range(PENDING_LIMIT_BYTES // 100_000 + 3):
        output.send(Warned(filler))
    assert_pending(output, True)
    output.send(ProcessReport("learner", 0, Metrics({"lost": 1})))
    output.send(HostFinished(None, {}, 0, [], [], False))
    os.set_blocking(read_fd, False)
    text = b""
    while output.pending:
        text += os.read(read_fd, 1_000_000)
        output.flush()
    text += os.read(read_fd, 1_000_000)
    events = [json.loads(line)["event"] for line in text.splitlines()]
    assert "process" not in events
    assert events[-1] == "finished"
    for fd in (read_fd, write_fd):
        os.close(fd)


def assert_pending(output: AgentOutput, pending: bool) -> None:
    assert output.pending is pending


def test_a_reader_that_is_gone_is_not_an_error() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    output = AgentOutput(write_fd)
    output.send(RunFailed("c"))
    assert not output.pending
    output.drain(1.0)
    os.close(write_fd)
