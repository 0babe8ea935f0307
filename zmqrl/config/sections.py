"""The configuration as frozen typed sections. Every key of hosts.yaml and of a preset is a field here.

The launcher validates with pydantic against these classes; every other process rebuilds them
from the resolved JSON (`zmqrl.config.codec`) and imports no pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from zmqrl.types import Mode

Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
Seconds = Annotated[float, Gt(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
AutoCount = Count | Literal["auto"]

FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True)
class RunSection:
    """What to train and when to stop."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: str = "run"
    preset: str | None = None
    seed: Count = 1
    mode: Mode = "sync"
    total_env_steps: Positive = 100_000
    schedule_env_steps: Positive | None = None
    """Horizon of every schedule; default: the first `total_env_steps`, kept over a resume."""
    stop_at_return: float | None = None
    """Stop once the mean return of the last 100 finished training episodes reaches this."""
    stop_at_updates: Positive | None = None
    max_wall_s: Seconds | None = None
    checkpoint_every_s: Seconds = 10.0
    debug: bool = False
    """Check what must hold at every update (first-minibatch ratio 1), fill freed slots with NaN."""


@dataclass(frozen=True)
class EnvSection:
    """The env and how it is cut into vector envs and segments."""

    __pydantic_config__ = FORBID_UNKNOWN

    id: str = "CartPole-v1"
    num_envs: Positive = 8
    """N: envs stepped together in one vector env."""
    vector_envs: Positive = 4
    """Vector envs of the run in single and sync; in async each worker has one."""
    segment_steps: Positive = 32
    """T: steps of one segment."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    """Dotted paths `a.b:Wrapper`, applied in order."""


@dataclass(frozen=True)
class NetworkSection:
    """The network's size; how it is used is the algorithm's."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: Literal["mlp", "cnn"] = "mlp"
    hidden: tuple[Positive, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    channels: tuple[Positive, ...] = (32, 64, 64)
    """cnn: channels of the convolutions."""
    kernels: tuple[Positive, ...] = (8, 4, 3)
    strides: tuple[Positive, ...] = (4, 2, 1)


@dataclass(frozen=True)
class ReplaySection:
    """Replay of off-policy algorithms, in env steps. On-policy algorithms ignore it."""

    __pydantic_config__ = FORBID_UNKNOWN

    capacity: Positive = 50_000
    learning_starts: Count = 1_000
    ratio: Annotated[float, Gt(0)] = 0.25
    """Updates per env step after `learning_starts`."""
    slack: Positive | None = None
    """async: env steps by which workers may run ahead; default, and least: a segment per lease, or one segment and
    `1 / ratio` if that is more."""


@dataclass(frozen=True)
class EvaluatorSection:
    """The process that scores published versions."""

    __pydantic_config__ = FORBID_UNKNOWN

    episodes: Count = 20
    """Greedy episodes per score; 0 switches the evaluator off."""
    nice: Annotated[int, Ge(0), Le(19)] = 10
    final_limit_s: Annotated[float, Ge(0)] = 5.0
    """How long the end of a run waits for the final version's score."""


@dataclass(frozen=True)
class LearnerSection:
    """Where the learner and its broker run."""

    __pydantic_config__ = FORBID_UNKNOWN

    host: str = "local"
    device: str = "auto"
    threads: Positive | None = None
    """BLAS and torch threads; default 1."""
    address: str | None = None
    port: Annotated[int, Ge(1), Le(65_533)] | Literal["auto"] = "auto"


@dataclass(frozen=True)
class HostSection:
    """One host of the `hosts` mapping; null keys take the value of `defaults`."""

    __pydantic_config__ = FORBID_UNKNOWN

    workers: Count | Literal["auto"] | None = None
    ssh: str | None = None
    """Address, or name in ~/.ssh/config; null: the host's name here."""
    user: str | None = None
    port: Annotated[int, Ge(1), Le(65_535)] | None = None
    identity: str | None = None
    jump: str | None = None
    python: str | None = None
    workdir: str | None = None
    """Everything of zmqrl on that host is below it."""
    nice: Annotated[int, Ge(0), Le(19)] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of its processes."""
    groups: tuple[str, ...] = ()
    """Names that `--limit` takes."""
    tunnel: bool = False
    """It cannot reach the learner's host: the run's ports are carried through its SSH connection."""
    manual: bool = False
    """SSH cannot reach it: it joins by `zmqrl worker --connect FILE`."""


@dataclass(frozen=True)
class DefaultsSection:
    """Values for hosts that do not say otherwise."""

    __pydantic_config__ = FORBID_UNKNOWN

    python: str = "~/venvs/zmqrl/bin/python"
    workdir: str = "~/zmqrl"
    workers: AutoCount = "auto"
    user: str | None = None
    port: Annotated[int, Ge(1), Le(65_535)] | None = None
    identity: str | None = None
    jump: str | None = None
    nice: Annotated[int, Ge(0), Le(19)] = 0


@dataclass(frozen=True)
class StoreSection:
    """Where checkpoints go."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: str = "directory"
    path: str | None = None
    """null: `<run-dir>/checkpoints`."""
    keep: Positive = 8
    sync_full_max_mb: Annotated[float, Ge(0)] = 8.0
    """sync: FULL is written every round while it is no larger than this."""
    async_replay: bool = False
    """async, off-policy: FULL holds replay too. Written beside training, it needs three times replay's memory."""
    wait_s: Seconds = 300.0
    """How long a run waits for a store that cannot be written, before it fails."""


@dataclass(frozen=True)
class MemoryBackendSection:
    """The experience stream: `zmq`, or a dotted path to one's own. single mode takes `inproc`."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: str = "zmq"


@dataclass(frozen=True)
class OrchestratorSection:
    """What starts processes: `auto` is `local` for the host `local` and `ssh` for the rest."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: str = "auto"


@dataclass(frozen=True)
class SecuritySection:
    """Encryption of endpoints that leave this machine."""

    __pydantic_config__ = FORBID_UNKNOWN

    curve: Literal["auto", "required", "off"] = "auto"


@dataclass(frozen=True)
class SshSection:
    """How remote hosts are reached."""

    __pydantic_config__ = FORBID_UNKNOWN

    host_keys: Literal["strict", "accept-new"] = "strict"
    connect_timeout_s: Seconds = 10.0


@dataclass(frozen=True)
class CodeSection:
    """The user's own modules that are sent to other hosts."""

    __pydantic_config__ = FORBID_UNKNOWN

    sync: tuple[str, ...] = ()
    """Folders and files, relative to the file that names them: `./my_envs` can be imported there as `my_envs`."""
    exclude: tuple[str, ...] = (".git", "__pycache__", "*.pt")
    """Patterns of names that are left out."""
    max_mb: Annotated[float, Gt(0)] = 50.0
    """The most that may be sent, in 10^6 bytes."""


@dataclass(frozen=True)
class LimitsSection:
    """Every time-out and the number of leases."""

    __pydantic_config__ = FORBID_UNKNOWN

    start_s: Seconds = 120.0
    heartbeat_s: Seconds = 0.5
    host_lease_s: Seconds = 60.0
    lost_after_s: Seconds = 20.0
    stalled_after_s: Seconds = 300.0
    grace_s: Seconds = 15.0
    leases_per_worker: Positive = 2


@dataclass(frozen=True)
class RestartSection:
    """Supervision: how often a process index is started again within the window, the first time at once."""

    __pydantic_config__ = FORBID_UNKNOWN

    max: Count = 5
    window_s: Seconds = 600.0
    backoff_s: Seconds = 0.5
    backoff_max_s: Seconds = 2.0


@dataclass(frozen=True)
class Config:
    """A whole resolved configuration: what `config.json` of a run holds."""

    __pydantic_config__ = FORBID_UNKNOWN

    run: RunSection = field(default_factory=RunSection)
    env: EnvSection = field(default_factory=EnvSection)
    network: NetworkSection = field(default_factory=NetworkSection)
    algorithm: Mapping[str, Any] = field(default_factory=lambda: {"kind": "ppo"})
    """`kind`, and the fields of that algorithm's own config class."""
    replay: ReplaySection = field(default_factory=ReplaySection)
    evaluator: EvaluatorSection = field(default_factory=EvaluatorSection)
    defaults: DefaultsSection = field(default_factory=DefaultsSection)
    learner: LearnerSection = field(default_factory=LearnerSection)
    hosts: Mapping[str, HostSection] = field(default_factory=lambda: {"local": HostSection()})
    store: StoreSection = field(default_factory=StoreSection)
    memory_backend: MemoryBackendSection = field(default_factory=MemoryBackendSection)
    orchestrator: OrchestratorSection = field(default_factory=OrchestratorSection)
    security: SecuritySection = field(default_factory=SecuritySection)
    ssh: SshSection = field(default_factory=SshSection)
    code: CodeSection = field(default_factory=CodeSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    restart: RestartSection = field(default_factory=RestartSection)
    min_workers: Positive = 1
