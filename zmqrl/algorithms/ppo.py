"""PPO, the clipped form (Schulman et al. 2017). `policy_gradient/manual.py` has hand-written gradients, for MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt, Le

from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner, Progress
from zmqrl.algorithms.policy_gradient.actor_critic import ActorCriticLearner
from zmqrl.algorithms.policy_gradient.plan import ActorCritic, ActorCriticConfig
from zmqrl.algorithms.start.defaults import Sections, on_policy_defaults, total_of
from zmqrl.config.points import Points
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, Positive
from zmqrl.learning import Adam, Batch, Optimiser
from zmqrl.learning.schedule import Schedule, value_at
from zmqrl.loading import Tensor, torch
from zmqrl.networks.input import network_input
from zmqrl.networks.kinds.base import without_backward
from zmqrl.ops.policies import clipped_gain
from zmqrl.types import EnvSpec


@dataclass(frozen=True)
class ClipSection(Schedule):
    """Clip of the probability ratio."""

    start: Annotated[float, Gt(0), Le(1)]
    """Clip at the start."""
    end: Fraction = 0.0
    """Clip from `fraction` on."""


@dataclass(frozen=True)
class PPOConfig(ActorCriticConfig):
    """The fields other than `kind: ppo`. Defaults are those of Stable-Baselines3."""

    __pydantic_config__ = FORBID_UNKNOWN

    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    clip: Annotated[float, Gt(0), Le(1)] | ClipSection | Points[Fraction] = 0.2
    """The probability ratio counts within [1 - clip, 1 + clip]."""
    epochs: Positive = 10
    """Passes over each batch."""
    minibatch_size: Positive = 64
    """Rows per update, at most: valid rows are spread evenly over the minibatches of an epoch."""
    value_clip: Annotated[float, Gt(0)] | None = None
    """Clip the change of the value prediction to this; null switches it off."""
    adam_epsilon: Annotated[float, Gt(0)] = 1e-5
    """Adam's epsilon."""
    target_kl: Annotated[float, Gt(0)] | None = None
    """Training on a batch ends when a minibatch's approximate KL divergence exceeds 1.5 times this; null: never."""


class PPO(ActorCritic, Algorithm):
    """Proximal policy optimisation with separate actor and critic towers (Schulman et al. 2017)."""

    Config: ClassVar[type[PPOConfig]] = PPOConfig
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
            "shared": sections["network"]["kind"] == "cnn",
        }
        return sections

    @property
    def executors(self) -> tuple[str, ...]:
        """Gradients are written out for linear layers with tanh or relu, and one discrete action or a box.

        Masks, memory, `target_kl`, `normalise_value`, `shared` and `intrinsic` have autograd alone.
        """
        env, config = self.env, self.config
        plain = config.target_kl is None and not config.normalise_value and not config.shared
        plain = plain and config.intrinsic is None
        plain = plain and env.action.kind != "multi_discrete" and env.observation.action_mask is None
        written_out = not any(without_backward(layers) for _, layers in self.network().towers)
        manual = ("manual",) if plain and written_out else ()
        return (*manual, "eager", "compiled")

    @property
    def optimiser(self) -> Optimiser:
        return Adam(epsilon=self.config.adam_epsilon)

    def learning_rate(self, progress: Progress) -> float:
        """Adam's step size at this point of the run."""
        return value_at(self.config.learning_rate, progress)

    def clip(self, progress: Progress) -> float:
        """The ratio's clip at this point of the run."""
        return value_at(self.config.clip, progress)

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        if context.executor == "manual":
            from zmqrl.algorithms.policy_gradient.manual import ManualPPOLearner  # it imports torch

            return ManualPPOLearner(self, context)
        return PPOLearner(self, context)


class PPOLearner(ActorCriticLearner):
    """Equations 7 and 9 of the paper."""

    algorithm: PPO
    config: PPOConfig

    def numbers(self, progress: Progress) -> Mapping[str, float]:
        """`clip`, by its schedule."""
        return {"clip": self.algorithm.clip(progress)}

    def gain(self, log_prob: Tensor, ratio: Tensor, advantage: Tensor, rows: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The smaller one of r A and clip(r) A."""
        clipped = self.mean(((ratio - 1.0).abs() > rows["clip"]).float(), rows)
        return clipped_gain(ratio, advantage, rows["clip"]), {"clip_fraction": clipped}

    def value_losses(self, value: Tensor, rows: Batch) -> Tensor:
        """The squared error of each row; with `value_clip` at least that of the clipped change."""
        error, clip = super().value_losses(value, rows), self.config.value_clip
        if clip is None:
            return error
        kept = rows["old_value"] + (value - rows["old_value"]).clamp(-clip, clip)
        return torch.maximum(error, (kept - rows["target"]).square())

    def is_done(self, results: Mapping[str, Tensor]) -> bool:
        """Whether `target_kl` ends the training on this batch."""
        limit = self.config.target_kl
        return limit is not None and float(results["approx_kl"]) > 1.5 * limit
