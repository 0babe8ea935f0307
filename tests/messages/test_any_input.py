"""Any input: mutated valid messages and raw bytes are a message or a `WireError`, for every decoder, and end nothing.

`ZMQRL_FUZZ=1000000` draws as many examples of each test; the default is for bin/test.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agent.plans import stand_in_plan
from tests.messages.samples import (
    AGENT,
    BUS,
    CHECK_REPORTS,
    CHECK_REQUESTS,
    CHILD,
    COMMANDS,
    EVALUATE,
    FILES,
    LAUNCHER,
    REAPED,
    REPLIES,
    REQUESTS,
)
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError, WireError
from zmqrl.launch.connection_file import read_connection_file
from zmqrl.launch.launcher import Launcher
from zmqrl.launch.run_output import record
from zmqrl.launch.status import status_of
from zmqrl.launch.summary import summarise
from zmqrl.messages import agent, check, command, doctor, doctor_requests, files, lines
from zmqrl.messages.files import ConnectionFile, RunRecord
from zmqrl.messages.frames import PROTOCOL, pack, unpack, unpack_descriptors
from zmqrl.orchestrators.base import HostEvent
from zmqrl.orchestrators.local import LocalOrchestrator
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.run_files.run_info import RunInfo, read_info
from zmqrl.views.plain import line_of as plain_line_of
from zmqrl.views.tables import render

EXAMPLES = int(os.environ.get("ZMQRL_FUZZ", "50"))
LONG = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
SHORT = settings(LONG, max_examples=max(10, EXAMPLES // 4))
"""Bytes without a form: most are refused at once."""
Decode = Callable[[bytes], object]


def as_data(message: msgspec.Struct) -> Any:
    return msgspec.to_builtins(message, builtin_types=(bytes,))


def as_frame(data: Any) -> bytes:
    return bytes(msgpack.packb([PROTOCOL, data]))


def as_line(data: Any) -> bytes:
    return json.dumps(data, default=repr).encode()


LINKS: dict[str, tuple[Decode, Callable[[Any], bytes], list[Any]]] = {
    "bus": (unpack, as_frame, [as_data(m) for m in BUS]),
    "child": (lines.child_event, as_line, [as_data(m) for m in CHILD]),
    "agent": (lines.agent_event, as_line, [as_data(m) for m in AGENT]),
    "command": (lines.command, as_line, [as_data(m) for m in COMMANDS]),
    "evaluate": (lines.evaluate, as_line, [as_data(EVALUATE)]),
    "request": (doctor_requests.read_request, as_line, [as_data(m) for m in REQUESTS]),
    "reply": (
        lambda content: doctor.read_reply(f"{doctor.MARK} {content.decode(errors='surrogateescape')}"),
        as_line,
        [as_data(m) for m in REPLIES],
    ),
    "call": (check.read_request, as_line, [as_data(m) for m in CHECK_REQUESTS]),
    "check": (check.read_report, as_line, [as_data(m) for m in CHECK_REPORTS]),
    "reaped": (lines.reaped, as_line, [as_data(REAPED)]),
    "handshake": (lines.handshake, as_line, [as_data(LAUNCHER[0])]),
    **{
        type(m).__name__: (lambda content, m=m: files.decode(type(m), content), as_line, [as_data(m)])  # type: ignore[misc]
        for m in FILES
    },
}
"""Of each decoder: what it reads, how data is written for it, and sound messages as data."""

PLAIN = st.none() | st.booleans() | st.floats() | st.text(max_size=3)
KEY = st.sampled_from(("", "env_steps", "worker-0", "worker", "self", "host", "event", "kind", "name", "index"))


def any_data(atom: st.SearchStrategy[Any], key: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        atom, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(key, inner, max_size=3), max_leaves=5
    )


IN_FRAMES = any_data(
    PLAIN | st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(max_size=3), KEY | st.integers(-2, 1 << 63)
)
"""What msgpack writes."""
IN_LINES = any_data(PLAIN | st.integers() | st.sampled_from((1 << 64, -(1 << 70), "\udce4")), KEY | st.just("\udce4"))
"""What JSON writes: integers of any size, surrogates as escapes, NaN."""


def mutated(data: Any, value: Any, others: st.SearchStrategy[Any] = IN_LINES) -> Any:
    """A few fields of `value`, at any depth, replaced, left out or added."""
    copy: Any = _copied(value)
    for _ in range(data.draw(st.integers(1, 3))):
        at = copy
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            added = ("role", "more", "self", 7) if isinstance(at, dict) else ()
            key = data.draw(st.sampled_from([*keys, *added] or [0]))
            inner = at.get(key) if isinstance(at, dict) else at[key] if at else None
            if isinstance(inner, (dict, list)) and inner and data.draw(st.booleans()):
                at = inner
                continue
            break
        if isinstance(at, list) and not at:
            continue
        if isinstance(at, dict) and key in at and data.draw(st.booleans()):
            del at[key]
        else:
            at[key] = data.draw(others)
    return copy


def _copied(value: Any) -> Any:
    """With lists, which can be changed, for tuples."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("link", LINKS)
@LONG
@given(data=st.data())
def test_a_mutated_message_is_one_or_a_wire_error(link: str, data: Any) -> None:
    decode, write, sound = LINKS[link]
    content = write(mutated(data, data.draw(st.sampled_from(sound)), IN_FRAMES if link == "bus" else IN_LINES))
    try:
        decode(content)
    except WireError:
        pass


@pytest.mark.parametrize("link", LINKS)
@SHORT
@given(data=st.data())
def test_changed_bytes_are_a_message_or_a_wire_error(link: str, data: Any) -> None:
    decode, write, sound = LINKS[link]
    content = bytearray(write(data.draw(st.sampled_from(sound))))
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(content[: data.draw(st.integers(0, len(content)))]))
    except WireError:
        pass


@pytest.mark.parametrize("link", LINKS)
@SHORT
@given(noise=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(link: str, noise: bytes) -> None:
    for decode in (LINKS[link][0], unpack_descriptors):
        try:
            decode(noise)
        except WireError:
            pass


@pytest.mark.parametrize("link", LINKS)
def test_the_messages_that_are_mutated_are_sound(link: str) -> None:
    decode, write, sound = LINKS[link]
    for data in sound:
        decode(write(data))


def content_of(data: Any, sample: msgspec.Struct) -> bytes:
    """A file: a sample with other values, cut or changed bytes, or noise."""
    written = bytearray(as_line(mutated(data, as_data(sample))))
    for _ in range(data.draw(st.integers(0, 2))):
        written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    return data.draw(st.just(bytes(written)) | st.binary(max_size=50))  # type: ignore[no-any-return]


@LONG
@given(data=st.data())
def test_any_run_json_is_read_or_counts_as_none(tmp_path_factory: Any, data: Any) -> None:
    run_dir = _folder(tmp_path_factory)
    (run_dir / "run.json").write_bytes(content_of(data, RunRecord("r", 3, 4, "h", 1.5, "p")))
    found = read_info(run_dir)
    assert found is None or isinstance(found, RunInfo)


@LONG
@given(data=st.data())
def test_any_connection_file_is_read_or_a_config_error(tmp_path_factory: Any, data: Any) -> None:
    (sample,) = (message for message in FILES if isinstance(message, ConnectionFile))
    path = _folder(tmp_path_factory) / "b.connect"
    path.touch(mode=0o600)
    path.write_bytes(content_of(data, sample))
    try:
        boot, join = read_connection_file(path)
    except ConfigError:
        return
    assert isinstance(boot, Boot) and isinstance(join, command.Join)


class Records:
    """What the launcher writes metrics into."""

    def record(self, wall: float, env_steps: int, values: dict[str, Any]) -> None:
        float(wall), int(env_steps), dict(values)

    def record_worker(self, wall: float, env_steps: int, index: int, values: dict[str, Any]) -> None:
        float(wall), int(env_steps), int(index), dict(values)


@LONG
@given(st.data(), st.sampled_from(AGENT))
def test_what_the_launcher_takes_never_ends_it(tmp_path_factory: Any, data: Any, sample: Any) -> None:
    run_dir = _folder(tmp_path_factory)
    plan = stand_in_plan(run_dir)
    launcher = Launcher(plan, LocalOrchestrator(), create_autospec(RunDirectory), plain=True)
    exited = agent.ProcessReport("worker", 0, agent.Exited(3, None, False, "c", {}, "l", ["x"]))
    for line in (lines.line_of(sample), as_line(mutated(data, as_data(sample))), lines.line_of(exited)):
        try:
            event = lines.agent_event(line)
        except WireError:
            continue
        if isinstance(event, agent.ProcessReport):
            taken = HostEvent("local", event.report, event.role, event.index)
        else:
            taken = HostEvent("local", event)
        launcher._actions.take(taken, time.monotonic())
        record(Records(), taken, launcher._state)  # type: ignore[arg-type]
    state, now = launcher._state, time.time()
    status = status_of(state, now, state.wall_s)
    render(status)
    plain_line_of(status)
    [str(problem) for problem in state.problems]
    summarise(plan, state, "done", 0, None, state.wall_s)


_FOLDERS: list[Path] = []


def _folder(factory: Any) -> Path:
    """One for all examples."""
    if not _FOLDERS:
        _FOLDERS.append(factory.mktemp("run"))
        (_FOLDERS[0] / "logs").mkdir()
    return _FOLDERS[0]


def test_a_packed_message_is_what_the_mutations_start_from() -> None:
    for message in BUS:
        assert unpack(as_frame(as_data(message))) == unpack(pack(message)) == message
