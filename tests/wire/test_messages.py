"""Messages are checked on arrival: each way to be wrong is refused under its own reason."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqrl.config.codec import to_json
from zmqrl.errors import WireError
from zmqrl.types import Notice, SlotRef, Version
from zmqrl.wire import messages

NOTICE = to_json(Notice(Version(1, 2), "key", 3, "sha", 4, 5, {"epsilon": 0.5}))
VALUES: dict[str, Any] = {
    "index": 1,
    "spawn": 0,
    "broker": 1,
    "serial": 3,
    "remote": False,
    "leases": [[3, 4]],
    "streams": [[0, 1]],
    "stopped": [0],
    "open": [[0, 2, 5]],
    "role": "worker",
    "progress": 9,
    "layout": 5,
    "ref": [3, 4],
    "meta": [0, 0, 1, 0, 1, 8],
    "host": "local",
    "alive": {0: 1},
    "ready": [],
    "given_up": [2],
    "workers": [0, 1],
    "version": [0, 4],
    "parts": 1,
    "env_steps": 5,
    "updates": 6,
    "notice": NOTICE,
    "back": [3, 4],
    "part": [0, 1, 2, 40, 8, b"12345678"],
    "records": [[0, 1, 8]],
    "acked": [[0, 0, 3]],
    "orders": [[0, 1, 2, None], [1, 1, 2, 40]],
    "stop": False,
    "requests": [[0, 1, 2, 8]],
    "known": None,
}
"""A sound value of every field."""
SOUND = [(kind, {name: VALUES[name] for name in fields}) for kind, fields in messages.SCHEMAS.items()]
dict(SOUND)["record"]["parts"] = [[0, 1, 8, b"12345678"]]
WORKER = dict(SOUND)["worker"]


def reason(frame: bytes) -> str:
    with pytest.raises(WireError) as caught:
        messages.unpack(frame)
    return caught.value.reason


@pytest.mark.parametrize(("kind", "fields"), SOUND, ids=[kind for kind, _ in SOUND])
def test_what_is_packed_comes_back(kind: str, fields: dict[str, Any]) -> None:
    message = messages.unpack(messages.pack(kind, **fields))
    assert (message.kind, message.fields) == (kind, fields)


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (b"\x81\x90\x00", "not msgpack"),
        (b"GET / HTTP/1.1\r\n\r\n", "not msgpack"),
        (bytes(messages.MAX_CONTROL_BYTES + 1), "size"),
        (msgpack.packb(7), "shape"),
        (msgpack.packb([1, "worker"]), "shape"),
        (msgpack.packb([1, "worker", []]), "shape"),
        (msgpack.packb([messages.PROTOCOL + 1, "worker", WORKER]), "protocol"),
        (msgpack.packb([messages.PROTOCOL, "labourer", WORKER]), "kind"),
        (msgpack.packb([messages.PROTOCOL, 7, WORKER]), "kind"),
        (msgpack.packb([messages.PROTOCOL, ["worker"], WORKER]), "kind"),
        (messages.pack("worker", **{k: v for k, v in WORKER.items() if k != "spawn"}), "fields"),
        (messages.pack("worker", **WORKER, more=1), "fields"),
    ],
)
def test_each_wrong_form_has_its_reason(frame: bytes, expected: str) -> None:
    assert reason(frame) == expected


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
        ("agent", "given_up", [None]),
        ("learner", "updates", 1.5),
        ("announce", "notice", None),
        ("announce", "back", 3),
        ("announce", "back", [-1]),
        ("announce", "notice", {**NOTICE, "version": [1, -2]}),
        ("announce", "notice", {**NOTICE, "version": 3}),
        ("announce", "notice", {**NOTICE, "schedule": {"epsilon": "x"}}),
        ("announce", "notice", {**NOTICE, "more": 1}),
        ("announce", "notice", {k: v for k, v in NOTICE.items() if k != "key"}),
        ("answer", "part", [0, 1, 2, 40, 8]),
        ("answer", "part", [0, 1, 2, 40, -8, b""]),
        ("answer", "part", [0, 1, 2, 40, 8, "text"]),
        ("record", "parts", [[0, 1, b""]]),
        ("orders", "orders", [[0, 1, 2, [[3, None, False]]]]),
        ("orders", "stop", 1),
        ("books", "requests", [[0, 1, 2]]),
        ("books", "known", 3),
    ],
)
def test_each_wrong_value_is_refused(kind: str, field: str, value: Any) -> None:
    fields = dict(SOUND)[kind]
    assert field in fields
    assert reason(messages.pack(kind, **{**fields, field: value})) == "value"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(frame: bytes) -> None:
    for take in (messages.unpack, messages.unpack_descriptors):
        try:
            take(frame)
        except WireError:
            continue


ATOM = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=3)
KEY = st.text(max_size=3) | st.integers(0, 3)
JSON = st.recursive(
    ATOM | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([(kind, fields) for kind, fields in SOUND if fields]), st.data())
def test_any_value_in_any_field_is_a_message_or_a_wire_error(sound: tuple[str, dict[str, Any]], data: Any) -> None:
    kind, fields = sound
    field = data.draw(st.sampled_from(sorted(fields)))
    try:
        messages.unpack(messages.pack(kind, **{**fields, field: data.draw(JSON)}))
    except WireError:
        pass


def test_descriptors_come_back() -> None:
    refs = [SlotRef(0, 1), SlotRef(7, 1 << 40)]
    assert messages.unpack_descriptors(messages.pack_descriptors(3, 4, refs)) == (3, 4, refs)


@pytest.mark.parametrize("nbytes", [0, 8, 24, 17, messages.MAX_DESCRIPTORS_BYTES + 16])
def test_descriptors_of_a_wrong_length_are_refused(nbytes: int) -> None:
    with pytest.raises(WireError) as caught:
        messages.unpack_descriptors(bytes(nbytes))
    assert caught.value.reason == "descriptors"
