"""The algorithm seam. One algorithm code serves single, sync, pipelined and async.

`Algorithm` is plain and torch-free: the launcher uses it to check the configuration and to define how workers act.
`OnPolicyLearner` and `OffPolicyLearner` hold the tensors; only the learner process imports them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar

from zmqrl.acting.heads import BOUNDS_FIX
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.start.defaults import Sections, off_policy_defaults, on_policy_defaults
from zmqrl.config.sections import EnvSection, NetworkSection, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning.base import BaseLearner, LearnerContext, LearnResult, OffPolicyLearner, OnPolicyLearner, Progress
from zmqrl.learning.intrinsic.base import make_intrinsic
from zmqrl.learning.schedule import Schedule, is_points, value_at
from zmqrl.networks.input import InputSpec, network_input
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.spec import ReplaySpec
from zmqrl.spaces import SpaceKind
from zmqrl.types import LARGEST_FINITE, LONGEST_NAME, ColumnSpec, EnvSpec, ModeName, Weights

__all__ = [
    "Algorithm",
    "BaseLearner",
    "LearnResult",
    "LearnerContext",
    "OffPolicyLearner",
    "OnPolicyLearner",
    "Progress",
    "check_batch",
    "check_intrinsic",
    "numbers_of",
    "schedule_of",
]


NUMBERS = "numbers"
"""Metadata of a published version: its numbers as JSON, if the env receives them."""
ACTIONS: Mapping[str, str] = {"discrete": "discrete", "multi_discrete": "multi_discrete", "box": "continuous"}
"""Names of the kinds of action spaces."""


class Algorithm(ABC):
    """Created by the launcher and by the learner from the same configuration; no method blocks.

    A concrete class names itself by its module: `kind: ppo` is the one `Algorithm` in `zmqrl.algorithms.ppo`, `vmpo`
    that in `zmqrl.algorithms.mpo.vmpo`, `kind: my_lab.algos:Mine` is attribute Mine of module my_lab.algos.
    """

    Config: ClassVar[type[Any]]
    """Frozen dataclass of the fields other than `kind`."""
    modes: ClassVar[frozenset[ModeName]]
    on_policy: ClassVar[bool]
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"discrete", "multi_discrete", "box"})
    """Kinds of action spaces that it accepts; envs with others are refused."""
    needs_bounds: ClassVar[bool] = False
    """Whether continuous actions must be bounded on every side."""
    masks: ClassVar[bool] = False
    """Whether its losses apply the `action_mask` of observations; envs with one are refused otherwise."""
    termination_cuts_value: ClassVar[bool] = True
    """Whether what follows a termination has no value. False: of some rewards it has, such as intrinsic ones."""
    joint_defaults: ClassVar[tuple[frozenset[str], ...]] = ()
    """Fields of `Config` whose values in `defaults` hold together: where the user sets one of them to another value,
    the others have the defaults of `Config`."""

    @property
    def executors(self) -> tuple[str, ...]:
        """The values of `learner.executor` that the learner supports; `auto` is the first."""
        return ("eager", "compiled")

    def __init__(self, config: Any, network: NetworkSection, env: EnvSpec, segment_steps: int, num_envs: int) -> None:
        """Raise `ConfigError` naming key and value when these do not go together."""
        self.config = config
        self.network_section = network
        self.env = env
        self.segment_steps = segment_steps
        self.num_envs = num_envs
        self._check_spaces()

    def _check_spaces(self) -> None:
        misfit = self.misfit(self.env)
        if misfit is not None:
            raise ConfigError(misfit, key=("algorithm", "kind"))

    @classmethod
    def misfit(cls, env: EnvSpec) -> str | None:
        """Why the algorithm cannot train with the spaces of `env`; None: it can."""
        action = env.action
        if action.kind not in cls.actions or (cls.needs_bounds and action.kind == "box" and not action.is_bounded):
            needed = " or ".join(ACTIONS[kind] for kind in sorted(cls.actions, reverse=True))
            bounds = " within bounds" if cls.needs_bounds else ""
            unbounded = "partly unbounded" if action.low else "unbounded"
            found = ACTIONS[action.kind] if action.kind not in cls.actions else unbounded
            return f"{cls._name()} needs {needed} actions{bounds}, {env.id} has {found} actions"
        if cls.needs_bounds and (fault := action.unscalable) is not None:
            return f"{cls._name()} scales actions to their bounds, and in {env.id} {fault}; {BOUNDS_FIX}"
        if env.observation.action_mask is not None and not cls.masks:
            return f"{cls._name()} does not train with masks, and {env.id} has an action_mask"
        return None

    @classmethod
    def _name(cls) -> str:
        """What `algorithm.kind` calls it."""
        built_in = cls.__module__.startswith(f"{__package__}.")
        return cls.__module__.rpartition(".")[2] if built_in else f"{cls.__module__}:{cls.__qualname__}"

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Sections as a preset has them, for an env without a preset: `zmqrl train --env ID --algo KIND`."""
        return on_policy_defaults(env) if cls.on_policy else off_policy_defaults(env)

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` naming key and value when the rest of the run does not fit. The launcher calls it."""
        del mode, vector_envs, replay

    @property
    def input(self) -> InputSpec:
        """What the network sees of an observation, for `ActingSpec.input` and the learner's `TorchInput`."""
        return network_input(self.env.observation, self.network_section)

    @abstractmethod
    def network(self) -> NetworkSpec:
        """The network as plain data; version 0 is initialised from it in numpy."""

    @abstractmethod
    def acting(self) -> ActingSpec:
        """How workers act, and the extra columns of a segment."""

    def extra(self, name: str, dtype: str = "float32", shape: tuple[int, ...] = ()) -> ColumnSpec:
        """A column of `ActingSpec.extras`, with an array of this shape for each row."""
        return ColumnSpec(name, dtype, (self.segment_steps, self.num_envs, *shape))

    def statistics(self) -> Weights:
        """Further arrays that are published alongside the network's from version 0 on, such as `obs_mean`."""
        return {}

    def learner_statistics(self) -> Mapping[str, int]:
        """Running statistics (`RunningStats`) that the weights depend on and the learner holds: size by name.

        A learner that starts from weights of another one finds them in `LearnerContext.weights`, as far as they are
        known: `<name>_stats.count [1]`, `<name>_stats.mean [size]` and `<name>_stats.m2 [size]`, float64. Workers act
        with those whose `<name>_mean` and `<name>_scale` are in `statistics`.
        """
        return {}

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """Values that workers need with a version, such as `epsilon`: finite numbers by name. See `schedule_of`."""
        return {}

    def learning_rate(self, progress: Progress) -> float | None:
        """The optimiser's step size at this point of the run: `config.learning_rate`; None without this field."""
        setting: Any = getattr(self.config, "learning_rate", None)
        return value_at(setting, progress) if isinstance(setting, (Real, Schedule)) or is_points(setting) else None

    @property
    def batch_segments(self) -> int | None:
        """async, on-policy: segments of one training batch; None: `env.vector_envs`, as in the other modes."""
        return None

    @property
    def held_batches(self) -> int:
        """On-policy: batches that replay holds for `learner.replay`, the newest one among them; 0: without replay."""
        return 0

    def replay(self) -> ReplaySpec:
        """What replay draws, and how. The launcher checks it against the columns of a segment."""
        return ReplaySpec()

    @abstractmethod
    def learner(self, context: LearnerContext) -> OnPolicyLearner | OffPolicyLearner:
        """Import torch and build the learner, starting from the weights of `context`."""


def check_minibatch(size: int, segments: int, segment_steps: int, num_envs: int) -> None:
    """Raise `ConfigError` when a minibatch is larger than a batch of so many segments."""
    rows = segments * segment_steps * num_envs
    if size > rows:
        raise ConfigError(
            f"is larger than the batch of {rows} rows ({segments} segments of {segment_steps} "
            f"steps of {num_envs} envs)",
            key=("algorithm", "minibatch_size"),
            value=str(size),
            is_subject=True,
            fix=f"set at most {rows}, or larger env.num_envs or env.segment_steps",
        )


def check_batch(algorithm: Algorithm) -> None:
    """Raise `ConfigError` for a `batch_segments` below 1, `held_batches` below 0, or either of an off-policy one."""
    name, size, held = type(algorithm).__qualname__, algorithm.batch_segments, algorithm.held_batches
    if size is not None and (size < 1 or not algorithm.on_policy):
        rule = "at least 1, or None" if algorithm.on_policy else "None, since on_policy is False"
        raise ConfigError(f"must be {rule}", key=(name, "batch_segments"), value=str(size))
    if not isinstance(held, int) or held < 0 or (held and not algorithm.on_policy):
        rule = "a whole number of at least 0" if algorithm.on_policy else "0, since on_policy is False"
        raise ConfigError(f"must be {rule}", key=(name, "held_batches"), value=repr(held))


def check_intrinsic(algorithm: Algorithm) -> None:
    """Raise `ConfigError` for an intrinsic reward that cannot be made, or of transitions of several steps."""
    section = getattr(algorithm.config, "intrinsic", None)
    if make_intrinsic(section, algorithm.network_section, algorithm.env) is None or algorithm.on_policy:
        return
    spec = algorithm.replay()
    if spec.n_step > 1 and not spec.length:
        what, other = "must be 1 with algorithm.intrinsic, which rewards single steps", ("algorithm", "intrinsic")
        raise ConfigError(what, key=("algorithm", "n_step"), value=str(spec.n_step), others=(other,))


def schedule_of(algorithm: Algorithm, progress: Progress) -> dict[str, float]:
    """What `algorithm.schedule` gives, as messages carry it: numbers of numpy and torch are plain floats.

    Raises:
        ConfigError: A receiver would refuse it: a value is not a finite number, or a name is too long or is not a text.
    """
    given = algorithm.schedule(progress)
    return {_checked_name(algorithm, name): _checked_value(algorithm, name, value) for name, value in given.items()}


def numbers_of(algorithm: Algorithm, section: EnvSection, progress: Progress) -> dict[str, float]:
    """What travels with a version: the numbers of `algorithm.schedule`, and those of `env.schedule`.

    Raises:
        ConfigError: As of `schedule_of`, or a name is in both.
    """
    found = schedule_of(algorithm, progress)
    for name in section.schedule:
        if name in found or len(name) > LONGEST_NAME:
            what = f"has more than {LONGEST_NAME} characters" if name not in found else "is a name of the algorithm too"
            raise ConfigError(what, key=("env", "schedule"), value=f"{name!r:.80}", is_subject=True, fix="rename it")
    return found | {name: value_at(number, progress) for name, number in section.schedule.items()}


def _checked_name(algorithm: Algorithm, name: Any) -> str:
    if isinstance(name, str) and len(name) <= LONGEST_NAME:
        return name
    what, key = f"a name must be text of at most {LONGEST_NAME} characters", (type(algorithm).__qualname__, "schedule")
    raise ConfigError(what, key=key, value=f"{name!r:.80}")


def _checked_value(algorithm: Algorithm, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, (str, bytes, bytearray)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if abs(number) <= LARGEST_FINITE:  # no comparison with NaN holds
        return number
    key = type(algorithm).__qualname__, "schedule"
    raise ConfigError("must be a finite number", key=key, value=f"{name}: {value!r:.80}")
