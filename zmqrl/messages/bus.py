"""Messages of the bus: what workers, learner, host agents and broker send each other. docs/protocol.md has the frames.

Every type documents sender, receiver, time, and the effect of an old or a wrong message. "Refused" means: counted by
reason, and otherwise without effect. Everything here is absolute or a hint, so a lost message is repeated by its
sender and a doubled one changes nothing. The three paragraphs of a docstring are columns of the table there.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, TypeAlias, get_args

from msgspec import Meta, Struct

from zmqrl.messages.fields import kinds_of
from zmqrl.types import (
    AllowList,
    Count,
    JudgedRole,
    Name,
    Notice,
    SegmentId,
    SegmentMeta,
    SlotRef,
    Version,
    VersionNumber,
)

MOST_PARTS = 4096
ECHO_BYTES = 1 << 16
Serial: TypeAlias = Annotated[int, Meta(ge=-1, lt=1 << 62)]


class StreamAt(NamedTuple):
    """A vector env under one incarnation."""

    vector_env: Count
    incarnation: Count


class OpenRows(NamedTuple):
    """Rows stepped in a segment that is not accepted."""

    vector_env: Count
    index: Count  # type: ignore[assignment]  # hides tuple.index, which nothing needs
    rows: Count


class Acked(NamedTuple):
    """What is below `next_index` is accepted."""

    vector_env: Count
    incarnation: Count
    next_index: Count


class AssignedStream(NamedTuple):
    """A vector env to step from `next_index` on."""

    vector_env: Count
    incarnation: Count
    next_index: Count
    record_bytes: Count | None
    """Size of the env-slot record; None: the vector env starts from scratch or is stepped already."""


class RecordAt(NamedTuple):
    """The part of an env-slot record that is missing."""

    vector_env: Count
    incarnation: Count
    offset: Count


class RecordPart(NamedTuple):
    """A part of an env-slot record."""

    vector_env: Count
    incarnation: Count
    offset: Count
    content: bytes


class HandoverPartRequest(NamedTuple):
    """A handover that is not answered, and the offset of the part of its record that is missing."""

    vector_env: Count
    incarnation: Count
    next_index: Count
    offset: Count


class AnswerPart(NamedTuple):
    """A part of the answer to a handover."""

    vector_env: Count
    incarnation: Count
    next_index: Count
    record_bytes: Count
    offset: Count
    content: bytes


class Hanging(NamedTuple):
    """A process that its agent is to kill."""

    role: JudgedRole
    index: Count  # type: ignore[assignment]
    spawn: Count
    state: Literal["stalled", "lost"]


class SegmentHeader(NamedTuple):
    """The header of a segment."""

    vector_env: Count
    incarnation: Count
    index: Count  # type: ignore[assignment]
    learner_incarnation: VersionNumber
    n: VersionNumber
    rows: Count

    @classmethod
    def of(cls, meta: SegmentMeta) -> SegmentHeader:
        """Header of the segment of `meta`, as plain integers."""
        return cls(*meta.id, *meta.version, meta.rows)

    def meta(self) -> SegmentMeta:
        """The reverse."""
        return SegmentMeta(SegmentId(*self[:3]), Version(*self[3:5]), self.rows)


class _BusMessage(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Fields are required, and no others are accepted."""


class WorkerReport(_BusMessage, frozen=True, tag="worker"):
    """A worker's absolute report of itself.

    Worker to broker: at start, each `heartbeat_s`, and at once when the broker's incarnation changed or new
    assignments were taken in.

    One that names an older broker is answered and claims nothing; one of an older spawn is ignored; an index
    outside the plan is refused (`worker`). False leases or streams of a worker of this host are compared with the
    arena and not followed.
    """

    index: Count
    spawn: Count
    broker: Count
    """The incarnation that it knows; 0: none."""
    serial: Serial
    """Serial of the assignments that the worker follows; -1: none."""
    remote: bool
    """Whether the worker has no arena."""
    leases: list[SlotRef]
    """All that it holds."""
    streams: list[StreamAt]
    """Vector envs that it steps, or of which segments are not accepted."""
    stopped: list[Count]
    """Vector envs of `streams` that it no longer steps, so that a new broker does not give them back to it."""
    open: list[OpenRows]
    """One for each segment that is stepped and not accepted; of a worker without an arena only."""
    segments: Count
    """Sealed by this process."""
    busy_us: Count
    """Microseconds that it stepped for these segments, its waits excluded."""


class WorkerAssignments(_BusMessage, frozen=True, tag="assignments"):
    """What a worker holds from now on: all leases, what is accepted, what it is to step.

    Broker to worker: in answer to `worker` and to descriptors, and when leases or streams change.

    One for another spawn or of another broker than the arena names is ignored; a slot or vector env outside the
    plan is refused (`value`).
    """

    spawn: Count
    broker: Count
    leases: list[SlotRef]
    acked: list[Acked]
    serial: Count
    streams: list[AssignedStream] | None
    """None while the worker follows this `serial`."""
    stop: bool


class Heartbeat(_BusMessage, frozen=True, tag="heartbeat"):
    """A process lives.

    Worker or learner to broker: each `heartbeat_s`, from a separate thread.

    One of an older spawn is ignored; an index outside the plan is refused (`process`).
    """

    role: JudgedRole
    index: Count
    spawn: Count
    progress: Count
    """Changes when the process makes progress."""


class RecordRequest(_BusMessage, frozen=True, tag="record_request"):
    """A worker lacks parts of the env-slot records of its assignments.

    Worker to broker: at once, and again at growing intervals until the next part is there.

    Parts of vector envs that this spawn does not hold are not sent.
    """

    index: Count
    spawn: Count
    records: list[RecordAt]


class Record(_BusMessage, frozen=True, tag="record"):
    """Parts of env-slot records, 512 KiB together.

    Broker to worker: in answer to `record_request`.

    A part that is not the next one is ignored; a whole record that cannot be read is refused (`record`) and
    requested again.
    """

    spawn: Count
    parts: list[RecordPart]


class WorkerExit(_BusMessage, frozen=True, tag="worker_exit"):
    """A worker ends and writes no more.

    Worker to broker: at its end.

    Its leases are taken back, so a wrong one would cost a live worker its slots: one of another spawn is ignored,
    one from another host than the worker's is refused (`host`).
    """

    index: Count
    spawn: Count


class HostReport(_BusMessage, frozen=True, tag="agent"):
    """A host agent's absolute report of its workers. The broker always answers it.

    Host agent to broker: each `heartbeat_s`, and at each start and death.

    Who is not listed as alive is taken to be dead and reaped; one that sends for another host or names its workers
    is refused (`host`).
    """

    host: Name
    alive: dict[Count, Count]
    """Worker to spawn; who is absent is dead and reaped."""
    ready: list[Count]
    """Workers that reported ready: their silence counts from then on."""
    failed: list[Count]
    """Workers that have failed and are not started again."""
    workers: list[Count]
    """Assigned to the host, alive or about to be started again: workers that are not listed must leave."""
    acting: Name
    """Digest of what acting computes there; empty: not known yet."""


class Welcome(_BusMessage, frozen=True, tag="welcome"):
    """This broker is there; a host that waits for weights requests them again from a new one.

    Broker to host agent: in answer to `agent`, before the notice.

    A wrong incarnation causes one more `fetch`. Of `hanging` the newest message counts, and another spawn than the
    running one is ignored; a wrong one kills a process, which is started again.
    """

    broker: Count
    hanging: list[Hanging]
    """Processes of this host that are to be killed: no heartbeat, or a worker without progress although work is
    available."""


class Fetch(_BusMessage, frozen=True, tag="fetch"):
    """A host agent does not see this version in the store.

    Host agent to broker: when a version was announced and is not seen there.

    A version that was not announced is refused (`version`); an older one is answered with the current one.
    """

    version: Version


class Weights(_BusMessage, frozen=True, tag="weights"):
    """The version that was fetched, or a newer one; raw frames of at most 16 MiB follow.

    Broker to host agent: in answer to `fetch`, once the broker's host has it.

    Another number of frames than `parts` is refused (`frames`); content without the notice's digest is not used and
    fetched again; an older one is ignored.
    """

    notice: Notice
    parts: Annotated[int, Meta(ge=0, le=MOST_PARTS)]


class ShutdownNotice(_BusMessage, frozen=True, tag="shutdown_notice"):
    """The run is over, this host's workers were removed, or its enrolment is refused.

    Broker to the host agent of another host: once, or in answer to `agent` or `enrol`.

    The agent ends its processes.
    """

    cause: Name


class Enrol(_BusMessage, frozen=True, tag="enrol"):
    """The key of this connection is that of the host to which the one-time token was given.

    Agent of a host that joins by a connection file to broker: repeatedly, until it is answered with `welcome`, once
    the key is on the allow-list, or with `shutdown_notice`.

    A token that is unknown, or was used by another key, is refused (`token`); before the key is on the list, any
    other message of this connection is refused too (`unknown key`).
    """

    token: Name


class PathProbe(_BusMessage, frozen=True, tag="echo"):
    """Message as long as several full packets: it arrives only where these do.

    Host agent to broker: once, when it is to join and the broker has answered. Broker to host agent: the same, back.

    Longer ones are refused (`fields`).
    """

    padding: Annotated[bytes, Meta(max_length=ECHO_BYTES)]


class AllowedKeys(_BusMessage, frozen=True, tag="allow"):
    """Who may participate from other hosts.

    Agent of the learner's host to broker: when the launcher changes it, and with each `agent`.

    Absolute: one whose serial is not higher is ignored. Keys that are no longer in it are refused from the next
    message on, and the workers of their hosts are removed. From another host it is refused (`not from there`).
    """

    allowed: AllowList


class LearnerReport(_BusMessage, frozen=True, tag="learner"):
    """The learner's counters; it may have released slots.

    Learner to broker: each `heartbeat_s`, after releases and updates.

    Released slots are read from the arena; an old count delays leases until the next one. From another host it is
    refused (`not from there`).
    """

    env_steps: Count
    updates: Count


class Announce(_BusMessage, frozen=True, tag="announce"):
    """A new policy version.

    Learner to broker: at each version, and each `heartbeat_s` until `broker_status` shows it.

    One that is not newer than the known version changes nothing. From another host it is refused (`not from
    there`).
    """

    notice: Notice
    back: list[Count] | None
    """Rows of each vector env in this arena before this version, of a sync learner that had to roll back to it."""


class BrokerStatus(_BusMessage, frozen=True, tag="broker_status"):
    """What the broker requests from the learner, and the version that it knows.

    Broker to learner: to a new learner, after `announce`, while a handover is unanswered.

    An old one causes an answer that the broker ignores; a vector env outside the plan is refused (`value`).
    """

    broker: Count
    requests: list[HandoverPartRequest]
    known: Version | None


class HandoverAnswer(_BusMessage, frozen=True, tag="answer"):
    """A part of the answer to a handover. A new part is answered with `broker_status`, which requests the next one.

    Learner to broker: once every segment below the requested index was taken.

    One without a request, or that is not the next part, is ignored; a record that cannot be read is refused
    (`record`).
    """

    part: AnswerPart


class CurrentNotice(_BusMessage, frozen=True, tag="notice"):
    """The current policy version.

    Broker to host agent: on PUB once per version, on control in answer to each `agent`.

    An older one is ignored.
    """

    notice: Notice


class Segment(_BusMessage, frozen=True, tag="segment"):
    """A whole segment; one frame per column follows: its bytes, or a shorter LZ4 frame of a large uint8 column.

    Worker of another host to broker, on `segments`: when it is sealed, again while it is not acknowledged.

    Another layout is refused (`segment`), a column of another size too (`column`); a segment that was accepted is a
    duplicate, one without a credit is ignored.
    """

    layout: Count
    """The arena's digest."""
    index: Count
    spawn: Count
    ref: SlotRef
    meta: SegmentHeader


Message: TypeAlias = (
    WorkerReport
    | WorkerAssignments
    | Heartbeat
    | RecordRequest
    | Record
    | WorkerExit
    | HostReport
    | Welcome
    | Fetch
    | Weights
    | ShutdownNotice
    | Enrol
    | PathProbe
    | AllowedKeys
    | LearnerReport
    | Announce
    | BrokerStatus
    | HandoverAnswer
    | CurrentNotice
    | Segment
)
KINDS = kinds_of(get_args(Message))


def kind_of(message: Message) -> str:
    """Its name on the wire."""
    return str(message.__struct_config__.tag)
