"""PPO, the clipped form (Schulman et al. 2017). `ppo_manual` has the same with hand-written gradients, for MLPs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner, Progress, check_minibatch
from zmqrl.algorithms.defaults import Sections, on_policy_defaults, total_of
from zmqrl.config.points import Points
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, Positive, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning.schedule import Rate, Schedule, value_at
from zmqrl.networks.build import tower
from zmqrl.networks.input import network_input
from zmqrl.networks.kinds.base import without_backward
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.types import MODES, EnvSpec, ModeName, Weights


@dataclass(frozen=True)
class ClipSection(Schedule):
    """Clip of the probability ratio."""

    start: Annotated[float, Gt(0), Le(1)]
    """Clip at the start."""
    end: Fraction = 0.0
    """Clip from `fraction` on."""


@dataclass(frozen=True)
class PPOConfig:
    """The fields other than `kind: ppo`. Defaults are those of Stable-Baselines3."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 3e-4
    """Adam's step size."""
    gamma: Fraction = 0.99
    """Discount per step."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    clip: Annotated[float, Gt(0), Le(1)] | ClipSection | Points[Fraction] = 0.2
    """The probability ratio counts within [1 - clip, 1 + clip]."""
    epochs: Positive = 10
    """Passes over each batch."""
    minibatch_size: Positive = 64
    """Rows per update, at most: valid rows are spread evenly over the minibatches of an epoch."""
    ent_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus."""
    vf_coef: Annotated[float, Ge(0)] = 0.5
    """Weight of the value loss, the mean squared error (without a factor 1/2)."""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5
    """Bound of the gradient's global norm."""
    value_clip: Annotated[float, Gt(0)] | None = None
    """Clip the change of the value prediction to this; null switches it off."""
    normalise_advantage: bool = True
    """Mean 0 and deviation 1 per minibatch."""
    normalise_obs: bool = False
    """Observations as (obs - mean) / deviation over the run so far."""
    obs_clip: Annotated[float, Gt(0)] = 10.0
    """Bound of normalised observations."""
    normalise_reward: bool = False
    """Divide rewards by the deviation of the discounted return."""
    reward_clip: Annotated[float, Gt(0)] = 10.0
    """Bound of normalised rewards."""
    log_std_init: float = 0.0
    """First log deviation of a continuous policy."""
    orthogonal_init: bool = True
    """Orthogonal layers (sqrt 2, policy head .01, value head 1); else PyTorch's default."""
    adam_epsilon: Annotated[float, Gt(0)] = 1e-5
    """Adam's epsilon."""
    target_kl: Annotated[float, Gt(0)] | None = None
    """Training on a batch ends when a minibatch's approximate KL divergence exceeds 1.5 times this; null: never."""
    normalise_value: bool = False
    """The critic predicts (return - mean) / deviation, with those of all returns so far."""
    shared: bool = False
    """Actor and critic share the hidden layers (`torso`)."""
    batch_segments: Positive = 4
    """async: segments of one batch. In single and sync a batch is one segment per vector env."""


class PPO(Algorithm):
    """Proximal policy optimisation with separate actor and critic towers."""

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES) - {"offline"}
    on_policy: ClassVar[bool] = True
    masks: ClassVar[bool] = True
    config: PPOConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Defaults of Stable-Baselines3, with normalised observations and rewards; of CleanRL for images."""
        continuous, image = env.action.kind == "box", env.observation.is_image
        sections = on_policy_defaults(env, segment_steps=256 if continuous else 128)
        sections["run"]["total_env_steps"] = total_of(env, 1_000_000 if continuous else 500_000)
        sections["algorithm"] = {
            "learning_rate": 2.5e-4 if image else 3e-4,
            "clip": 0.1 if image else 0.2,
            "epochs": 4 if image else 10,
            "minibatch_size": 256 if image else 64,
            "ent_coef": 0.0 if continuous else 0.01,
            "normalise_obs": network_input(env.observation).statistics_size > 0,
            "normalise_reward": True,
        }
        return sections

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` when no observation can be normalised, or a minibatch is larger than the batch."""
        del replay
        if self.config.normalise_obs and not self.input.statistics_size:
            wrapper = '{"gymnasium.wrappers:DtypeObservation": {dtype: float32}}'
            more = f", or add {wrapper} to env.wrappers" if self.env.observation.kind == "box" else ""
            raise ConfigError(
                f"{self.env.id} has no float observations",
                key=("algorithm", "normalise_obs"),
                value="true",
                fix=f"set false{more}",
                others=(("env", "wrappers"),),
            )
        segments = vector_envs if MODES[mode].deterministic else self.config.batch_segments
        check_minibatch(self.config.minibatch_size, segments, self.segment_steps, self.num_envs)

    @property
    def executors(self) -> tuple[str, ...]:
        """Gradients are written out for linear layers with tanh or relu, and one discrete action or a box.

        Masks, `target_kl`, `normalise_value` and `shared` have autograd alone.
        """
        env, config = self.env, self.config
        plain = config.target_kl is None and not config.normalise_value and not config.shared
        plain = plain and env.action.kind != "multi_discrete" and env.observation.action_mask is None
        written_out = not any(without_backward(layers) for _, layers in self.network().towers)
        manual = ("manual",) if plain and written_out else ()
        return (*manual, "eager", "compiled")

    def network(self) -> NetworkSpec:
        """Towers `actor` and `critic`, with `shared` after `torso`; `log_std` when actions are continuous."""
        space, section, orthogonal = self.env.observation, self.network_section, self.config.orthogonal_init
        free = () if self.env.action.choices else (("log_std", (self._action_size,), self.config.log_std_init),)
        if self.config.shared:
            *torso, last = tower("torso", section, space, 1, output_gain=1.0, orthogonal=orthogonal)
            return NetworkSpec((("torso", tuple(torso)), *self._heads(last.inputs)), free)
        actor = tower("actor", section, space, self._action_size, output_gain=0.01, orthogonal=orthogonal)
        critic = tower("critic", section, space, 1, output_gain=1.0, orthogonal=orthogonal)
        return NetworkSpec((("actor", actor), ("critic", critic)), free)

    def _heads(self, features: int) -> tuple[tuple[str, tuple[LayerSpec, ...]], ...]:
        actor_gain, critic_gain = (0.01, 1.0) if self.config.orthogonal_init else (0.0, 0.0)
        return (
            ("actor", (LayerSpec("linear", "actor.0", features, self._action_size, gain=actor_gain),)),
            ("critic", (LayerSpec("linear", "critic.0", features, 1, gain=critic_gain),)),
        )

    def acting_layers(self) -> tuple[LayerSpec, ...]:
        """Layers from the input of the network to the outputs of the policy."""
        towers = dict(self.network().towers)
        return (*towers.get("torso", ()), *towers["actor"])

    def acting(self) -> ActingSpec:
        """Categorical or Gaussian actions; a segment contains their log-probabilities."""
        layers = self.acting_layers()
        several = "multi_categorical" if self.env.action.choices else "gaussian"
        return ActingSpec(
            layers=layers,
            head="categorical" if self.discrete else several,
            action=self.env.action,
            observation=self.env.observation,
            extras=(self.extra("log_prob"),),
            normalise_obs=self.config.normalise_obs,
            obs_clip=self.config.obs_clip,
            arrays=() if self.env.action.choices else ("log_std",),
            input=self.input,
        )

    def statistics(self) -> Weights:
        """`obs_mean` and `obs_scale` (float64, flat, of the float parts), the identity before the first batch."""
        if not self.config.normalise_obs:
            return {}
        size = self.input.statistics_size
        return {"obs_mean": np.zeros(size), "obs_scale": np.ones(size)}

    def learner_statistics(self) -> Mapping[str, int]:
        """Sizes of the statistics of observations, rewards and values: of those that are normalised."""
        config = self.config
        obs = {"obs": self.input.statistics_size} if config.normalise_obs else {}
        reward = {"reward": 1} if config.normalise_reward else {}
        value = {"value": 1} if config.normalise_value else {}
        return {**obs, **reward, **value}

    @property
    def discrete(self) -> bool:
        """Whether actions are one of n."""
        return self.env.action.kind == "discrete"

    @property
    def _action_size(self) -> int:
        return sum(self.env.action.choices) or math.prod(self.env.action.shape)

    @property
    def batch_segments(self) -> int | None:
        return self.config.batch_segments

    def learning_rate(self, progress: Progress) -> float:
        """Adam's step size at this point of the run."""
        return value_at(self.config.learning_rate, progress)

    def clip(self, progress: Progress) -> float:
        """The ratio's clip at this point of the run."""
        return value_at(self.config.clip, progress)

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        if context.executor == "manual":
            from zmqrl.algorithms.ppo_manual import ManualPPOLearner  # it imports torch

            return ManualPPOLearner(self, context)
        from zmqrl.algorithms.ppo_learner import PPOLearner  # it imports this module

        return PPOLearner(self, context)
