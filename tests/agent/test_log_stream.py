"""A far host's logs on their way: once, also after they were emptied, and not while nobody reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from zmqrl.agent import output as log_stream
from zmqrl.agent.output import AgentOutput, LogStream


class Launcher:
    """Reads what the agent says."""

    def __init__(self) -> None:
        self.fd, self.write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        self.output = AgentOutput(self.write_fd)

    def read(self) -> dict[str, str]:
        content = b""
        while True:
            try:
                content += os.read(self.fd, 1_000_000)
            except BlockingIOError:
                if not self.output.pending:
                    break
            self.output.flush()
        logs: dict[str, str] = {}
        for event in map(json.loads, content.splitlines()):
            if event["event"] == "log":
                logs[event["name"]] = logs.get(event["name"], "") + event["text"]
        return logs


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    held = Launcher()
    yield held
    for fd in (held.fd, held.write_fd):
        os.close(fd)


def test_each_byte_is_sent_once(tmp_path: Path, launcher: Launcher) -> None:
    stream = LogStream(tmp_path, launcher.output)
    stream.follow(["b-worker-1"])
    log = tmp_path / "b-worker-1.log"
    log.write_text("one\n")
    stream.follow(["b-worker-1", "b-worker-2"])
    stream.follow(["b-worker-1"])
    with log.open("a") as more:
        more.write("two\n")
    stream.follow(["b-worker-1"])
    assert launcher.read() == {"b-worker-1": "one\ntwo\n"}


def test_an_emptied_log_begins_again(tmp_path: Path, launcher: Launcher) -> None:
    stream, log = LogStream(tmp_path, launcher.output), tmp_path / "w.log"
    log.write_text("a long first part")
    stream.follow(["w"])
    log.write_text("new")
    stream.follow(["w"])
    assert launcher.read() == {"w": "a long first partnew"}


def test_while_nobody_reads_logs_stay_where_they_are(
    tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "MOST_PENDING_BYTES", 100_000)
    stream, text = LogStream(tmp_path, launcher.output), "x" * 1_000_000
    (tmp_path / "w.log").write_text(text)
    for _ in range(50):
        stream.follow(["w"])
    assert launcher.output.pending_bytes < 300_000
    found = ""
    for _ in range(50):
        found += launcher.read().get("w", "")
        stream.follow(["w"])
    assert found + launcher.read().get("w", "") == text
