"""Plain data of the broker: assignments of vector envs, events that its state receives, actions that it returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field

from zmqrl.envs.base import EnvSlotState
from zmqrl.messages.frames import PackedColumn
from zmqrl.types import Array, DropReason, Notice, SegmentId, SegmentMeta, SlotRef

RESUMED_SHIFT = 16
"""After a resume, and after a learner rolled back, the incarnations of vector envs begin at the learner's incarnation
shifted by this: none is used twice."""


class HandoverRequest(Struct, frozen=True):
    """A new worker process continues a vector env with stored rows."""

    vector_env: int
    incarnation: int
    """The incarnation that the successor will have."""
    next_index: int
    """Segments below it are accepted; answer once they have all been taken."""


class Handover(Struct, frozen=True):
    """Where the successor of a vector env starts."""

    vector_env: int
    incarnation: int
    next_index: int
    states: tuple[EnvSlotState, ...]


class StreamAssignment(Struct, frozen=True):
    """A vector env that this worker is to step, from `next_index` on."""

    vector_env: int
    incarnation: int
    next_index: int
    states: tuple[EnvSlotState, ...] | None
    """None: fresh. A changed incarnation means: drop the env and start it again from `states`."""


class Assignments(Struct, frozen=True):
    """What a worker knows from the broker; absolute, so only the newest counts."""

    streams: tuple[StreamAssignment, ...] = ()
    stop: bool = False


class AssignmentSnapshot(Struct, frozen=True):
    """A worker's place, absolute: what a control reply carries."""

    spawn: int
    leases: Sequence[SlotRef]
    acked: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Vector env to (incarnation, next index): what is below is accepted."""
    assignments: Sequence[StreamAssignment] | None = ()
    """None: those of `serial`, which the worker has."""
    serial: int = 0
    stop: bool = False
    """Whether the worker has left and may end."""


class WorkerReported(Struct, frozen=True):
    """A worker's complete state, at its start and at each heartbeat."""

    index: int
    spawn: int
    leases: Sequence[SlotRef]
    streams: Mapping[int, int]
    """Vector env to incarnation of what it steps now."""
    broker: int | None = None
    """The broker's incarnation when this was reported: an older one's leases may have been still on their way."""
    serial: int = -1
    """Serial of the assignments that the worker follows."""
    remote: bool = False
    """Whether the worker does not see the arena: its leases are then credits."""
    open_rows: Sequence[tuple[int, int, int]] = ()
    """(vector env, index, rows) of a remote worker's segments that are not accepted."""
    stopped: Collection[int] = ()
    """Vector envs of `streams` that the worker steps no more, but has segments of that are not accepted."""
    segments: int = 0
    """Sealed since its start."""
    busy_s: float = 0.0
    """Seconds that it stepped for them: its waits excluded."""
    at: float = 0.0
    """When it came, in seconds of the broker's clock."""


class WorkerExited(Struct, frozen=True):
    """A worker ends on its own and writes no more."""

    index: int
    spawn: int


class Sealed(Struct, frozen=True):
    """Descriptors: hints that these slots are sealed."""

    index: int
    spawn: int
    refs: Sequence[SlotRef]


class Delivered(Struct, frozen=True):
    """A whole segment of a worker on another host; the broker writes and seals in its place."""

    index: int
    spawn: int
    ref: SlotRef
    meta: SegmentMeta
    columns: Mapping[str, Array | PackedColumn]


class HostReported(Struct, frozen=True):
    """A host agent's complete state: workers that are not listed are dead and reaped."""

    alive: Mapping[int, int]
    failed: Sequence[int]
    host: str
    workers: Sequence[int] = ()
    """The indexes assigned to it: alive, or to be started again. Workers that are not listed must leave."""
    acting: str = ""
    """The acting digest: hosts with the same one give a vector env the same bits. Empty: not known yet."""


class Paused(Struct, frozen=True):
    """The run has fewer workers than `min_workers`, or has enough again: while it is paused no leases are granted."""

    paused: bool


class HostRemoved(Struct, frozen=True):
    """A host was lost, or left the allow-list: its processes end, and none of its workers returns."""

    host: str
    workers: Sequence[int]
    """Every worker that may live there."""


class HostAbsent(Struct, frozen=True):
    """The launcher does not expect this host of the plan now: it was not reached, or has no workers for a while."""

    host: str


class WorkerSilent(Struct, frozen=True):
    """No message of this worker for `limits.lost_after_s`."""

    index: int
    spawn: int


class LearnerReported(Struct, frozen=True):
    """The learner's report; it also may have released slots."""

    env_steps: int
    """Env steps of the whole run that the learner has trained on."""
    updates: int


class Announced(Struct, frozen=True):
    """The learner's current version."""

    notice: Notice
    back: Sequence[int] | None = None
    """A learner that had to roll back to this version: the rows stored before it, in this arena, of each vector env."""


class HandoverAnswered(Struct, frozen=True):
    """The learner's answer to a handover request."""

    handover: Handover


class ClaimsExpired(Struct, frozen=True):
    """A process that has not claimed the vector envs that it stepped under the broker before this one is gone."""


Event = (
    WorkerReported
    | WorkerExited
    | Sealed
    | Delivered
    | HostReported
    | HostRemoved
    | HostAbsent
    | Paused
    | WorkerSilent
    | LearnerReported
    | Announced
    | HandoverAnswered
    | ClaimsExpired
)


class Forward(Struct, frozen=True):
    """Accepted: notify the learner."""

    refs: Sequence[SlotRef]


class Reply(Struct, frozen=True):
    """Send the worker its assignments (`BrokerState.snapshot`)."""

    index: int


class RequestHandovers(Struct, frozen=True):
    """Request from the learner where successors start (`Assignment.requests`)."""


class Publish(Struct, frozen=True):
    """A new version for every process."""

    notice: Notice


class Refuse(Struct, frozen=True):
    """The message is invalid: count it by `reason`."""

    reason: str


class Fail(Struct, frozen=True):
    """The run cannot continue."""

    cause: str


class Dropped(Struct, frozen=True):
    """Produced rows were not stored, and have been counted so: for the log."""

    id: SegmentId
    """Segment of the rows; for rows without one (`unsealed`, `rolled_back`, `unknown`): the first possible one."""
    rows: int
    reason: DropReason


class Relieved(Struct, frozen=True):
    """Vector envs move from a slow worker of a sync run to faster ones, or back to one that is faster again."""

    index: int
    factor: float
    """Its time for a segment by the median of the others."""
    before: int
    after: int
    """How many vector envs it has."""


Action = Forward | Reply | RequestHandovers | Publish | Refuse | Fail | Dropped | Relieved
