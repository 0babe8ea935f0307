"""PPO, the clipped form (Schulman et al. 2017). `ppo_manual` has the same with hand-written gradients, for MLPs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, LearnResult, OnPolicyLearner, Progress, check_minibatch
from zmqrl.algorithms.defaults import Sections, on_policy_defaults, total_of
from zmqrl.algorithms.normalisation import ObsNormaliser, RewardNormaliser, ValueNormaliser
from zmqrl.config.codec import replace
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, Positive, ReplaySection
from zmqrl.errors import ConfigError, TrainingFailed
from zmqrl.learning import Batch, BatchLearner, Group, Part, Rate, Schedule, value_at
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.initial import buffer_names, parameter_shapes
from zmqrl.networks.input import network_input
from zmqrl.networks.kinds.base import without_backward
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.ops.policies import categorical, gaussian, masked, multi_categorical
from zmqrl.ops.returns import explained_variance, generalised_advantages
from zmqrl.replay.base import SegmentBatch
from zmqrl.spaces import view
from zmqrl.types import MODES, Array, ColumnSpec, EnvSpec, ModeName, Weights

Decay = Literal["constant", "linear"]


@dataclass(frozen=True)
class PPOConfig:
    """The fields other than `kind: ppo`. Defaults are those of Stable-Baselines3."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Decay = "constant"
    """`linear`: a `learning_rate` that is a number goes to 0 at the end of the schedules' horizon."""
    gamma: Fraction = 0.99
    """Discount per step."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    clip: Annotated[float, Gt(0), Le(1)] = 0.2
    """The probability ratio counts within [1 - clip, 1 + clip]."""
    clip_schedule: Decay = "constant"
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
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = True
    masks: ClassVar[bool] = True
    config: PPOConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Those of Stable-Baselines3, with normalised observations and rewards; of CleanRL for images."""
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
        """A linear layer each for actor and critic."""
        actor_gain, critic_gain = (0.01, 1.0) if self.config.orthogonal_init else (0.0, 0.0)
        return (
            ("actor", (LayerSpec("linear", "actor.0", features, self._action_size, gain=actor_gain),)),
            ("critic", (LayerSpec("linear", "critic.0", features, 1, gain=critic_gain),)),
        )

    def acting_layers(self) -> tuple[LayerSpec, ...]:
        """From the input of the network to the outputs of the policy."""
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
            extras=(ColumnSpec("log_prob", "float32", (self.segment_steps, self.num_envs)),),
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
        """Of observations, rewards and values: those that are normalised."""
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
        """async: segments of one batch."""
        return self.config.batch_segments

    def learning_rate(self, progress: Progress) -> float:
        """Adam's step size at this point of the run."""
        setting = self.config.learning_rate
        rate = value_at(setting, progress.fraction)
        has_end = isinstance(setting, Schedule)
        return rate if has_end else rate * _remaining(self.config.learning_rate_schedule, progress)

    def clip(self, progress: Progress) -> float:
        """The ratio's clip at this point of the run."""
        return self.config.clip * _remaining(self.config.clip_schedule, progress)

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        """The learner of the executor."""
        if context.executor == "manual":
            from zmqrl.algorithms.ppo_manual import ManualPPOLearner  # it imports torch

            return ManualPPOLearner(self, context)
        return PPOLearner(self, context)


class PPOLearner(BatchLearner):
    """Values and advantages of a batch, then epochs of minibatches."""

    algorithm: PPO
    config: PPOConfig

    def __init__(self, algorithm: PPO, context: LearnerContext) -> None:
        config = algorithm.config
        spec = algorithm.network()
        trained = parameter_shapes(spec).keys() - buffer_names(spec)
        members = sorted({name.partition(".")[0] for name in trained})  # a tower without arrays has none
        group = Group("policy", tuple(members), config.max_grad_norm, config.adam_epsilon)
        self._obs = ObsNormaliser(algorithm.input, algorithm.env.observation, config.obs_clip, context.weights)
        self._reward = RewardNormaliser(config.gamma, config.reward_clip, context.weights)
        self._value = ValueNormaliser(context.weights)
        parts: dict[str, Part] = {"obs": self._obs, "reward": self._reward, "value": self._value}
        super().__init__(algorithm, context, (group,), parts)

    def numbers(self, progress: Progress) -> Mapping[str, float]:
        """`clip`, by its schedule."""
        return {"clip": self.algorithm.clip(progress)}

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        """The valid rows, with their advantages and the targets of their values."""
        columns = self.advantages(batch, progress)
        valid = self.tensor(np.flatnonzero(batch.columns["valid"]))
        rows = {name: column.flatten(0, 1).index_select(0, valid) for name, column in columns.items()}
        self.check_ratio(rows, batch, progress)
        return rows

    def advantages(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        """What is trained on, `[T, E, ...]`: all rows, also the invalid ones. Statistics take the batch in."""
        config, columns = self.config, batch.columns
        floats = self._obs.normalise(batch, progress.version) if config.normalise_obs else None
        obs = self.observations(columns["obs"], floats)
        predicted = self.values(obs, batch).cpu().numpy()
        value = self._value.restored(predicted) if config.normalise_value else predicted
        reward = self._reward.merge_and_normalise(batch) if config.normalise_reward else columns["reward"]
        flags = (columns["terminated"], columns["truncated"], columns["valid"])
        advantage = generalised_advantages(reward, value, *flags, config.gamma, config.gae_lambda)
        target, valid = advantage + value[:-1], columns["valid"]
        self._explained = explained_variance(value[:-1][valid], target[valid]) if valid.any() else math.nan
        if config.normalise_value:
            self._value.merge(target[valid])
            target = self._value.normalised(target)
        if config.normalise_obs:
            self._obs.merge(batch)
        found = {"action": columns["action"], "log_prob": columns["log_prob"], "advantage": advantage, "target": target}
        observation = self.algorithm.env.observation
        if observation.action_mask is not None:
            found["mask"] = view(columns["obs"][:-1], observation, observation.action_mask)
        named = {name: self.tensor(column) for name, column in {**found, "old_value": predicted[:-1]}.items()}
        return {"obs": obs[:-1], **named}

    def values(self, obs: Tensor, batch: SegmentBatch) -> Tensor:
        """What the critic predicts, `[T + 1, E]`, for the network's input `obs [T + 1, E, ...]`."""
        del batch
        return self.net("critic", self.features({"obs": obs.flatten(0, 1)})).reshape(obs.shape[:2])

    def features(self, rows: Batch) -> Tensor:
        """What actor and critic see, `[B, ...]`."""
        return self.net("torso", rows["obs"]) if self.config.shared else rows["obs"]

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Equations 7 and 9 of the paper."""
        config, features, advantage = self.config, self.features(batch), batch["advantage"]
        log_prob, entropy = self.policy(features, batch)
        if config.normalise_advantage:
            advantage = self.standardised(advantage, batch)
        log_ratio = log_prob - batch["log_prob"]
        ratio, clip = log_ratio.exp(), batch["clip"]
        surrogate = torch.minimum(ratio * advantage, torch.clamp(ratio, 1.0 - clip, 1.0 + clip) * advantage)
        value = self.net("critic", features).squeeze(1)
        loss_policy, loss_value = -self.mean(surrogate, batch), self.mean(self._value_losses(value, batch), batch)
        bonus = self.mean(entropy, batch)
        self.net.step("policy", loss_policy + config.vf_coef * loss_value - config.ent_coef * bonus)
        return {
            "loss/policy": loss_policy,
            "loss/value": loss_value,
            "entropy": bonus,
            "approx_kl": self.mean(torch.expm1(log_ratio) - log_ratio, batch),
            "clip_fraction": self.mean(((ratio - 1.0).abs() > clip).float(), batch),
        }

    def mean(self, values: Tensor, rows: Batch) -> Tensor:
        """Over the rows that are trained on: here all."""
        del rows
        return values.mean()

    def standardised(self, advantage: Tensor, rows: Batch) -> Tensor:
        """With mean 0 and deviation 1 over those rows; a single one as it is."""
        del rows
        if advantage.shape[0] < 2:
            return advantage
        return (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def is_done(self, results: Mapping[str, Tensor]) -> bool:
        """Whether `target_kl` ends the training on this batch."""
        limit = self.config.target_kl
        return limit is not None and float(results["approx_kl"]) > 1.5 * limit

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        """With the metrics of the whole batch."""
        result = super().learn(batch, progress)
        rate = self.algorithm.learning_rate(progress)
        return replace(result, metrics={**result.metrics, "learning_rate": rate, "explained_variance": self._explained})

    def weights(self) -> dict[str, Array]:
        """The network's tensors, and `obs_mean` and `obs_scale` when observations are normalised."""
        return self.net.weights() | (self._obs.published() if self.config.normalise_obs else {})

    def policy(self, features: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each action."""
        outputs, space = self.net("actor", features), self.algorithm.env.action
        if self.algorithm.discrete:
            return categorical(masked(outputs, rows.get("mask")), rows["action"])
        if space.choices:
            return multi_categorical(masked(outputs, rows.get("mask")), rows["action"], space.choices)
        return gaussian(outputs, self.net.parameter("log_std"), rows["action"].flatten(1))

    def _value_losses(self, value: Tensor, rows: Batch) -> Tensor:
        error = (value - rows["target"]).square()
        clip = self.config.value_clip
        if clip is None:
            return error
        kept = rows["old_value"] + (value - rows["old_value"]).clamp(-clip, clip)
        return torch.maximum(error, (kept - rows["target"]).square())

    def check_ratio(self, rows: Batch, batch: SegmentBatch, progress: Progress) -> None:
        """In debug, with policy lag 0: the learner's log-probabilities are those that the workers stored."""
        if not progress.debug or any(meta.version != progress.version for meta in batch.metas):
            return
        log_prob, _ = self.policy(self.features(rows), rows)
        deviation = float((log_prob - rows["log_prob"]).exp().sub(1.0).abs().max())
        limit = 1e-4 if self.algorithm.env.action.choices else 1e-3  # narrow Gaussians magnify the last bit of the mean
        if not deviation <= limit:
            raise TrainingFailed(
                f"the probability ratio of the first minibatch differs from 1 by {deviation:.3g} (limit {limit:g}): "
                "worker and learner disagree on version, statistics or arithmetic"
            )


def _remaining(schedule: Decay, progress: Progress) -> float:
    return 1.0 - progress.fraction if schedule == "linear" else 1.0
