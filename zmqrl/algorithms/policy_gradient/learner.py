"""The learner that policy gradients share: normalised batches, distributions of actions, and the loss of the policy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from zmqrl.algorithms.base import LearnerContext, LearnResult, Progress
from zmqrl.algorithms.policy_gradient.plan import PolicyGradient
from zmqrl.config.codec import replace
from zmqrl.errors import TrainingFailed
from zmqrl.learning import Batch, BatchLearner, Group, Part
from zmqrl.learning.normalisation import ObsNormaliser, RewardNormaliser
from zmqrl.loading import Tensor, torch
from zmqrl.networks.initial import buffer_names, parameter_shapes
from zmqrl.ops.policies import categorical, gaussian, masked, multi_categorical
from zmqrl.replay.base import SegmentBatch
from zmqrl.spaces import view
from zmqrl.types import Array


class PolicyLearner(BatchLearner):
    """Normalised batches with advantages, then epochs of minibatches."""

    algorithm: PolicyGradient

    def __init__(
        self,
        algorithm: PolicyGradient,
        context: LearnerContext,
        parts: Mapping[str, Part] | None = None,
        further: Sequence[Group] = (),
    ) -> None:
        """`further` are groups of what the loss of the policy does not train."""
        config = algorithm.config
        spec = algorithm.network()
        trained = parameter_shapes(spec).keys() - buffer_names(spec)
        others = {member for group in further for member in group.members}
        members = sorted({name.partition(".")[0] for name in trained} - others)  # a tower without arrays has none
        group = Group("policy", tuple(members), config.max_grad_norm, algorithm.optimiser)
        self._obs = ObsNormaliser(algorithm.input, algorithm.env.observation, config.obs_clip, context.weights)
        self._reward = RewardNormaliser(config.gamma, config.reward_clip, context.weights)
        held: dict[str, Part] = {"obs": self._obs, "reward": self._reward, **(parts or {})}
        super().__init__(algorithm, context, (group, *further), held)

    @abstractmethod
    def estimate(self, batch: SegmentBatch, obs: Tensor, reward: Array) -> dict[str, Array]:
        """`advantage [T, E]` and what else the loss needs of each row.

        `obs [T + 1, E, ...]` is the input of the network; `reward [T, E]` is normalised if that is configured.
        """

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        """The rows that are trained, with their advantages."""
        rows = self.select(batch, self.advantages(batch, progress))
        self.check_ratio(rows, batch, progress)
        return rows

    def select(self, batch: SegmentBatch, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of `columns [T, E, ...]` for minibatches: the valid ones."""
        return self.rows(batch, **columns)

    def advantages(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        """What is trained on, `[T, E, ...]`: all rows, also the invalid ones. Statistics take the batch in."""
        config, columns = self.config, batch.columns
        floats = self._obs.normalise(batch, progress.version) if config.normalise_obs else None
        obs = self.observations(columns["obs"], floats)
        reward = self._reward.merge_and_normalise(batch) if config.normalise_reward else columns["reward"]
        found = self.acted(batch) | self.estimate(batch, obs, reward)
        if config.normalise_obs:
            self._obs.merge(batch)
        return {"obs": obs[:-1], **{name: self.tensor(column) for name, column in found.items()}}

    def acted(self, batch: SegmentBatch) -> dict[str, Array]:
        """`action`, `log_prob`, and `mask` if observations have one, `[T, E, ...]`."""
        columns, observation = batch.columns, self.algorithm.env.observation
        found = {name: columns[name] for name in ("action", "log_prob")}
        if observation.action_mask is not None:
            found["mask"] = view(columns["obs"][:-1], observation, observation.action_mask)
        return found

    def policy(self, outputs: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each action, for outputs of the tower `actor`."""
        space = self.algorithm.env.action
        if self.algorithm.discrete:
            return categorical(masked(outputs, rows.get("mask")), rows["action"])
        if space.choices:
            return multi_categorical(masked(outputs, rows.get("mask")), rows["action"], space.choices)
        return gaussian(outputs, self.net.parameter("log_std"), rows["action"].flatten(1))

    def outputs(self, rows: Batch) -> Tensor:
        """Outputs of the policy for rows of a minibatch."""
        return self.net("actor", rows["obs"])

    def gain(self, log_prob: Tensor, ratio: Tensor, advantage: Tensor, rows: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """What the policy maximises the mean of, and metrics: A log pi, weighted by a probability ratio of at most 1.

        `ratio` is that to the policy that acted: 1 in single and sync.
        """
        del rows
        return ratio.detach().clamp(max=1.0) * log_prob * advantage, {}

    def loss(self, outputs: Tensor, rows: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the policy with its entropy bonus, and metrics."""
        log_prob, entropy = self.policy(outputs, rows)
        advantage = rows["advantage"]
        if self.config.normalise_advantage:
            advantage = self.standardised(advantage, rows)
        log_ratio = log_prob - rows["log_prob"]
        gain, metrics = self.gain(log_prob, log_ratio.exp(), advantage, rows)
        loss, bonus = -self.mean(gain, rows), self.mean(entropy, rows)
        divergence = self.mean(torch.expm1(log_ratio) - log_ratio, rows)
        metrics = {"loss/policy": loss, "entropy": bonus, "approx_kl": divergence, **metrics}
        return loss - self.config.ent_coef * bonus, metrics

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Policy gradient (Williams 1992)."""
        loss, metrics = self.loss(self.outputs(batch), batch)
        self.net.step("policy", loss)
        return metrics

    def mean(self, values: Tensor, rows: Batch) -> Tensor:
        """Over the rows that are trained on: of sequences the valid ones."""
        if "valid" not in rows:
            return values.mean()
        return (values * rows["valid"]).sum() / rows["valid"].sum().clamp(min=1.0)

    def standardised(self, advantage: Tensor, rows: Batch) -> Tensor:
        """Advantages with mean 0 and deviation 1 over the rows that are trained on; a single one as it is."""
        if "valid" in rows:
            centred = advantage - self.mean(advantage, rows)
            return centred / (self.mean(centred.square(), rows).sqrt() + 1e-8)
        if advantage.shape[0] < 2:
            return advantage
        return (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        """Learn from `batch`; the metrics have the learning rate."""
        result = super().learn(batch, progress)
        rate = self.learning_rates(progress)["policy"]
        return replace(result, metrics={**result.metrics, "learning_rate": rate})

    def weights(self) -> dict[str, Array]:
        """The network's tensors, and `obs_mean` and `obs_scale` when observations are normalised."""
        return self.net.weights() | (self._obs.published() if self.config.normalise_obs else {})

    def check_ratio(self, rows: Batch, batch: SegmentBatch, progress: Progress) -> None:
        """Check in debug, with policy lag 0, that the learner's log-probabilities are those that the workers stored.

        `rows` is what `outputs` and `policy` receive.
        """
        is_checked = progress.debug and self.context.precision == "float32"
        if not is_checked or any(meta.version != progress.version for meta in batch.metas):
            return
        log_prob, _ = self.policy(self.outputs(rows), rows)
        deviation = float((log_prob - rows["log_prob"]).exp().sub(1.0).abs().max())
        limit = 1e-4 if self.algorithm.env.action.choices else 1e-3  # narrow Gaussians magnify the last bit of the mean
        if not deviation <= limit:
            raise TrainingFailed(
                f"the probability ratio of the first minibatch differs from 1 by {deviation:.3g} (limit {limit:g}): "
                "worker and learner disagree on version, statistics or arithmetic"
            )
