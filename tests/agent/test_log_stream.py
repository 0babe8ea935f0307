"""A far host's logs on their way: once, also after they were emptied, and not while nobody reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import Mock, create_autospec

import pytest

from zmqrl.agent import output as log_stream
from zmqrl.agent.child_process import ChildProcess
from zmqrl.agent.output import AgentOutput, LogStream
from zmqrl.agent.process_events import ProcessEvents
from zmqrl.supervision.restarts import ProcessSlot


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


def test_logs_stay_in_place_while_no_client_reads(
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


class Looks(LogStream):
    """Names the logs of the last look."""

    last: list[str]

    def follow(self, names: Iterable[str]) -> set[str]:
        self.last = list(names)
        return super().follow(self.last)


def worker(folder: Path, index: int) -> Mock:
    child: Mock = create_autospec(ChildProcess, instance=True)
    child.configure_mock(slot=ProcessSlot("worker", index), spawn=0, log=folder / f"b-worker-{index}.log")
    child.configure_mock(identity=Mock(pid=7, start_time=1), process=Mock(returncode=0), last_fault=None)
    child.cause_of_end.return_value, child.log_tail.return_value = "exit code 0", ()
    return child


def test_a_log_is_not_opened_any_more_once_its_process_has_ended_and_it_was_read(
    tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is kept for a month has thousands of former workers."""
    monkeypatch.setattr(log_stream, "MOST_BYTES", 4)
    stream = Looks(tmp_path, launcher.output)
    events, workers = ProcessEvents(launcher.output, stream), [worker(tmp_path, index) for index in range(3)]
    workers[0].log.write_text("first\n")
    for child in workers:
        events.started(child)
    workers[1].log.write_text("")
    for child in workers[:2]:
        events.exited(child, expected=True)
    for _ in range(2):
        events.send_logs()
    assert stream.last == ["b-worker-2"], "one that has no file yet is looked for while its process lives"
    with workers[0].log.open("a") as log:
        log.write("second\n")
    events.started(workers[0])
    for _ in range(2):
        events.send_logs()
    assert stream.last == ["b-worker-0", "b-worker-2"]
    assert launcher.read() == {"b-worker-0": "first\nsecond\n"}
    events.exited(workers[2], expected=True)
    events.send_logs()
    assert stream.last == ["b-worker-0"]


def test_a_log_of_an_ended_process_is_kept_until_the_launcher_takes_it(
    tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, child = Looks(tmp_path, launcher.output), worker(tmp_path, 0)
    events = ProcessEvents(launcher.output, stream)
    child.log.write_text("its last words")
    events.started(child)
    monkeypatch.setattr(log_stream, "MOST_PENDING_BYTES", -1)
    events.exited(child, expected=False)
    events.send_logs()
    monkeypatch.undo()
    events.send_logs()
    assert launcher.read() == {"b-worker-0": "its last words"}
