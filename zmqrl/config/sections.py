"""The configuration as frozen typed sections. Every key of hosts.yaml and of a preset is a field here.

The launcher validates with pydantic against these classes; every other process rebuilds them
from the resolved JSON (`zmqrl.config.codec`) and imports no pydantic.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import NODEFAULT, Struct, field, structs

from zmqrl.config.points import Number
from zmqrl.types import MODES, Mode, ModeName

FORBID_UNKNOWN = {"extra": "forbid"}
"""For dataclasses: pydantic refuses keys that they do not have."""

Reduction: TypeAlias = Literal["mean", "sum", "last", "min", "max"]


class Bounds(Struct, frozen=True):
    """Bounds of a number, for pydantic. To import `annotated_types` takes every process of a run 4 ms of its start."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), **{name: bound for name, bound in structs.asdict(self).items() if bound is not None}}


Count = Annotated[int, Bounds(ge=0)]
Positive = Annotated[int, Bounds(ge=1)]
Seconds = Annotated[float, Bounds(gt=0)]
Fraction = Annotated[float, Bounds(ge=0, le=1)]
AutoCount = Count | Literal["auto"]


class Section(Struct, frozen=True):
    """A frozen section, a Struct: defining as many dataclasses takes every process 8 ms of its start.

    pydantic, with which the launcher checks what users write, treats it as a dataclass.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        hints = typing.get_type_hints(cls, include_extras=True)
        fields = []
        for key in structs.fields(cls):
            schema = handler.generate_schema(hints[key.name])
            if key.default is not NODEFAULT:
                schema = core_schema.with_default_schema(schema, default=key.default)
            elif key.default_factory is not NODEFAULT:
                schema = core_schema.with_default_schema(schema, default_factory=key.default_factory)
            fields.append(core_schema.dataclass_field(key.name, schema))
        arguments = core_schema.dataclass_args_schema(cls.__name__, fields, extra_behavior="forbid")
        made = lambda found: cls(**found[0])  # noqa: E731
        return core_schema.no_info_after_validator_function(made, arguments, ref=f"{cls.__module__}.{cls.__qualname__}")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        found = handler.resolve_ref_schema(handler(schema))
        return {**found, "title": cls.__name__, "description": inspect.getdoc(cls), "additionalProperties": False}


class RunSection(Section, frozen=True):
    """What to train and when to stop."""

    name: str = "run"
    """Name of the run: part of its id and of its default directory; default: that of the preset."""
    preset: str | None = None
    """Preset that the file builds on: a name of `zmqrl presets`, or a path."""
    seed: Count = 1
    """Seed of everything random."""
    mode: ModeName = "sync"
    """Who waits for whom (docs/modes.md)."""
    total_env_steps: Positive = 100_000
    """Env steps after which the run is done."""
    schedule_env_steps: Positive | None = None
    """Horizon of every schedule; default: the first `total_env_steps`, kept over a resume. Mode offline: in updates,
    and the first `stop_at_updates`."""
    stop_at_return: float | None = None
    """Stop once the mean return of the last 100 finished training episodes reaches this."""
    stop_at_updates: Positive | None = None
    """Stop after so many updates. Mode offline needs it, and does not read `total_env_steps`."""
    max_wall_s: Seconds | None = None
    """Stop after so many seconds from the start of the command. Steps of the clock do not count."""
    checkpoint_every_s: Seconds = 10.0
    """Seconds between two full checkpoints that survive a power failure; longer if a write takes over a fifth of it."""
    init_from: str | None = None
    """Version 0 has the weights of this run directory (its best version, else its newest) or checkpoint file."""
    record: str | None = None
    """Folder on the learner's host for a data set of all env steps (docs/offline.md), relative to the run directory.
    Needs the extra `minari` on that host."""
    episodes_csv: bool = False
    """Write `episodes.csv` in the run directory: a row for each training episode (docs/results.md). Needs a learner on
    this machine."""
    debug: bool = False
    """Check invariants at every update (first-minibatch ratio 1, if `learner.precision` is float32) and fill freed
    slots with NaN."""


class EnvSection(Section, frozen=True):
    """The env, its vector envs and its segments."""

    id: str = "CartPole-v1"
    """Id for `gymnasium.make`, or `a.b:Name`."""
    num_envs: Positive = 8
    """N: envs stepped together in one vector env."""
    vector_envs: Positive = 4
    """Vector envs of the run in single, sync and pipelined; in async each worker has one."""
    segment_steps: Positive = 32
    """T: steps of one segment."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the env."""
    wrappers: tuple[str | Mapping[str, Mapping[str, Any]], ...] = ()
    """Dotted paths `a.b:Wrapper`, applied in order; with arguments: `{"a.b:Wrapper": {name: value}}`."""
    schedule: Mapping[str, Number] = field(default_factory=dict)
    """Numbers for `on_progress(numbers)` of the env and its wrappers: `{name: number}`, or `{name: [[env step, value],
    ...]}`, linear between two points and constant outside (docs/envs.md)."""
    report: Mapping[str, Reduction] = field(default_factory=dict)
    """Numbers of `info` that are metrics of the run, each reduced to one per episode, such as `{cost: sum}`: mean, sum,
    last, min or max of those of its steps (docs/envs.md)."""
    frame_stack: Positive = 1
    """k: an observation is the last k ones, `[k, ...]`, outside of all wrappers. Segments and replay hold each once."""
    max_episode_steps: Positive | None = None
    """Episodes are truncated after so many steps, outside of all wrappers; null: by the env's own limit, if it has one.

    Single, sync and pipelined need one of the two, or another `recovery`.
    """
    recovery: Literal["exact", "state", "restart_episode"] = "exact"
    """Single, sync and pipelined, after a restart or a resume. exact: running episodes continue by repeating their
    actions. state: they continue in what `get_state()` of the env returned, by its `set_state(state)` (docs/resume.md).
    restart_episode: the next episodes start instead, and the weights also depend on restarts.
    """
    check: bool = True
    """Before a run, make the env on this machine, and take its first steps if workers here step it. false: for an env
    that exists on other hosts only; the first of them with workers makes it instead."""


@dataclass(frozen=True)
class NetworkSection:
    """Layers of the network; the algorithm defines its inputs and outputs."""

    # a dataclass, as the config classes of algorithms: they may change it with `dataclasses.replace`
    __pydantic_config__ = FORBID_UNKNOWN

    kind: str = "mlp"
    """`mlp`, `cnn` for images, or a dotted path `a.b:Net` of a `torch.nn.Module` (docs/networks.md), which reads
    `scale_images`, `kwargs` and `runtime` alone."""
    hidden: tuple[Positive, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: str = "tanh"
    """Activation of the hidden layers: `tanh`, `relu`, `gelu`, `silu`, or a dotted path `a.b:Kind`."""
    channels: tuple[Positive, ...] = (32, 64, 64)
    """cnn: channels of the convolutions."""
    kernels: tuple[Positive, ...] = (8, 4, 3)
    """cnn: kernel sizes of the convolutions."""
    strides: tuple[Positive, ...] = (4, 2, 1)
    """cnn: strides of the convolutions."""
    layer_norm: bool = False
    """A layer normalisation before each activation; `pqn` has it in any case."""
    image_layout: Literal["auto", "chw", "hwc"] = "auto"
    """cnn: order of the axes of images, channels first or last; auto: last if that axis is 1, 3 or 4 and the first is
    not."""
    scale_images: bool = True
    """Divide images (uint8 from 0 to 255, three axes) by 255; false for grids of categories in such a space."""
    kwargs: Mapping[str, Any] = dataclass_field(default_factory=dict)
    """Arguments of the module's constructor, in addition to the space of its input."""
    runtime: Literal["auto", "torch", "onnx"] = "auto"
    """What workers and the evaluator compute the network with. torch: numpy if every layer has it, else torch. onnx:
    ONNX Runtime, in mode async alone; a third of the memory of torch. Needs the extra `onnx` on every host. auto: onnx
    for a `cnn` in async, if all workers are on this machine and the extra is installed; else as torch."""
    hidden_by_tower: Mapping[str, tuple[Positive, ...]] = dataclass_field(default_factory=dict)
    """Widths of the hidden layers of single towers, in place of `hidden`, such as `{critic: [256, 256]}`. The towers
    are `actor` and `critic` of ppo, a2c, impala and vmpo (with `shared`: `torso`, as of ppo_gru), `actor` of reinforce,
    `actor`, `q1` and `q2` of sac, cql and td3 (ddpg, mpo: `q1`, tqc: one for each critic, bc: `actor`, iql: `value`
    too), and `q` of dqn, qrdqn, c51, rainbow, iqn, r2d2 and pqn."""


class ReplaySection(Section, frozen=True):
    """Replay of off-policy algorithms, in env steps. On-policy algorithms ignore it."""

    load: str | None = None
    """Folder on the learner's host with a data set (docs/offline.md), relative to the file that names it. All of it is
    held. Mode offline trains on it alone; the other modes mix it into each batch. Needs the extra `minari`."""
    load_share: Fraction = 0.5
    """Share of each batch that is drawn from `load`, in the other modes."""
    capacity: Positive = 50_000
    """Env steps that replay holds."""
    learning_starts: Count = 1_000
    """Env steps before the first update."""
    ratio: Annotated[float, Bounds(gt=0)] = 0.25
    """Updates per env step after `learning_starts`."""
    slack: Positive | None = None
    """async: env steps by which workers may run ahead; default, and least: a segment per lease, or one segment and
    `1 / ratio` if that is more. By default also a segment per further lease of other hosts."""


class ScoredEnvSection(Section, frozen=True):
    """The env of scores, where it differs from that of the training."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments over those of `env.kwargs`, name by name."""
    wrappers: tuple[str | Mapping[str, Mapping[str, Any]], ...] | None = None
    """All wrappers, in place of `env.wrappers`; null: those."""


class EvaluatorSection(Section, frozen=True):
    """The process that scores published versions."""

    episodes: Count = 20
    """Greedy episodes per score; 0 disables the evaluator."""
    nice: Annotated[int, Bounds(ge=0, le=19)] = 10
    """Niceness of the evaluator."""
    best_by: str | None = None
    """Name of `env.report` whose mean over the episodes is highest in the best version; null: that of the return."""
    final_limit_s: Annotated[float, Bounds(ge=0)] = 5.0
    """Time limit for the score of the final version at the end of a run."""
    video_every: Positive | None = None
    """Env steps between two videos of the first scored episode, in `<run-dir>/videos`; null: none. Needs the extra
    `video` and a learner on this machine."""
    env: ScoredEnvSection = field(default_factory=ScoredEnvSection)
    """Levels or data that the run does not train on: the best version is the best there. Its spaces are those of `env`.
    `zmqrl eval` and `zmqrl.evaluate(policy)` use it too."""


class LearnerSection(Section, frozen=True):
    """Host, device and ports of the learner and its broker."""

    host: str = "local"
    """`local`, or one of `hosts`: it runs broker, learner and evaluator."""
    device: str = "auto"
    """`auto`: the free GPU with the most free memory, if a network other than `mlp` is trained, else cpu. `cuda`: that
    GPU for every network. `cuda:N`: GPU N as nvidia-smi numbers it, or of those in `CUDA_VISIBLE_DEVICES`. `cpu`.
    """
    share_gpu: bool = False
    """A GPU may be in use by processes of other users; else it is refused. Also for `worker_device`."""
    threads: Positive | None = None
    """Threads of torch in updates; default 1. With 2 an update of two layers of 256 takes 0.6 to 0.7 of the time if a
    core is idle. Acting and numpy have one."""
    executor: Literal["auto", "manual", "eager", "compiled"] = "auto"
    """How updates run. manual: with hand-written gradients, if the algorithm has them. eager: with autograd. compiled:
    as machine code, which is built once per network and machine (about 30 s, needs a C++ compiler) and then kept in
    `$ZMQRL_CACHE`, else `~/.cache/zmqrl`; on a GPU as CUDA graphs, which each start records (about 5 s). The first
    run on a machine without a compiler is refused before the start. An update that cannot be compiled ends the run
    with exit code 2; `zmqrl.testing.check_algorithm` finds it without a run. Its files are private (docs/gpu.md).
    auto: manual if the algorithm has it, else eager. A resume keeps it.
    """
    precision: Literal["float32", "bfloat16"] = "float32"
    """Numbers that the hidden layers are computed with in updates. bfloat16 takes half the time for convolutions, with
    executor eager or compiled, on a device with such instructions (docs/networks.md). Outputs, losses and optimisers
    are float32. A resume keeps it."""
    address: str | None = None
    """Address that workers connect to; null: each host tries all addresses of the learner's host."""
    port: Annotated[int, Bounds(ge=1, le=65_533)] | Literal["auto"] = "auto"
    """First of three ports; `auto`: free ports."""


class YieldSection(Section, frozen=True):
    """When a host is left to its other users."""

    load: Annotated[float, Bounds(ge=0)] | None = None
    """Running threads of other processes, mean of the last minute (as the load average, without the run's own), above
    which the host is in use."""
    user_active: bool = False
    """Input on a terminal means that the host is in use."""
    quiet_s: Seconds = 300.0
    """The host returns when it has not been in use for so long."""


class CapacitySection(Section, frozen=True):
    """What the jobs of `zmqrl queue` may take of a host."""

    cores: Positive
    """Cores."""
    gpus: Count = 0
    """GPUs, numbered from 0."""


class HostSection(Section, frozen=True):
    """One host of the `hosts` mapping; null keys take the value of `defaults`."""

    workers: Count | Literal["auto"] | None = None
    """Rollout workers; `auto`: the cores of the host that no other run holds - 1; null: `defaults.workers`."""
    cores: Positive | None = None
    """Cores that the run holds there: `workers: auto` is one less, and that of other runs leaves them free. Runs of
    other users may be there. null: as many as it has workers, and no other user may have a run there.
    """
    ssh: str | None = None
    """Address, or name in ~/.ssh/config; null: the host's name here."""
    user: str | None = None
    """SSH user."""
    port: Annotated[int, Bounds(ge=1, le=65_535)] | None = None
    """SSH port."""
    identity: str | None = None
    """SSH key file."""
    jump: str | None = None
    """Jump hosts, `user@host:port`, separated by commas."""
    python: str | None = None
    """The Python of zmqrl on that host; null: `defaults.python`."""
    workdir: str | None = None
    """Work directory: all files of zmqrl on that host are below it."""
    nice: Annotated[int, Bounds(ge=0, le=19)] | None = None
    """Niceness of its processes."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of its processes."""
    prologue: str | None = None
    """A line of `sh` that runs there before Python, such as `. /etc/profile.d/modules.sh; module load cuda/12`."""
    wrap: str | None = None
    """A command that runs the Python of that host as its further arguments, such as `apptainer exec --nv IMAGE`. Split
    into words as by a shell; `~/` at the start of a word is the home there, nothing else is expanded.
    """
    groups: tuple[str, ...] = ()
    """Group names for `--limit`."""
    tunnel: bool = False
    """The host cannot reach the learner's host: the run's ports are forwarded through its SSH connection."""
    manual: bool = False
    """The host is not reached by SSH: it joins with `zmqrl worker --connect FILE`."""
    worker_device: str | None = None
    """Device on which the rollout workers act, if they act with torch (`cnn`): `cpu`, `cuda` (the free GPU with the
    most free memory), `cuda:N`, or `auto` (as cuda where there is a GPU); null: `defaults.worker_device`.
    """
    only: str | None = None
    """The host has workers at these times alone, of the launcher's clock: `20:00-07:00, Sat, Sun`."""
    yield_when: YieldSection | None = None
    """The host has no workers while it is in use by others."""
    capacity: CapacitySection | None = None
    """Slots for the jobs of `zmqrl queue run`, which starts none on a host without them; a run takes no notice."""


class DefaultsSection(Section, frozen=True):
    """Values of keys that a host does not set."""

    python: str = "~/venvs/zmqrl/bin/python"
    """The Python of zmqrl on the hosts."""
    workdir: str = "~/zmqrl"
    """Work directory: all files of zmqrl on a host are below it."""
    workers: AutoCount = "auto"
    """Rollout workers of a host."""
    user: str | None = None
    """SSH user."""
    port: Annotated[int, Bounds(ge=1, le=65_535)] | None = None
    """SSH port."""
    identity: str | None = None
    """SSH key file."""
    jump: str | None = None
    """Jump hosts."""
    nice: Annotated[int, Bounds(ge=0, le=19)] = 0
    """Niceness of the processes."""
    prologue: str | None = None
    """A line of `sh` that runs before Python on the hosts."""
    wrap: str | None = None
    """A command that runs the Python of the hosts as its further arguments."""
    worker_device: str = "cpu"
    """Device on which rollout workers with torch act."""


class StoreSection(Section, frozen=True):
    """The data store of checkpoints."""

    kind: str = "directory"
    """Data store: `directory`, `object`, or a dotted path. The keys of each kind are listed below."""
    keep: Positive = 8
    """Published versions that are kept."""
    keep_every: Positive | None = None
    """Env steps: the first version at or after each multiple of it is never deleted (`kept-*.safetensors`). null: none.
    `zmqrl eval RUN --checkpoint VERSION` plays one of them."""
    sync_full_max_mb: Annotated[float, Bounds(ge=0)] = 8.0
    """sync: a full checkpoint is written every round while its size is at most this."""
    async_replay: bool = False
    """async: full checkpoints contain replay. Writing in the background needs a second copy of replay."""
    wait_s: Seconds = 300.0
    """Time that a run waits for an unwritable store before it fails, and hosts for a launcher whose run directory does
    not respond."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the kind; in files they are next to `kind`."""


class MemoryBackendSection(Section, frozen=True):
    """What carries experience (segments) from other hosts to the learner's host."""

    kind: str = "zmq"
    """Memory backend: `zmq` (the bus), `redis`, or a dotted path. Kinds other than `zmq` carry segments outside the
    encrypted bus."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the kind; in files they are next to `kind`."""


class OrchestratorSection(Section, frozen=True):
    """What starts processes: `auto` is `local` for the host `local` and `ssh` for the rest."""

    kind: str = "auto"
    """What starts the host agents: `auto`, `local`, `ssh`, `slurm`, `kubernetes`, `command`, or a dotted path."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the kind; in files they are next to `kind`."""


class SecuritySection(Section, frozen=True):
    """Encryption of endpoints that leave this machine."""

    curve: Literal["auto", "required", "off"] = "auto"
    """`auto` encrypts unless all is on this machine; `required` always encrypts; `off` listens on loopback only."""


class SshSection(Section, frozen=True):
    """How remote hosts are reached."""

    client: Literal["paramiko", "openssh"] = "paramiko"
    """What connects. paramiko: this process, with keys and an SSH agent. openssh: the system's `ssh`, with whatever
    login works in the user's shell without a question (Kerberos, certificates, ProxyJump, an own master).
    """
    host_keys: Literal["strict", "accept-new"] = "strict"
    """`accept-new` accepts the key of an unknown host; a changed key is rejected."""
    connect_timeout_s: Seconds = 10.0
    """Time limit of each step of a connection."""


class CodeSection(Section, frozen=True):
    """The user's own modules that are sent to other hosts."""

    sync: tuple[str, ...] = ()
    """Folders and files, relative to the file that names them: `./my_envs` can be imported there as `my_envs`."""
    exclude: tuple[str, ...] = (".git", "__pycache__", "*.pt")
    """Name patterns of excluded files."""
    max_mb: Annotated[float, Bounds(gt=0)] = 50.0
    """Maximum size of the code to send, in 10^6 bytes."""
    record_diff: bool = True
    """Keep the uncommitted changes of your git repositories in the run directory (`environment/attempt-N.diff`)."""


class LimitsSection(Section, frozen=True):
    """Every time-out and the number of leases."""

    start_s: Seconds = 120.0
    """Time within which the learner and `min_workers` must be ready; and time of a host for the handshake of its
    agent."""
    too_few_s: Seconds = 3600.0
    """Maximum pause of a run that has fewer ready workers than `min_workers`; then it ends with a full checkpoint and
    exit code 4."""
    heartbeat_s: Seconds = 0.5
    """Time between two heartbeats of a process."""
    host_lease_s: Seconds = 60.0
    """A host that receives nothing from the launcher for this long, or nothing from the broker, ends its processes. The
    broker takes a host without a report for this long as lost. At least two heartbeats. A launcher that waits for its
    run directory, terminal or callback keeps its hosts for `store.wait_s` longer."""
    lost_after_s: Seconds = 20.0
    """A worker without a heartbeat for this long is replaced. At least two heartbeats."""
    stalled_after_s: Seconds = 300.0
    """A worker without progress for this long is replaced, and a learner without a heartbeat; a run that stores nothing
    for this long reports it. At least two heartbeats."""
    grace_s: Seconds = 15.0
    """Time for a process to end before it is killed."""
    leases_per_worker: Positive = 2
    """Maximum number of slots leased to a worker. In async, workers of other hosts may have more for segments that are
    on their way, out of the slots of one batch."""
    on_end_s: Seconds = 60.0
    """Time limit of the command `on_end`, and of posting to `webhook`."""


class RestartSection(Section, frozen=True):
    """Supervision: restart limit of each process within a window; the first restart is immediate.

    A learner that raises the same exception twice in the same update is not restarted.
    """

    max: Count = 5
    """Restarts of one process within `window_s`."""
    window_s: Seconds = 600.0
    """Window in which restarts are counted."""
    backoff_s: Seconds = 0.5
    """Wait before the second restart; it doubles with each further one."""
    backoff_max_s: Seconds = 2.0
    """Longest wait before a restart."""


class Config(Section, frozen=True):
    """A complete resolved configuration, the content of `config.json` of a run."""

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
    inventory: str | None = None
    """An Ansible inventory (file, folder or program), relative to the hosts file; needs `ansible-inventory` here. Its
    hosts and groups are added to `hosts`, which has precedence.
    """
    store: StoreSection = field(default_factory=StoreSection)
    memory_backend: MemoryBackendSection = field(default_factory=MemoryBackendSection)
    orchestrator: OrchestratorSection = field(default_factory=OrchestratorSection)
    security: SecuritySection = field(default_factory=SecuritySection)
    ssh: SshSection = field(default_factory=SshSection)
    code: CodeSection = field(default_factory=CodeSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    restart: RestartSection = field(default_factory=RestartSection)
    min_workers: Positive = 1
    """Minimum number of workers that are ready, within `limits.start_s` after the start. A run with fewer pauses, for
    at most `limits.too_few_s`."""
    rejoin: Literal["auto", "manual"] = "auto"
    """Hosts that are lost during the run. auto: the launcher connects to them again until they are back. manual: by
    `zmqrl scale`.
    """
    on_end: str | None = None
    """Shell command that the launcher executes at every end of the run (docs/runs.md)."""
    webhook: str | None = None
    """URL (http or https) that receives the end of the run as JSON. `$NAME` is replaced by that environment variable
    of the launcher; a URL without one is not stored in the run directory, since it is a secret.
    """

    @property
    def mode(self) -> Mode:
        """What `run.mode` means."""
        return MODES[self.run.mode]

    @property
    def continues_episodes(self) -> bool:
        """Whether episodes continue in the next incarnation of their vector env."""
        return self.mode.deterministic and self.env.recovery != "restart_episode"

    @property
    def horizon(self) -> int:
        """Env steps, in mode offline updates, over which schedules change."""
        run = self.run
        total = run.stop_at_updates if self.mode.offline and run.stop_at_updates else run.total_env_steps
        return run.schedule_env_steps or total

    @property
    def scored_env(self) -> EnvSection:
        """`env` with `evaluator.env` over it."""
        over = self.evaluator.env
        wrappers = self.env.wrappers if over.wrappers is None else over.wrappers
        return structs.replace(self.env, kwargs={**self.env.kwargs, **over.kwargs}, wrappers=wrappers)
