"""Parallelised Q network (Gallici et al. 2025, arXiv 2407.04811): Q(lambda) on fresh segments.

No replay and no target network: layer normalisation keeps the targets stable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from annotated_types import Gt

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner, Progress, check_minibatch
from zmqrl.algorithms.q_learning.base import EpsilonSection
from zmqrl.algorithms.start.defaults import Sections, envs_of, network_of, on_policy_defaults
from zmqrl.config.codec import replace
from zmqrl.config.points import Points
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, NetworkSection, Positive, ReplaySection
from zmqrl.learning import Batch, BatchLearner, Group, IntrinsicSection
from zmqrl.learning.schedule import Rate, value_at
from zmqrl.loading import Tensor
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.returns import q_lambda_returns
from zmqrl.replay.base import SegmentBatch
from zmqrl.spaces import SpaceKind
from zmqrl.types import MODES, EnvSpec, ModeName


@dataclass(frozen=True)
class PQNConfig:
    """The fields other than `kind: pqn`."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 2.5e-4
    """Adam's step size."""
    gamma: Fraction = 0.99
    """Discount per step."""
    q_lambda: Fraction = 0.65
    """Lambda of the returns: 0 bootstraps after one step, 1 at the end of the segment."""
    epochs: Positive = 4
    """Passes over each batch."""
    minibatch_size: Positive = 256
    """Rows per update, at most: valid rows are spread evenly over the minibatches of an epoch."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """Bound of the gradient's global norm; null switches it off."""
    epsilon: EpsilonSection | Points[Fraction] = field(default_factory=lambda: EpsilonSection(1.0, 0.05, 0.5))
    """Exploration."""
    batch_segments: Positive = 4
    """async: segments of one batch. In the other modes a batch is one segment per vector env."""
    intrinsic: IntrinsicSection | None = None
    """A reward for what is new, in addition to that of the env; null: none."""


class PQN(Algorithm):
    """Discrete actions."""

    Config: ClassVar[type[PQNConfig]] = PQNConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES) - {"offline"}
    on_policy: ClassVar[bool] = True
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"discrete"})
    config: PQNConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Defaults of CleanRL."""
        sections = on_policy_defaults(env, activation="relu")
        sections["env"]["num_envs"] = envs_of(env, 1)
        sections["network"] = network_of(env, (120, 84), "relu")
        sections["algorithm"] = {"minibatch_size": 128 * env.slots_per_env}
        return sections

    def __init__(
        self, config: PQNConfig, network: NetworkSection, env: EnvSpec, segment_steps: int, num_envs: int
    ) -> None:
        """The network has layer normalisation in any case."""
        super().__init__(config, replace(network, layer_norm=True), env, segment_steps, num_envs)

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` when a minibatch is larger than the batch."""
        segments = vector_envs if MODES[mode].deterministic else self.config.batch_segments
        check_minibatch(self.config.minibatch_size, segments, self.segment_steps, self.num_envs)

    def network(self) -> NetworkSpec:
        layers = tower(
            "q", self.network_section, self.env.observation, self.env.action.n, output_gain=0.0, orthogonal=False
        )
        return NetworkSpec((("q", layers),))

    def acting(self) -> ActingSpec:
        """Epsilon-greedy in the q values; `epsilon` is part of the version."""
        layers = self.network().tower("q")
        return ActingSpec(
            layers=layers,
            head="epsilon_greedy",
            action=self.env.action,
            observation=self.env.observation,
            input=self.input,
        )

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """`epsilon` for the workers."""
        return {"epsilon": value_at(self.config.epsilon, progress)}

    @property
    def batch_segments(self) -> int | None:
        return self.config.batch_segments

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return PQNLearner(self, context, (Group("q", max_grad_norm=self.config.max_grad_norm),))


class PQNLearner(BatchLearner):
    """Returns of a batch with the current network, then epochs of minibatches."""

    algorithm: PQN
    config: PQNConfig

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        """The valid rows and their returns."""
        config, columns, valid = self.config, batch.columns, batch.columns["valid"]
        obs = self.observations(columns["obs"])
        steps, envs = valid.shape
        best = self.net("q", obs[1:].flatten(0, 1)).amax(1).cpu().numpy().reshape(steps, envs)
        flags = (columns["terminated"], columns["truncated"], valid)
        returns = q_lambda_returns(columns["reward"], best, *flags, config.gamma, config.q_lambda)
        return self.rows(batch, "action", obs=obs[:-1], target=returns)

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Mean squared error to the returns."""
        q = self.net("q", batch["obs"])
        chosen = q.gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        loss = (chosen - batch["target"]).square().mean()
        self.net.step("q", loss)
        return {"loss/q": loss, "q_mean": q.mean()}
