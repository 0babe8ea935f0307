"""Messages are checked on arrival: each way to be wrong is refused under its own reason."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages.samples import BUS, NOTICE
from zmqrl.errors import WireError
from zmqrl.messages import bus
from zmqrl.messages.frames import (
    MAX_CONTROL_BYTES,
    MAX_DESCRIPTORS_BYTES,
    PROTOCOL,
    pack,
    pack_descriptors,
    unpack,
    unpack_descriptors,
)
from zmqrl.types import SlotRef

NOTICE_DATA: dict[str, Any] = msgspec.to_builtins(NOTICE)
FIELDS: dict[str, dict[str, Any]] = {bus.kind_of(m): msgspec.to_builtins(m, builtin_types=(bytes,)) for m in BUS}
"""As data, with the tag."""
WORKER = FIELDS["worker"]


def frame(fields: Any, protocol: int = PROTOCOL) -> bytes:
    return bytes(msgpack.packb([protocol, fields]))


def reason(wrong: bytes) -> str:
    with pytest.raises(WireError) as caught:
        unpack(wrong)
    return caught.value.reason


def test_there_is_a_sample_of_each() -> None:
    assert {type(message) for message in BUS} == set(get_args(bus.Message))


@pytest.mark.parametrize("message", BUS, ids=bus.kind_of)
def test_what_is_packed_comes_back(message: bus.Message) -> None:
    back = unpack(pack(message))
    assert back == message
    assert type(back) is type(message)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (b"\x81\x80\x00", "not msgpack"),
        (b"\x81\x90\x00", "shape"),
        (b"GET / HTTP/1.1\r\n\r\n", "not msgpack"),
        (b"\x91" * 100_000, "not msgpack"),
        (bytes(MAX_CONTROL_BYTES + 1), "size"),
        (msgpack.packb(7), "shape"),
        (msgpack.packb([]), "shape"),
        (msgpack.packb([PROTOCOL]), "shape"),
        (msgpack.packb([PROTOCOL, WORKER, 1]), "shape"),
        (frame("worker"), "shape"),
        (frame(WORKER, protocol=PROTOCOL + 1), "protocol"),
        (msgpack.packb([2, "worker", {"index": 1}]), "protocol"),
        (msgpack.packb([True, WORKER]), "protocol"),
        (frame({**WORKER, "kind": "labourer"}), "kind"),
        (frame({**WORKER, "kind": 7}), "kind"),
        (frame({**WORKER, "kind": ["worker"]}), "kind"),
        (frame({k: v for k, v in WORKER.items() if k != "kind"}), "kind"),
        (frame({k: v for k, v in WORKER.items() if k != "spawn"}), "fields"),
        (frame({**WORKER, "more": 1}), "fields"),
    ],
)
def test_each_wrong_form_has_its_reason(wrong: bytes, expected: str) -> None:
    assert reason(wrong) == expected


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("worker", "index", -1),
        ("worker", "index", True),
        ("worker", "index", 1 << 62),
        ("worker", "index", "1"),
        ("worker", "leases", [[1, 2, 3]]),
        ("worker", "leases", [[1, -2]]),
        ("worker", "leases", {"a": 1}),
        ("worker", "streams", None),
        ("agent", "host", "x" * 300),
        ("agent", "host", 7),
        ("agent", "alive", {"0": 1}),
        ("agent", "alive", [0]),
        ("agent", "failed", [None]),
        ("learner", "updates", 1.5),
        ("announce", "notice", None),
        ("announce", "back", 3),
        ("announce", "back", [-1]),
        ("announce", "notice", {**NOTICE_DATA, "version": [1, -2]}),
        ("announce", "notice", {**NOTICE_DATA, "version": 3}),
        ("announce", "notice", {**NOTICE_DATA, "schedule": {"epsilon": "x"}}),
        *(("announce", "notice", {**NOTICE_DATA, "schedule": {"epsilon": x}}) for x in (math.nan, math.inf, -math.inf)),
        ("announce", "notice", {**NOTICE_DATA, "schedule": {"x" * 256: 0.5}}),
        ("announce", "notice", {**NOTICE_DATA, "key": "x" * 4097}),
        ("announce", "notice", {**NOTICE_DATA, "sha256": "x" * 256}),
        ("announce", "notice", {**NOTICE_DATA, "more": 1}),
        ("announce", "notice", {k: v for k, v in NOTICE_DATA.items() if k != "key"}),
        ("answer", "part", [0, 1, 2, 40, 8]),
        ("answer", "part", [0, 1, 2, 40, -8, b""]),
        ("answer", "part", [0, 1, 2, 40, 8, "text"]),
        ("record", "parts", [[0, 1, b""]]),
        ("assignments", "streams", [[0, 1, 2, [[3, None, False]]]]),
        ("assignments", "stop", 1),
        ("broker_status", "requests", [[0, 1, 2]]),
        ("broker_status", "known", 3),
    ],
)
def test_each_wrong_value_is_refused(kind: str, field: str, value: Any) -> None:
    assert field in FIELDS[kind]
    assert reason(frame({**FIELDS[kind], field: value})) == "value"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(noise: bytes) -> None:
    for take in (unpack, unpack_descriptors):
        try:
            take(noise)
        except WireError:
            continue


def test_descriptors_come_back() -> None:
    refs = [SlotRef(0, 1), SlotRef(7, 1 << 40)]
    assert unpack_descriptors(pack_descriptors(3, 4, refs)) == (3, 4, refs)


@pytest.mark.parametrize("nbytes", [0, 8, 24, 17, MAX_DESCRIPTORS_BYTES + 16])
def test_descriptors_of_a_wrong_length_are_refused(nbytes: int) -> None:
    with pytest.raises(WireError) as caught:
        unpack_descriptors(bytes(nbytes))
    assert caught.value.reason == "descriptors"


@pytest.mark.parametrize("fields", [{"kind": "no such"}, {**WORKER, "more": 1}, {"kind": "worker"}], ids=str)
def test_a_large_frame_that_is_refused_takes_no_multiple_of_its_size(fields: dict[str, Any]) -> None:
    """Decoded without types, 4 MB of empty lists are 300 MB of objects."""
    wrong = frame({**fields, "filling": [[]] * (4 << 20)})
    tracemalloc.start()
    assert reason(wrong) == "value"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
