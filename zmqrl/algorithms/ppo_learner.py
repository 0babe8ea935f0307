"""The learner of PPO under autograd."""

from __future__ import annotations

import math
from collections.abc import Mapping

from zmqrl.algorithms.base import LearnerContext, LearnResult, Progress
from zmqrl.algorithms.normalisation import ObsNormaliser, RewardNormaliser, ValueNormaliser
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.config.codec import replace
from zmqrl.errors import TrainingFailed
from zmqrl.learning import Adam, Batch, BatchLearner, Group, Part
from zmqrl.loading import Tensor, torch
from zmqrl.networks.initial import buffer_names, parameter_shapes
from zmqrl.ops.policies import categorical, gaussian, masked, multi_categorical
from zmqrl.ops.returns import explained_variance, generalised_advantages
from zmqrl.replay.base import SegmentBatch
from zmqrl.spaces import view
from zmqrl.types import Array


class PPOLearner(BatchLearner):
    """Values and advantages of a batch, then epochs of minibatches."""

    algorithm: PPO
    config: PPOConfig

    def __init__(self, algorithm: PPO, context: LearnerContext) -> None:
        config = algorithm.config
        spec = algorithm.network()
        trained = parameter_shapes(spec).keys() - buffer_names(spec)
        members = sorted({name.partition(".")[0] for name in trained})  # a tower without arrays has none
        group = Group("policy", tuple(members), config.max_grad_norm, Adam(epsilon=config.adam_epsilon))
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
        rows = self.rows(batch, **self.advantages(batch, progress))
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
        """Advantages with mean 0 and deviation 1 over the rows that are trained on; a single one as it is."""
        del rows
        if advantage.shape[0] < 2:
            return advantage
        return (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def is_done(self, results: Mapping[str, Tensor]) -> bool:
        """Whether `target_kl` ends the training on this batch."""
        limit = self.config.target_kl
        return limit is not None and float(results["approx_kl"]) > 1.5 * limit

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        """Learn from `batch`; the result includes the metrics of the whole batch."""
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
        """Check in debug, with policy lag 0, that the learner's log-probabilities are those that the workers stored."""
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
