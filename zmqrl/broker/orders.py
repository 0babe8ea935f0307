"""Who steps which vector env and from where: plain data of the broker, the learner and the workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zmqrl.envs.base import EnvSlotState
from zmqrl.errors import WireError
from zmqrl.types import Array

PLAIN_DTYPE = re.compile(r"[<>|][biuf]\d{1,2}")
RESUMED_SHIFT = 16
"""After a resume, and after a learner went back, the incarnations of vector envs begin at the learner's incarnation
shifted by this: none is used twice."""


@dataclass(frozen=True)
class TakeUpRequest:
    """A new worker process wants to go on with a vector env that has a past."""

    vector_env: int
    incarnation: int
    """The incarnation that the successor will have."""
    next_index: int
    """Segments below it are booked; answer once they have all been taken."""


@dataclass(frozen=True)
class TakeUp:
    """Where the successor of a vector env starts."""

    vector_env: int
    incarnation: int
    next_index: int
    states: tuple[EnvSlotState, ...]


@dataclass(frozen=True)
class StreamOrder:
    """A vector env that this worker is to step, from `next_index` on."""

    vector_env: int
    incarnation: int
    next_index: int
    states: tuple[EnvSlotState, ...] | None
    """None: fresh. A changed incarnation means: drop the env and start it anew from `states`."""


@dataclass(frozen=True)
class Orders:
    """What a worker knows from the broker; absolute, so only the newest counts."""

    streams: tuple[StreamOrder, ...] = ()
    stop: bool = False


def order_to_data(order: StreamOrder) -> list[Any]:
    """A stream order as msgpack data; actions as raw bytes."""
    states = (
        None if order.states is None else [[s.episode, _array_to_data(s.actions), s.resetting] for s in order.states]
    )
    return [order.vector_env, order.incarnation, order.next_index, states]


def order_from_data(data: Sequence[Any]) -> StreamOrder:
    """The reverse, of data whose shape `wire.messages` checked. WireError when an array is none."""
    states = None
    if data[3] is not None:
        states = tuple(EnvSlotState(e, None if a is None else _array_from_data(a), r) for e, a, r in data[3])
    return StreamOrder(data[0], data[1], data[2], states)


def _array_to_data(array: Array | None) -> list[Any] | None:
    return None if array is None else [array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes()]


def _array_from_data(data: Sequence[Any]) -> Array:
    try:
        if not PLAIN_DTYPE.fullmatch(data[0]):
            raise WireError("dtype", data[0])
        array: Array = np.frombuffer(data[2], np.dtype(data[0])).reshape(data[1]).copy()
        return array
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError("array", str(error)) from error
