"""Who steps which vector env and from where: plain data of the broker, the learner and the workers."""

from __future__ import annotations

from dataclasses import dataclass

from zmqrl.envs.base import EnvSlotState

RESUMED_SHIFT = 16
"""After a resume, and after a learner rolled back, the incarnations of vector envs begin at the learner's incarnation
shifted by this: none is used twice."""


@dataclass(frozen=True)
class TakeUpRequest:
    """A new worker process continues a vector env with stored rows."""

    vector_env: int
    incarnation: int
    """The incarnation that the successor will have."""
    next_index: int
    """Segments below it are accepted; answer once they have all been taken."""


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
    """None: fresh. A changed incarnation means: drop the env and start it again from `states`."""


@dataclass(frozen=True)
class Orders:
    """What a worker knows from the broker; absolute, so only the newest counts."""

    streams: tuple[StreamOrder, ...] = ()
    stop: bool = False
