"""The seam between a rollout worker and whatever computes its actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from zmqrl.acting.spec import NoiseSpec
from zmqrl.loading import np
from zmqrl.types import Array, Weights

State = Mapping[str, Array]
"""Recurrent state by name, float32 `[N, size]`: what acts reads it, and writes the next one into the same arrays."""
NO_STATE: State = {}


class ActingNoise(Struct, frozen=True):
    """All random numbers of one segment, drawn before its first step.

    `uniform [T, N, max(2, k)]` float64 in [0, 1) (k = entries of a multi_discrete action), `normal [T, N, A]` float64
    (A = flat action size; 0 for discrete).
    """

    uniform: Array
    normal: Array
    further: Mapping[str, Array] = field(default_factory=dict)
    """`[T, N, size]` float64 for each `ActingSpec.noise`, by its name."""


class Place(Struct, frozen=True, eq=False):
    """Which envs of the run a vector env has: the same numbers after a restart and on every host.

    `slots [N]` int64 in [0, total): vector env * N + env. In async a worker that was added during the run shares the
    numbers of one that was planned.
    """

    slots: Array
    total: int

    @classmethod
    def of(cls, vector_env: int, vector_envs: int, num_envs: int) -> Place:
        """That of one of `vector_envs` vector envs with `num_envs` envs each."""
        first = vector_env % vector_envs * num_envs
        return cls(np.arange(first, first + num_envs), vector_envs * num_envs)


class ActingContext(Struct, frozen=True):
    """What acting has in one segment of one vector env, besides the observations."""

    noise: ActingNoise
    extras: Mapping[str, Array]
    """`[T, N, ...]` for every extra of the spec: the head writes row t."""
    place: Place
    state: State = field(default_factory=dict)
    """State of this vector env, which the caller zeroes where an episode begins: after each row with `valid` false."""
    outputs: list[Array] = field(default_factory=list)
    """Outputs of each row so far, `[N, K]`: kept for a head that completes segments."""


class Policy(ABC):
    """Acts for one vector env's batch. Called by one thread of a rollout worker or evaluator; never blocks.

    One policy serves all vector envs of a worker in turn, so nothing that it keeps between two calls may depend on
    an earlier observation or action: that is recurrent state, which the caller keeps for each vector env.
    """

    numbers: Mapping[str, float] | None = None
    """Numbers of the loaded version for the envs of a score or a video, which its caller sets; None: they get none."""

    @abstractmethod
    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        """Take new weights (the arrays are the policy's to keep) between two segments."""

    @abstractmethod
    def act(self, obs: Array, t: int, context: ActingContext) -> Array:
        """Actions for `obs [N, ...]` at row `t` of the segment.

        Writes `context.extras[name][t]` for every extra of the spec, and the next state into `context.state`. The
        action returned, `[N]` or `[N, k]` int64 or `[N, A...]` float32, is what is stored (unclipped); the env is given
        a clipped copy by the caller.
        """

    def complete(self, obs: Array, columns: Mapping[str, Array], context: ActingContext) -> None:  # noqa: B027
        """Let the head fill further extras of the segment (`zmqrl.acting.heads.Head.complete`).

        Called after the last row if `context.outputs` has its rows. `obs [N, ...]`: the observation after the last row.
        """

    @abstractmethod
    def act_greedily(self, obs: Array, state: State = NO_STATE) -> Array:
        """The best-known actions for `obs [N, ...]`: argmax, or the mean clipped to the action space.

        `state`: from `zero_state(N)`, one for each set of envs; the next state is written into it.
        """

    def zero_state(self, rows: int) -> dict[str, Array]:
        """New recurrent state for `rows` envs whose episodes begin; empty for a policy without."""
        return {}


def noise_for(
    generator: np.random.Generator,
    steps: int,
    envs: int,
    action_size: int,
    further: Sequence[NoiseSpec] = (),
    entries: int = 1,
) -> ActingNoise:
    """Draw a segment's noise in one fixed order; `entries` are those of a discrete or multi_discrete action."""
    uniform = generator.random((steps, envs, max(2, entries)))
    normal = generator.standard_normal((steps, envs, action_size))
    return ActingNoise(uniform, normal, {spec.name: _drawn(generator, spec, steps, envs) for spec in further})


def _drawn(generator: np.random.Generator, spec: NoiseSpec, steps: int, envs: int) -> Array:
    shape = steps, envs, spec.size
    return generator.random(shape) if spec.distribution == "uniform" else generator.standard_normal(shape)
