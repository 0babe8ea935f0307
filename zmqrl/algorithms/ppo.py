"""PPO, the clipped form (Schulman et al. 2017): configuration, network and acting. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec, NetworkSpec
from zmqrl.algorithms.base import Algorithm, OnPolicyLearner, Progress
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, Positive, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.networks.build import tower
from zmqrl.types import MODES, ColumnSpec, ModeName, Weights

Schedule = Literal["constant", "linear"]


@dataclass(frozen=True)
class PPOConfig:
    """The fields other than `kind: ppo`. Defaults are those of Stable-Baselines3."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Annotated[float, Gt(0)] = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Schedule = "constant"
    """`linear` goes to 0 at the end of the schedules' horizon."""
    gamma: Fraction = 0.99
    """Discount per step."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    clip: Annotated[float, Gt(0), Le(1)] = 0.2
    """The probability ratio counts within [1 - clip, 1 + clip]."""
    clip_schedule: Schedule = "constant"
    """`linear` goes to 0 at the end of the schedules' horizon."""
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
    batch_segments: Positive = 4
    """async: segments of one batch. In single and sync a batch is one segment per vector env."""


class PPO(Algorithm):
    """Proximal policy optimisation with separate actor and critic towers."""

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = True
    config: PPOConfig

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` when it cannot train the env's spaces, or a minibatch is larger than the batch."""
        del replay
        self._check_spaces()
        segments = vector_envs if MODES[mode].deterministic else self.config.batch_segments
        rows = segments * self.segment_steps * self.num_envs
        if self.config.minibatch_size > rows:
            raise ConfigError(
                f"algorithm.minibatch_size: {self.config.minibatch_size} is larger than the batch of {rows} rows "
                f"({segments} segments of {self.segment_steps} steps of {self.num_envs} envs)"
            )

    def _check_spaces(self) -> None:
        env = self.env
        if env.action.kind not in ("discrete", "box"):
            raise ConfigError(
                f"algorithm.kind: ppo needs actions of a Discrete or Box space, {env.id} has {env.action.kind} actions"
            )
        if env.observation.action_mask is not None:
            raise ConfigError(f"algorithm.kind: ppo does not train with masks, and {env.id} has an action_mask")
        if self.config.normalise_obs and not self.input.statistics_size:
            raise ConfigError(f"algorithm.normalise_obs: true: no observations of {env.id} are floats; set false")

    def network(self) -> NetworkSpec:
        """Towers `actor` and `critic`; alongside them `log_std` when actions are continuous."""
        space, section, orthogonal = self.env.observation, self.network_section, self.config.orthogonal_init
        actor = tower("actor", section, space, self._action_size, output_gain=0.01, orthogonal=orthogonal)
        critic = tower("critic", section, space, 1, output_gain=1.0, orthogonal=orthogonal)
        free = () if self.discrete else (("log_std", (self._action_size,), self.config.log_std_init),)
        return NetworkSpec((("actor", actor), ("critic", critic)), free)

    def acting(self) -> ActingSpec:
        """Categorical or Gaussian actions; a segment contains their log-probabilities."""
        return ActingSpec(
            layers=self.network().tower("actor"),
            head="categorical" if self.discrete else "gaussian",
            action=self.env.action,
            observation=self.env.observation,
            extras=(ColumnSpec("log_prob", "float32", (self.segment_steps, self.num_envs)),),
            normalise_obs=self.config.normalise_obs,
            obs_clip=self.config.obs_clip,
            arrays=() if self.discrete else ("log_std",),
            runtime="torch" if self.network_section.kind == "cnn" else "numpy",
            input=self.input,
        )

    def statistics(self) -> Weights:
        """`obs_mean` and `obs_scale` (float64, flat, of the float parts), the identity before the first batch."""
        if not self.config.normalise_obs:
            return {}
        size = self.input.statistics_size
        return {"obs_mean": np.zeros(size), "obs_scale": np.ones(size)}

    @property
    def discrete(self) -> bool:
        """Whether actions are one of n."""
        return self.env.action.kind == "discrete"

    @property
    def _action_size(self) -> int:
        return self.env.action.n if self.discrete else math.prod(self.env.action.shape)

    @property
    def batch_segments(self) -> int | None:
        """async: segments of one batch."""
        return self.config.batch_segments

    def learning_rate(self, progress: Progress) -> float:
        """Adam's step size at this point of the run."""
        return self.config.learning_rate * _remaining(self.config.learning_rate_schedule, progress)

    def clip(self, progress: Progress) -> float:
        """The ratio's clip at this point of the run."""
        return self.config.clip * _remaining(self.config.clip_schedule, progress)

    def learner(self, weights: Weights, device: str) -> OnPolicyLearner:
        """The learner; imports torch."""
        from zmqrl.algorithms.ppo_learner import PPOLearner

        return PPOLearner(self, weights, device)


def _remaining(schedule: Schedule, progress: Progress) -> float:
    return 1.0 - progress.fraction if schedule == "linear" else 1.0
