"""The plain data that travels between parts: one type per idea of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from zmqrl.spaces import Array as Array
from zmqrl.spaces import SpaceSpec as SpaceSpec
from zmqrl.spaces import item_bytes

Count: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
"""Bounds hold where a message is decoded (`zmqrl.messages`), not where a value is made."""
WHOLE_LIMIT = 1 << 62
Whole: TypeAlias = Annotated[int, Meta(gt=-WHOLE_LIMIT, lt=WHOLE_LIMIT)]
LARGEST_FINITE = 1e300
Finite: TypeAlias = Annotated[float, Meta(ge=-LARGEST_FINITE, le=LARGEST_FINITE)]
"""The bounds refuse NaN and the infinities too: no comparison with NaN holds."""
LONGEST_NAME = 255
Name: TypeAlias = Annotated[str, Meta(max_length=LONGEST_NAME)]
VersionNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 38)]
"""A learner incarnation is shifted by 16 bits where vector envs continue from it."""
Weights = Mapping[str, Array]
"""Named arrays: the network's tensors and the statistics that acting needs."""


ModeName: TypeAlias = Literal["single", "sync", "pipelined", "async", "offline"]
Severity: TypeAlias = Literal["error", "warning", "note"]
"""Severity of a report: something has ended or is prevented; it is to be looked at; nothing is to be done."""
Role: TypeAlias = Literal["broker", "learner", "worker", "evaluator"]
"""Role of a process that a host agent starts."""
JudgedRole: TypeAlias = Literal["learner", "worker"]
"""Whose heartbeats the broker judges."""
FIXED_COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "valid")
"""Columns of every segment."""
STATE_COLUMN = "env_state"
"""Column uint8 `[1, N, bytes]`: the state of each env after the last step of a segment."""
REPORT_COLUMN = "env_report"
"""Column float64 `[T, N, names]`: numbers of `info` of each row (`env.report`); NaN where it does not have the name."""
OTHER_COLUMNS = (STATE_COLUMN, REPORT_COLUMN)
"""Columns that no algorithm reads."""
ACTING_STATE = "state."
"""Columns float32 `[T / state_every, N, size]`: the recurrent state with which row 0, state_every, ... is acted."""
ACTING_STATE_END = "state_end."
"""Columns float32 `[1, N, size]`: the recurrent state with which row 0 of the next segment is acted."""
PREVIOUS = "previous"
"""Recurrent state `[N, P]` with the action and the reward of the row before (`zmqrl.acting.previous`)."""
BYTES = "bytes"
"""The dtype of a state that is not an array."""
DropReason: TypeAlias = Literal["unsealed", "superseded", "rolled_back", "unknown"]
DROP_REASONS: tuple[DropReason, ...] = ("unsealed", "superseded", "rolled_back", "unknown")
"""Why produced rows were not stored, in the order of the stream table's words. `unknown`: of a stream whose holder is
gone, rows that were stepped by its words and are not accounted for."""


class Mode(Struct, frozen=True):
    """Who waits for whom. Code decides by these properties, never by the name of a mode."""

    name: ModeName
    in_process: bool
    """No broker and no workers: the learner steps the envs itself, or none."""
    lag: int | None
    """Versions published between that of a segment and the one it trains; None: as many as back-pressure allows."""
    offline: bool = False
    """Experience is a data set, and no env is stepped: progress is counted in updates."""

    @property
    def deterministic(self) -> bool:
        """The weights depend on seed and configuration alone: segments are trained in rounds of one version."""
        return self.lag is not None

    @property
    def rounds_ahead(self) -> int:
        """Rounds that workers may be ahead: round n is acted with version max(0, n - rounds_ahead)."""
        return self.lag or 0


MODES: Mapping[ModeName, Mode] = {
    mode.name: mode
    for mode in (
        Mode("single", True, 0),
        Mode("sync", False, 0),
        Mode("pipelined", False, 1),
        Mode("async", False, None),
        Mode("offline", True, 0, offline=True),
    )
}


class Version(NamedTuple):
    """A policy version. Compared in this order; `n` grows by 1 per published weights."""

    incarnation: VersionNumber
    n: VersionNumber

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.n}"


class SegmentId(NamedTuple):
    """Names a segment for ever. In single, sync and pipelined `index` is the number of its round."""

    vector_env: Count
    incarnation: Count
    index: Count  # type: ignore[assignment]  # hides tuple.index, which nothing needs


class SlotRef(NamedTuple):
    """A slot of the arena in one life: `generation` grows by 1 each time the slot is leased."""

    slot: Count
    generation: Count


class SegmentMeta(Struct, frozen=True):
    """The description of a segment in the slot's header."""

    id: SegmentId
    version: Version
    rows: int
    """Valid rows."""


class ColumnSpec(Struct, frozen=True):
    """One column of a segment. `shape` is whole: `[T, N, ...]`, for `obs` `[T + 1, N, ...]`.

    With `env.frame_stack` k, `obs` is `[T + k, N, ...]`: single frames, read by `zmqrl.replay.base`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the column's payload, without padding."""
        return math.prod(self.shape) * item_bytes(self.dtype)


class StateSpec(Struct, frozen=True):
    """What `get_state` of an env returns, always of the same size: an array, or bytes (dtype `bytes`)."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a state."""
        return math.prod(self.shape) * (1 if self.dtype == BYTES else item_bytes(self.dtype))


class EnvSpec(Struct, frozen=True):
    """Properties of the env, known before any env process is started."""

    id: str
    observation: SpaceSpec
    action: SpaceSpec
    reward_threshold: float | None = None
    native_vector: bool = False
    """A vector form that steps all envs in one call exists (used in async)."""
    max_episode_steps: int | None = None
    """No episode has more steps; None: unknown."""
    state: StateSpec | None = None
    """Form of the env's state, which all modes but async keep instead of its actions with `env.recovery: state`."""
    agents: tuple[str, ...] = ()
    """Agents of a multi-agent env, each with a slot of its own; empty: one agent."""
    vector_only: bool = False
    """`gymnasium.vector.VectorEnv`, without a form that steps one env."""
    has_state_pair: bool = False
    """The env has methods `get_state` and `set_state`, which may have a meaning of their own."""
    receives_numbers: bool = False
    """The env or a wrapper has a method `on_progress`, which is called with the numbers of each version."""
    remarks: tuple[str, ...] = ()
    """What a check has found; a plan has it in its warnings."""

    @property
    def slots_per_env(self) -> int:
        """Slots of a vector env that begin their episodes together, since they are the agents of one env."""
        return max(1, len(self.agents))


class Notice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Notice that version v is in the store. It is sent by PUB/SUB and repeated in every control reply."""

    version: Version
    key: Annotated[str, Meta(max_length=4096)]
    """What the data store reads it by: as long as a path may be."""
    nbytes: Count
    sha256: Name
    env_steps: Count
    updates: Count = 0
    schedule: Mapping[Name, Finite] = msgspec.field(default_factory=dict)
    """Values that travel with the version, such as `epsilon`."""
    before: Notice | None = None
    """Notice of the version before, where a round may still be acted with it (mode pipelined)."""

    @property
    def done(self) -> int:
        """Env steps; updates in a run that has only those (mode offline)."""
        return self.env_steps or self.updates


class HostKey(NamedTuple):
    """Whose public key it is: a host's, in one life of its agent."""

    host: Name
    incarnation: Count
    """How many agents the host has had in this run, this one included."""


class AllowList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may participate from other hosts. Absolute: of several lists the one with the highest serial counts."""

    serial: Count = 0
    hosts: Mapping[Name, HostKey] = msgspec.field(default_factory=dict)
    """Hosts by public CURVE key (Z85 text)."""
    tokens: Mapping[Name, Name | None] = msgspec.field(default_factory=dict)
    """Hosts that one-time tokens admit, by the sha256 of the token; None: it was used."""
    paused: bool = False
    """Fewer workers than `min_workers` are ready: the broker grants no leases."""
    absent: tuple[Name, ...] = ()
    """Hosts of the plan that the first assignment does not wait for, with `env.recovery: restart_episode`."""


class ArenaUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the slots of an arena are used for, and what was accepted from them."""

    leases: Whole
    """Slots that workers may write now."""
    stored: Whole
    """Valid rows accepted."""


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """produced = stored + in_flight + sum(dropped), all in valid rows (env steps)."""

    produced: Whole
    stored: Whole
    in_flight: Whole
    dropped: Mapping[Name, Whole]
    duplicates_refused: Whole
    overbooked: Whole = 0
    """Rows by which stored + dropped exceeds produced, summed over the streams where it does."""

    @property
    def balanced(self) -> bool:
        """Whether every produced row is accounted for, with a reason, and once."""
        accounted = self.stored + self.in_flight + sum(self.dropped.values())
        return self.produced == accounted and not self.dropped.get("unknown", 0) and not self.overbooked


class GpuProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process that computes on a GPU."""

    pid: Count
    user: Name
    """Login name; empty: the process is not visible from here, as one of another container."""
    own: bool
    """Whether the process is of the user who looks."""
    used_mib: Count


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU of a host, as nvidia-smi reports it."""

    index: Count
    uuid: Name
    name: Name
    used_mib: Count
    total_mib: Count
    mig: bool
    """Divided by MIG: its instances are used, and not the whole."""
    processes: tuple[GpuProcess, ...] = ()
