"""Parts of env-slot records: in order, each once, and nothing that is no record."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqrl.broker.env_records import HandoverParts, PackedRecords, PartialRecord, pack_record, unpack_record
from zmqrl.broker.events import Handover, HandoverRequest, StreamAssignment
from zmqrl.envs.base import AT_RESET, EnvSlotState
from zmqrl.errors import WireError

ACTING = np.array([0.5, -1.0], np.float32)
NUMBERS = ((AT_RESET, {"wind": 0.1}), (2, {"wind": 1e300, "level": -3.0}))
ACTIONS = np.arange(6, dtype=np.float32).reshape(3, 2)
STATES = (EnvSlotState(3, ACTIONS, True, acting_state=ACTING, numbers=NUMBERS), EnvSlotState(4))
RECORD = pack_record(STATES)
REQUEST = HandoverRequest(1, 2, 3)


def part(offset: int, size: int, nbytes: int = len(RECORD), next_index: int = 3, incarnation: int = 2) -> list[object]:
    return [1, incarnation, next_index, nbytes, offset, RECORD[offset : offset + size]]


def test_a_record_comes_back() -> None:
    first, second = unpack_record(RECORD)
    assert (first.episode, first.resetting, second) == (3, True, STATES[1])
    assert first.actions is not None and np.array_equal(first.actions, STATES[0].actions)  # type: ignore[arg-type]
    assert first.numbers == NUMBERS
    assert first.acting_state is not None and np.array_equal(first.acting_state, ACTING)
    assert unpack_record(pack_record(())) == ()
    largest = (EnvSlotState((1 << 62) - 1, elapsed=0),)
    assert unpack_record(pack_record(largest)) == largest


@pytest.mark.parametrize("data", [
    7,
    [[1, None]],
    [[-1, None, False]],
    [[1, ["O", [1], b"12345678"], False]],
    [[1, ["<i8", [2], b"12345678"], False]],
    [[1, ["<i8", [-1], b"12345678"], False]],
    [["x", None, False]],
    [[1, False, 0, [], None, None, None]],
    *([[episode, False, elapsed, [], None, None, None, None]] for episode, elapsed in ((-1, 0), (0, -1), (1 << 62, 0))),
    [[1, False, 0, [], None, ["|u1", [1], b"1"], None, None]],
    [[1, False, 0, [], None, None, ["|u1", [1], b"1"], None]],
    [[1, False, 0, [], None, ["<f4", [1], b"1234"], ["<f4", [1], b"1234"], None]],
    [[1, False, 0, [], None, None, None, ["<f8", [1], b"12345678"]]],
    [[1, False, 0, [], None, None, None, ["<f4", [1, 2], b"12345678"]]],
    *([[1, False, 0, numbers, None, None, None, None]] for numbers in (
        None, 7, [[0]], [["0", {}]], [[0, 1.0]], [[0, {"a": "1"}]], [[0, {"a": float("nan")}]], [[0, {"a" * 256: 1.0}]],
    )),
], ids=str)  # fmt: skip
def test_an_invalid_record_is_refused(data: object) -> None:
    with pytest.raises(WireError):
        unpack_record(bytes(msgpack.packb(data)))


@given(st.integers(0, len(RECORD) - 1), st.integers(0, 255))
def test_a_changed_byte_is_a_record_or_a_wire_error(at: int, byte: int) -> None:
    try:
        unpack_record(RECORD[:at] + bytes([byte]) + RECORD[at + 1 :])
    except WireError:
        pass


def test_parts_come_in_order_and_each_once() -> None:
    record = PartialRecord(10)
    assert not record.add(4, b"later")
    assert record.add(0, b"0123")
    assert not record.add(0, b"0123")
    assert not record.add(4, b"")
    assert not record.add(4, b"too many for it")
    assert record.add(4, b"456789") and record.is_whole


def test_an_answer_is_built_from_the_request() -> None:
    parts = HandoverParts()
    assert parts.take(part(0, 20), []) is None and not parts.progressed
    assert parts.take(part(0, 20), [REQUEST]) is None and parts.progressed
    assert parts.offset(REQUEST) == 20
    assert parts.take(part(20, 999, incarnation=1), [REQUEST]) is None and not parts.progressed
    assert parts.take(part(0, 20), [REQUEST]) is None and not parts.progressed, "it was there already"
    handover = parts.take(part(20, 999), [REQUEST])
    assert handover is not None and (handover.vector_env, handover.incarnation, handover.next_index) == (1, 2, 3)
    assert pack_record(handover.states) == RECORD
    assert parts.offset(REQUEST) == 0


def test_a_different_record_starts_from_scratch() -> None:
    """A learner that was started again may answer otherwise."""
    parts = HandoverParts()
    parts.take(part(0, 20), [REQUEST])
    assert parts.take(part(20, 999, next_index=4), [REQUEST]) is None and not parts.progressed
    assert parts.offset(REQUEST) == 0


def test_an_empty_record_is_whole_at_once() -> None:
    assert HandoverParts().take([1, 2, 3, 0, 0, b""], [REQUEST]) == Handover(1, 2, 3, ())


def test_what_is_no_longer_requested_is_removed() -> None:
    parts = HandoverParts()
    parts.take(part(0, 20), [REQUEST])
    parts.take(part(0, 20), [])
    assert parts.offset(REQUEST) == 0


def test_an_assignment_names_the_size_of_its_record_alone() -> None:
    packed = PackedRecords()
    assert packed.row_of(StreamAssignment(1, 2, 3, STATES)) == (1, 2, 3, len(RECORD))
    assert packed.row_of(StreamAssignment(1, 4, 3, ())) == (1, 4, 3, 0)
    assert packed.row_of(StreamAssignment(1, 5, 3, None)) == (1, 5, 3, None)
