"""Command lines as a pipe brings them: in halves, with garbage between, and with an end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from zmqrl.agent import commands
from zmqrl.agent.commands import Commands
from zmqrl.messages.command import KillAll, SetWorkers, Stop

Pipe = tuple[Commands, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read_fd, write_fd = os.pipe()
    yield Commands(read_fd), write_fd
    os.close(read_fd)
    try:
        os.close(write_fd)
    except OSError:
        pass  # the test did


def test_half_a_line_waits_for_the_other(pipe: Pipe) -> None:
    told, fd = pipe
    assert told.read() == []
    os.write(fd, b'{"command": "st')
    assert told.read() == []
    os.write(fd, b'op"}\n{"command": "kill"}\n{"comm')
    assert told.read() == [Stop(), KillAll()]
    assert not told.ended


@pytest.mark.parametrize("last", [b'{"command": "stop"}\n', b'{"command": "kill"}\n', b""])
def test_a_request_to_end_is_handled_before_the_commands(pipe: Pipe, last: bytes) -> None:
    """The agent may still be choosing its GPU."""
    told, fd = pipe
    os.write(fd, b'{"command": "set_workers", "workers": [1], "stays": false}\n')
    assert not told.is_end_requested()
    os.write(fd, last) if last else os.close(fd)
    assert told.is_end_requested() and told.is_end_requested()
    assert [type(command) for command in told.read()][-1:] == [SetWorkers], "after the end, which starts nothing more"
    assert told.read() == []


def test_garbage_is_left_out(pipe: Pipe) -> None:
    told, fd = pipe
    os.write(fd, b'\xff\xfe\n[1]\n"stop"\n7\n\n{"command":\n{"command": "stop"}\n')
    assert told.read() == [Stop()]
    assert not told.ended


def test_the_end_of_the_pipe_is_reported(pipe: Pipe) -> None:
    told, fd = pipe
    os.write(fd, b'{"command": "stop"}\n{"comm')
    os.close(fd)
    assert told.read() == [Stop()]
    assert told.read() == []
    assert told.ended


def test_a_line_without_an_end_is_one(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    told, fd = pipe
    monkeypatch.setattr(commands, "MOST_UNREAD_BYTES", 1000)
    os.write(fd, b"x" * 2000)
    told.read()
    os.write(fd, b"x")
    told.read()
    assert told.ended
