"""IMPALA (Espeholt et al. 2018, arXiv 1802.01561): V-trace; with `clip` APPO, PPO's objective on V-trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner
from zmqrl.algorithms.policy_gradient.actor_critic import ActorCriticLearner
from zmqrl.algorithms.policy_gradient.plan import ActorCritic, ActorCriticConfig
from zmqrl.algorithms.start.defaults import Sections, envs_of, on_policy_defaults
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, Positive
from zmqrl.learning import Batch
from zmqrl.learning.schedule import Rate
from zmqrl.loading import Tensor, np
from zmqrl.networks.input import network_input
from zmqrl.ops.policies import clipped_gain
from zmqrl.ops.returns import vtrace
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, EnvSpec

MOST_LOG_RATIO = 20.0
"""Above every reasonable bound of the ratios, and a number in float32."""


@dataclass(frozen=True)
class IMPALAConfig(ActorCriticConfig):
    """The fields other than `kind: impala`."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 6e-4
    """Step size of RMSProp."""
    ent_coef: Annotated[float, Ge(0)] = 0.01
    """Weight of the entropy bonus."""
    normalise_advantage: bool = False
    """Mean 0 and deviation 1 per minibatch."""
    vtrace_lambda: Fraction = 1.0
    """Lambda of V-trace: the share of later errors (remark 2)."""
    rho_clip: Annotated[float, Gt(0)] = 1.0
    """Bound of the probability ratios of errors and of the policy gradient."""
    c_clip: Annotated[float, Gt(0)] = 1.0
    """Bound of the probability ratios of traces."""
    clip: Annotated[float, Gt(0), Le(1)] | None = None
    """APPO: the probability ratio counts within [1 - clip, 1 + clip]; null: the policy gradient of IMPALA."""
    epochs: Positive = 1
    """Passes over each batch."""
    minibatch_size: Positive | None = None
    """Rows per update, at most; null: the whole batch."""
    rmsprop_epsilon: Annotated[float, Gt(0)] = 1e-3
    """RMSProp's epsilon."""


class IMPALA(ActorCritic, Algorithm):
    """Importance weighted actor-learner architecture (Espeholt et al. 2018), for async; `clip` makes it APPO."""

    Config: ClassVar[type[IMPALAConfig]] = IMPALAConfig
    config: IMPALAConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Async, with 16 envs of 32 steps per segment, normalised observations and rewards."""
        sections = on_policy_defaults(env, segment_steps=32)
        sections["run"]["mode"] = "async"
        sections["env"]["num_envs"] = envs_of(env, 16)
        sections["algorithm"] = {
            "normalise_obs": network_input(env.observation).statistics_size > 0,
            "normalise_reward": True,
            "shared": sections["network"]["kind"] == "cnn",
        }
        return sections

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return IMPALALearner(self, context)


class IMPALALearner(ActorCriticLearner):
    """V-trace with the probability ratios of the newest policy."""

    algorithm: IMPALA
    config: IMPALAConfig

    def targets(self, batch: SegmentBatch, obs: Tensor, reward: Array, value: Array) -> tuple[Array, Array]:
        """Equation 1 of the paper, and the advantages of section 4.2."""
        config, columns = self.config, batch.columns
        ratio = np.exp(np.minimum(self.newest(batch, obs)[1] - columns["log_prob"], MOST_LOG_RATIO))
        if columns["valid"].any():
            self.add_metrics({"rho": np.minimum(ratio, config.rho_clip)[columns["valid"]].mean()})
        flags = (columns["terminated"], columns["truncated"], columns["valid"])
        bounds = config.gamma, config.vtrace_lambda, config.rho_clip, config.c_clip
        target, advantage = vtrace(reward, value, ratio, *flags, *bounds)
        return advantage, target

    def gain(self, log_prob: Tensor, ratio: Tensor, advantage: Tensor, rows: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Rho A log pi, or with `clip` the smaller one of r A and clip(r) A."""
        del rows
        if self.config.clip is not None:
            return clipped_gain(ratio, advantage, self.config.clip), {}
        return ratio.detach().clamp(max=self.config.rho_clip) * log_prob * advantage, {}
