"""The validator that is the yardstick of `benchmarks/decode.py` reads the messages as they are now."""

from __future__ import annotations

import msgpack
import pytest

from benchmarks.decode import MESSAGES, by_hand
from zmqrl.messages import bus
from zmqrl.messages.frames import pack


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_the_yardstick_reads_each_message(message: bus.Message) -> None:
    _, fields = msgpack.unpackb(pack(message))
    kind = fields.pop("kind")
    assert by_hand(msgpack.packb([2, kind, fields])) == fields
