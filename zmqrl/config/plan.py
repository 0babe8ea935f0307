"""What the launcher decides once and every process of the run receives: the plan, and each process's boot."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field

from zmqrl.config.sections import Config
from zmqrl.types import AllowList, ColumnSpec, EnvSpec

INITIAL = "initial.safetensors"
"""File in the run directory: the weights of version 0, where `run.init_from` names others than random ones."""
MOST_WORKERS = 1 << 20
"""Indexes of workers in one run. Each is used once: a late message of a lost host names none of its later workers."""
Neighbours: TypeAlias = Literal["ignored", "refused", "warned"]


class Lineage(Struct, frozen=True):
    """All attempts of one run, and the attempt that this is: what the owner record of its checkpoints holds."""

    id: str = ""
    """Made at the run's first attempt, the same in all of them."""
    attempt: int = 1
    """Lifetimes of the launcher, this one included."""
    host: str = ""
    """Host of the launcher."""
    run_dir: str = ""
    """On that host."""


def worker_indexes(workers: Mapping[str, int]) -> dict[str, range]:
    """Host to the indexes of its workers: 0 .. k - 1, the next host from k."""
    held, first = {}, 0
    for host, count in workers.items():
        held[host] = range(first, first + count)
        first += count
    return held


class RunPlan(Struct, frozen=True):
    """The resolved run. Plain data: it travels as JSON of Python, with infinities, on the host agent's stdin."""

    run_id: str
    run_dir: str
    started_at: float
    """Wall clock (`time.time`) of the start of the command."""
    config: Config
    env: EnvSpec
    acting: Mapping[str, object]
    """`ActingSpec` as JSON data: the configuration does not import `acting`."""
    columns: tuple[ColumnSpec, ...]
    """obs, action, reward, terminated, truncated, valid, then the extras."""
    on_policy: bool
    slots: int
    """Slots of the arena."""
    streams: int
    """Vector envs that the stream table has room for."""
    workers: Mapping[str, int]
    """Workers per host, in the order of their indexes: local 0 .. k - 1, the next host from k."""
    batch_segments: int
    """Segments of one training batch: the quota in sync, `batch_segments` in async on-policy, else 0."""
    store_path: str
    """Directory of this lineage's checkpoints, on the learner's host (`DataStore.place`)."""
    held_segments: int = 0
    """Segments that replay holds; 0: without replay."""
    resume: bool = False
    lineage: Lineage = field(default_factory=Lineage)
    full_required: bool = False
    """Whether a resume needs a FULL: the run had env steps, so its learner must not begin at env step 0."""
    from_scratch: bool = False
    """Whether the user allows a resume to begin at env step 0."""
    may_continue: bool = True
    """Whether a resume may load a full checkpoint; False: one ends it (`--from-scratch` without `--resume auto`)."""
    started_by: str = ""
    """User and machine of the launcher, `anna@laptop`: users of a shared account differ in it."""
    warnings: tuple[str, ...] = ()
    """What works, and is hardly what was meant: a line each, for the user."""
    began: float = field(default_factory=time.monotonic)
    """The start of the command in monotonic seconds of this host: no step of the wall clock changes its distance."""

    @property
    def is_gpu_of_use(self) -> bool:
        """Whether `learner.device: auto` looks for a GPU: a small network is trained faster without."""
        return self.config.network.kind != "mlp"

    @property
    def total_workers(self) -> int:
        """Workers of all hosts."""
        return sum(self.workers.values())


class Endpoints(Struct, frozen=True):
    """Where the broker listens. `ipc://...` on its host; tcp alongside it when other hosts participate."""

    segments: str = ""
    """Broker PULL: workers and other hosts PUSH here."""
    descriptors: str = ""
    """Broker PUSH bound here: the learner PULLs."""
    notices: str = ""
    """Broker PUB."""
    control: str = ""
    """Broker ROUTER."""

    @classmethod
    def tcp(cls, address: str, ports: Sequence[int]) -> Endpoints:
        """Endpoints of a broker on another host; an IPv6 address is written in brackets."""
        at = f"[{address}]" if ":" in address else address
        segments, notices, control = (f"tcp://{at}:{port}" for port in ports)
        return cls(segments, "", notices, control)


class Keys(Struct, frozen=True):
    """A host's CURVE pair as Z85 text. Its agent makes it, and the secret half stays on that host."""

    public: str
    secret: str
    server: str = ""
    """The broker's public key: of a process that connects to it from another host."""

    def __repr__(self) -> str:
        return f"Keys(public={self.public!r}, server={self.server!r})"


class TcpListen(Struct, frozen=True):
    """Where the broker listens alongside its ipc sockets, when other hosts participate."""

    address: str = "*"
    """`127.0.0.1` when all of them come through tunnels."""
    ports: tuple[int, int, int] = (0, 0, 0)
    """segments, notices, control; 0: any free one, which the broker's first `listening` event names."""


class Boot(Struct, frozen=True):
    """What one process reads from its stdin, a JSON line, before it does anything."""

    role: str
    """broker, learner, worker or evaluator."""
    index: int
    spawn: int
    """How often this process index was started before; 0 at first."""
    host: str
    plan: RunPlan
    endpoints: Endpoints = field(default_factory=Endpoints)
    fds: Mapping[str, int] = field(default_factory=dict)
    """Inherited descriptors: `events` (write JSON lines), `arena`, `weights`, `wake` (read)."""
    workers: tuple[int, ...] = ()
    """The agent's: indexes of the workers that it holds."""
    keys: Keys | None = None
    """Added on the host itself: the launcher sends none. None: this process has no encrypted connection."""
    allowed: AllowList = field(default_factory=AllowList)
    """The broker's: who may participate from other hosts."""
    listen: TcpListen | None = None
    streams_logs: bool = False
    """The agent's: the launcher sees no file of this host, so logs are sent, and the run folder goes with the run."""
    device: str = "cpu"
    """The worker's: what it acts on with torch."""
    neighbours: Neighbours = "ignored"
    """The agent's: what becomes of a run of another user on its machine, and of another run of this user.

    ignored: the user is at the machine. refused: the agent ends with exit code 2; an own run is a warning.
    warned: the machine is shared by design, and both are warnings.
    """
    age_s: float = 0.0
    """The agent's: seconds from the start of the command until this boot was sent."""

    @property
    def is_alone(self) -> bool:
        """The agent's: whether this is the only host that the run has or can get."""
        return self.host == self.plan.config.learner.host and self.listen is None
