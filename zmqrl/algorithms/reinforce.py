"""REINFORCE (Williams 1992): the policy gradient with returns to the end of the episode, without a critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt

from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner
from zmqrl.algorithms.policy_gradient.learner import PolicyLearner
from zmqrl.algorithms.policy_gradient.plan import PolicyConfig, PolicyGradient
from zmqrl.algorithms.start.defaults import Sections, on_policy_defaults
from zmqrl.config.codec import replace
from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.learning import Adam, Optimiser
from zmqrl.learning.schedule import Rate
from zmqrl.loading import Tensor, np
from zmqrl.networks.input import network_input
from zmqrl.ops.returns import generalised_advantages
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, EnvSpec


@dataclass(frozen=True)
class REINFORCEConfig(PolicyConfig):
    """The fields other than `kind: reinforce`."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 3e-3
    """Adam's step size."""
    normalise_advantage: bool = True
    """Returns with mean 0 and deviation 1 per batch: the mean is the baseline."""
    adam_epsilon: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""


class REINFORCE(PolicyGradient, Algorithm):
    """REINFORCE (Williams 1992) with rewards to go: one step of Adam per batch, on rows whose episode ends in it."""

    Config: ClassVar[type[REINFORCEConfig]] = REINFORCEConfig
    config: REINFORCEConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Segments as long as the longest episode, from 128 to 1024 steps."""
        steps = min(1024, max(128, env.max_episode_steps or 512))
        sections = on_policy_defaults(env, segment_steps=steps)
        sections["algorithm"] = {"normalise_obs": network_input(env.observation).statistics_size > 0}
        return sections

    @property
    def optimiser(self) -> Optimiser:
        return Adam(epsilon=self.config.adam_epsilon)

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return REINFORCELearner(self, context)


class REINFORCELearner(PolicyLearner):
    """Returns of episodes that end inside their segment."""

    def estimate(self, batch: SegmentBatch, obs: Tensor, reward: Array) -> dict[str, Array]:
        """Discounted rewards to the end of the episode, which has no value after it: also one that is truncated."""
        columns, value = batch.columns, np.zeros(obs.shape[:2])
        flags = (columns["terminated"], columns["truncated"], columns["valid"])
        return {"advantage": generalised_advantages(reward, value, *flags, self.config.gamma, 1.0)}

    def select(self, batch: SegmentBatch, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Valid rows of episodes that end: the return of the others is unknown."""
        ended = batch.columns["terminated"] | batch.columns["truncated"]
        is_known = np.logical_or.accumulate(ended[::-1])[::-1] & batch.columns["valid"]
        return super().select(replace(batch, columns={**batch.columns, "valid": is_known}), columns)
