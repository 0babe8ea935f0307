"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783, the synchronous form): one step per batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt

from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner
from zmqrl.algorithms.policy_gradient.actor_critic import ActorCriticLearner
from zmqrl.algorithms.policy_gradient.plan import ActorCritic, ActorCriticConfig
from zmqrl.algorithms.start.defaults import Sections, envs_of, on_policy_defaults
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction
from zmqrl.learning.schedule import Rate
from zmqrl.networks.input import network_input
from zmqrl.types import EnvSpec


@dataclass(frozen=True)
class A2CConfig(ActorCriticConfig):
    """The fields other than `kind: a2c`. Defaults are those of Stable-Baselines3."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 7e-4
    """Step size of RMSProp."""
    normalise_advantage: bool = False
    """Mean 0 and deviation 1 per batch."""
    gae_lambda: Fraction = 1.0
    """Lambda of generalised advantage estimation; 1: n-step returns to the end of the segment, as in the paper."""
    rmsprop_epsilon: Annotated[float, Gt(0)] = 1e-5
    """RMSProp's epsilon."""


class A2C(ActorCritic, Algorithm):
    """Advantage actor-critic (Mnih et al. 2016): the policy gradient with GAE, one step of RMSProp per batch."""

    Config: ClassVar[type[A2CConfig]] = A2CConfig
    config: A2CConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """16 envs of 8 steps, with normalised observations and rewards."""
        sections = on_policy_defaults(env, segment_steps=8)
        sections["env"]["num_envs"] = envs_of(env, 4)
        sections["algorithm"] = {
            "ent_coef": 0.0 if env.action.kind == "box" else 0.01,
            "normalise_obs": network_input(env.observation).statistics_size > 0,
            "normalise_reward": True,
            "shared": sections["network"]["kind"] == "cnn",
        }
        return sections

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return ActorCriticLearner(self, context)
