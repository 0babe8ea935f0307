"""The base of learners under autograd: a network, what an update receives, and what a checkpoint holds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsFloat, get_args

from zmqrl.acting.previous import previous_rows
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import check_field
from zmqrl.learning.base import BaseLearner, LearnerContext, LearnResult, Progress, check_norm
from zmqrl.learning.executor import Batch, make_executor
from zmqrl.learning.groups import Group
from zmqrl.learning.intrinsic.base import make_intrinsic
from zmqrl.learning.intrinsic.learner import IntrinsicLearner
from zmqrl.learning.net import NORM, Net
from zmqrl.learning.precision import has_bfloat16
from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.input import InputSpec
from zmqrl.networks.spec import NetworkSpec
from zmqrl.networks.torch_input import TorchInput
from zmqrl.random_streams import stream
from zmqrl.replay.base import AnySample, SequenceSample
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import PREVIOUS, Array, EnvSpec, Weights

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

PRIORITY = "priority"
"""Name of the result of an update for prioritised replay: |TD error| `[B]`, of sequences that of each row to learn from
`[B, length]`. It is not a metric."""


OBSERVED = frozenset({"obs", "next_obs"})
"""Columns of a sample that the network sees."""

Distribution = Literal["normal", "uniform"]


@dataclass(frozen=True)
class Noise:
    """Random numbers that `train` needs."""

    shape: tuple[int, ...] = ()
    """Shape of those of one row or sequence."""
    distribution: Distribution = "normal"
    """Standard normal, or uniform in [0, 1)."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` when the distribution is unknown."""
        known = get_args(Distribution)
        check_field(self, "distribution", self.distribution in known, f"must be {' or '.join(known)}")

    def draw(self, random: np.random.Generator, rows: int) -> Array:
        """Numbers `[rows, *shape]`."""
        if self.distribution == "uniform":
            return random.random((rows, *self.shape), np.float32)  # as float64 some would become 1 in float32
        return random.standard_normal((rows, *self.shape))


class Part(Protocol):
    """State of a learner in addition to its network, such as statistics of observations."""

    def state(self) -> dict[str, Array]:
        """For FULL."""

    def load_state(self, state: Weights) -> None:
        """Back to what `state` gave."""


class Trained(Protocol):
    """What a learner reads of its `Algorithm`."""

    config: Any
    network_section: NetworkSection
    env: EnvSpec

    @property
    def input(self) -> InputSpec:
        """What the network sees of an observation."""

    def replay(self) -> ReplaySpec:
        """What replay draws."""

    def network(self) -> NetworkSpec:
        """The network."""

    def learning_rate(self, progress: Progress) -> float | None:
        """Step size at this point of the run; None: the configuration has none."""


class NetLearner(BaseLearner):
    """A learner whose parameters are a `Net`. Checkpoints need no code of the algorithm."""

    def __init__(
        self,
        algorithm: Trained,
        context: LearnerContext,
        groups: Sequence[Group],
        parts: Mapping[str, Part] | None = None,
    ) -> None:
        self.algorithm, self.config, self.context = algorithm, algorithm.config, context
        if context.precision == "bfloat16" and not has_bfloat16(context.device):
            cause = f"learner.precision: bfloat16: the learner's device ({context.device}) has no instructions for it"
            context.report(cause, "the run continues; its updates take longer than with float32")
        self.net = Net(algorithm.network(), groups, context.weights, context.device, context.precision)
        self.parts = dict(parts or {})
        self.intrinsic: IntrinsicLearner | None = None
        section: Any = getattr(self.config, "intrinsic", None)
        made = make_intrinsic(section, algorithm.network_section, algorithm.env)
        if made is not None:
            self.intrinsic = self.parts["intrinsic"] = IntrinsicLearner(made, section, context)
        self._added: dict[str, float] = {}
        self._input = TorchInput(algorithm.input, algorithm.env.observation)
        self._executor = make_executor(context.executor, self.net, context.report)

    @abstractmethod
    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """One update: `self.net.step` for each group that moves. Returns metrics, as scalar tensors.

        An executor may record the function once and repeat it. So whatever differs between two calls comes from
        `batch`: noise, schedules, counters. A Python number, or a random number drawn here, stays what it was.
        """

    def learning_rates(self, progress: Progress) -> Mapping[str, float]:
        """Learning rate of each group at this point of the run; default for all: that of the algorithm."""
        rate = self.algorithm.learning_rate(progress)
        if rate is None:
            raise NotImplementedError("the configuration has no learning_rate: write `learning_rates` of the learner")
        return dict.fromkeys(self.net.groups, rate)

    def numbers(self, progress: Progress) -> Mapping[str, float]:
        """Further numbers that `train` finds in its batch as scalars, such as the value of a schedule."""
        del progress
        return {}

    def noise(self) -> Mapping[str, tuple[int, ...] | Noise]:
        """Random numbers that `train` needs, by name; a shape alone is that of standard normal ones. Default: none."""
        return {}

    def variant(self, number: int) -> Mapping[str, bool]:
        """Constants that `train` is called with in update `number`, counted over the run from 0."""
        del number
        return {}

    def draw_noise(self, number: int, rows: int) -> dict[str, Tensor]:
        """`noise` of update `number`, `[rows, ...]`: a function of seed, number and rows alone."""
        kinds = {name: kind if isinstance(kind, Noise) else Noise(kind) for name, kind in self.noise().items()}
        if not kinds:
            return {}
        random = stream(self.context.seed, "update", index=number)
        return {name: self.tensor(kind.draw(random, rows)) for name, kind in kinds.items()}

    def tensor(self, array: ArrayLike) -> Tensor:
        """On the learner's device. Floats become float32; bytes stay bytes until they are there."""
        array = np.asarray(array)
        # Copied into memory that torch has aligned: kernels pick their path by alignment.
        return torch.tensor(array, dtype=torch.float32 if array.dtype.kind == "f" else None, device=self.context.device)

    def observations(self, obs: Array, floats: Array | None = None) -> Tensor:
        """The network's input `[..., *input.shape]` for stored observations `[..., *env.observation.shape]`.

        Bytes of a plain box stay bytes: networks make floats of a minibatch. `floats [..., statistics_size]` are
        used in place of the float parts: those that are normalised.
        """
        if obs.dtype.kind in "bu" and self.algorithm.input.is_plain:
            return self.tensor(obs)
        lead = obs.shape[: obs.ndim - len(self.algorithm.env.observation.shape)]
        last = len(lead) - 1
        given = None if floats is None else self.tensor(floats).flatten(0, last)
        found = self._input(self.tensor(obs).flatten(0, last), given)
        return found.reshape(*lead, *found.shape[1:])

    def tensors(self, sample: AnySample) -> dict[str, Tensor]:
        """The columns of a sample of replay; observations are network inputs.

        With `ActingSpec.previous` sequences have `previous [C, R + 1, P]` too.
        """
        columns = sample.columns
        if isinstance(sample, SequenceSample) and PREVIOUS in sample.state:
            rows = sample.state[PREVIOUS], sample.action, sample.reward, sample.valid
            columns[PREVIOUS] = np.ascontiguousarray(previous_rows(self.algorithm.env.action, *rows).swapaxes(0, 1))
        return {
            name: (self.observations if name in OBSERVED else self.tensor)(column) for name, column in columns.items()
        }

    def scalars(self, progress: Progress) -> dict[str, Tensor]:
        """`numbers`, as tensors `[]`."""
        return {name: self.tensor(np.float32(value)) for name, value in self.numbers(progress).items()}

    def run(self, batch: Batch, rates: Mapping[str, float], **variant: bool) -> dict[str, Tensor]:
        """One `train` by the executor."""
        device = self.context.device
        tensors = {name: torch.tensor(rate, dtype=torch.float64, device=device) for name, rate in rates.items()}
        return self._executor.run(self.train, batch, tensors, **variant)

    def measured(self, results: Mapping[str, Tensor], update: int) -> dict[str, float]:
        """The metrics of update `update`. TrainingFailed when a gradient was not finite: it makes all later ones so."""
        metrics = {name: float(value) for name, value in results.items() if name != PRIORITY}
        for name, norm in metrics.items():
            if name.startswith(NORM):
                check_norm(name, norm, update)
        return metrics

    def add_metrics(self, values: Mapping[str, SupportsFloat]) -> None:
        """Add numbers to the metrics of this round, from `prepare`, `observe`, `anneal` or `batch`.

        The last value of a name counts. `train`, which may be recorded, returns its metrics instead.
        """
        self._added.update({name: float(value) for name, value in values.items()})

    def _result(self, updates: int, metrics: Mapping[str, float]) -> LearnResult:
        """Result of one round, with what was added since the last one."""
        added, self._added = self._added, {}
        return LearnResult(updates, {**added, **metrics})

    def weights(self) -> dict[str, Array]:
        return self.net.weights()

    def network_names(self) -> tuple[str, ...]:
        """Names of the network's tensors that are published."""
        return self.net.network_names

    def state(self) -> dict[str, Array]:
        """State of the net and of every part, `<part>/<name>`."""
        parts = {f"{part}/{name}": a for part, held in self.parts.items() for name, a in held.state().items()}
        return self.net.state() | parts

    def load_state(self, weights: Weights, state: Weights) -> None:
        self.net.load_state(weights, state)
        for part, held in self.parts.items():
            prefix = f"{part}/"
            held.load_state({n.removeprefix(prefix): a for n, a in state.items() if n.startswith(prefix)})
