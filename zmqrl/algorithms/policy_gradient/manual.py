"""PPO's learner: values, advantages, then epochs of minibatches over one batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from zmqrl.algorithms.base import LearnerContext, LearnResult, OnPolicyLearner, Progress
from zmqrl.algorithms.ppo import PPO
from zmqrl.errors import TrainingFailed
from zmqrl.learning.base import check_norm
from zmqrl.learning.normalisation import ObsNormaliser, RewardNormaliser
from zmqrl.loading import np
from zmqrl.networks.initial import parameter_shapes
from zmqrl.networks.module import FlatParameters, Tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.networks.torch_input import TorchInput
from zmqrl.ops.manual import (
    CategoricalGradients,
    FlatAdam,
    GaussianGradients,
    approximate_kl,
    clip_by_norm,
    clipped_surrogate,
    value_loss,
)
from zmqrl.ops.returns import explained_variance, generalised_advantages
from zmqrl.random_streams import stream
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, SpaceSpec, Weights


class CategoricalPolicy:
    """Discrete actions. `log_prob`, then `backward`, in pairs."""

    ratio_tolerance = 1e-5

    def __init__(self, action: SpaceSpec, network: NetworkSpec, parameters: FlatParameters) -> None:
        self._actions = action.n
        self._tower = Tower(network.tower("actor"), parameters)

    def encode(self, action: Tensor) -> Tensor:
        """One-hot float32 `[B, A]` of `action [B, 1]`."""
        return torch.zeros(action.shape[0], self._actions, device=action.device).scatter_(1, action, 1.0)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities `[B]` of encoded actions."""
        self._distribution, self._action = CategoricalGradients(self._tower.forward(obs)), action
        return self._distribution.log_prob(action)

    def entropy(self) -> Tensor:
        """Mean entropy of the last `log_prob`."""
        return self._distribution.entropy().mean()

    def backward(self, by_log_prob: Tensor, by_entropy: float) -> None:
        """Write the gradients, given the loss's by each log-probability `[B]` and by the mean entropy."""
        per_row = by_entropy / by_log_prob.shape[0]
        self._tower.backward(self._distribution.logits_grad(self._action, by_log_prob, per_row))


class GaussianPolicy:
    """Continuous actions with a state-independent deviation. `log_prob`, then `backward`, in pairs."""

    # Densities of narrow Gaussians magnify the last bit of the mean.
    ratio_tolerance = 1e-3

    def __init__(self, action: SpaceSpec, network: NetworkSpec, parameters: FlatParameters) -> None:
        self._size = math.prod(action.shape)
        self._tower = Tower(network.tower("actor"), parameters)
        self._log_std, self._log_std_grad = parameters.tensors["log_std"], parameters.grads["log_std"]

    def encode(self, action: Tensor) -> Tensor:
        """Actions as float32 `[B, A]`."""
        return action.float().view(-1, self._size)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-densities `[B]` of encoded actions."""
        self._distribution, self._action = GaussianGradients(self._tower.forward(obs), self._log_std), action
        return self._distribution.log_prob(action)

    def entropy(self) -> Tensor:
        """Entropy of the last `log_prob`."""
        return self._distribution.entropy()

    def backward(self, by_log_prob: Tensor, by_entropy: float) -> None:
        """Write the gradients, given the loss's by each log-density `[B]` and by the entropy."""
        by_mean, by_log_std = self._distribution.grads(self._action, by_log_prob, by_entropy)
        self._tower.backward(by_mean)
        self._log_std_grad.copy_(by_log_std)


class BatchRows(NamedTuple):
    """The valid rows of a batch, or a minibatch of them; `action` is one-hot `[B, A]` when discrete."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    value_target: Tensor
    old_value: Tensor

    def select(self, index: Tensor) -> BatchRows:
        """The rows at `index [B]`."""
        return BatchRows(*(column.index_select(0, index) for column in self))

    @property
    def size(self) -> int:
        """Rows."""
        return self.log_prob.shape[0]


class Coefficients(NamedTuple):
    """What the schedules say for this round."""

    learning_rate: float
    clip: float


class ManualPPOLearner(OnPolicyLearner):
    """One thread, no waiting. Gradients are written out (`zmqrl.ops`, `zmqrl.networks`); autograd is not used."""

    def __init__(self, algorithm: PPO, context: LearnerContext) -> None:
        weights, device = context.weights, context.device
        self._algorithm, self._config, self._device = algorithm, algorithm.config, device
        network = algorithm.network()
        self._parameters = FlatParameters(parameter_shapes(network), device)
        self._parameters.load(weights)
        policy = CategoricalPolicy if algorithm.discrete else GaussianPolicy
        self._policy: CategoricalPolicy | GaussianPolicy = policy(algorithm.env.action, network, self._parameters)
        self._critic = Tower(network.tower("critic"), self._parameters)
        self._adam = FlatAdam(self._parameters.flat, epsilon=self._config.adam_epsilon)
        observation, described = algorithm.env.observation, algorithm.input
        self._input = TorchInput(described, observation)
        self._obs = ObsNormaliser(described, observation, self._config.obs_clip, weights)
        self._reward = RewardNormaliser(self._config.gamma, self._config.reward_clip, weights)

    @torch.inference_mode()
    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        """Train on `batch`; `TrainingFailed` when debug finds the ratio off 1, or the gradient is not finite."""
        config, algorithm = self._config, self._algorithm
        coefficients = Coefficients(algorithm.learning_rate(progress), algorithm.clip(progress))
        rows = self._rows(batch, progress)
        updates_before = self._adam.steps
        metrics = {"learning_rate": coefficients.learning_rate}
        if rows.size:
            if progress.debug and all(meta.version == progress.version for meta in batch.metas):
                self._check_ratio(rows)
            predicted, target = rows.old_value.cpu().numpy(), rows.value_target.cpu().numpy()
            metrics["explained_variance"] = explained_variance(predicted, target)
            metrics |= self._train(rows, coefficients, progress.seed)
        if config.normalise_obs:
            self._obs.merge(batch)
        return LearnResult(self._adam.steps - updates_before, metrics)

    def _rows(self, batch: SegmentBatch, progress: Progress) -> BatchRows:
        config, columns = self._config, batch.columns
        floats = self._obs.normalise(batch, progress.version) if config.normalise_obs else None
        # torch.tensor copies into memory that torch has aligned: kernels pick their path by alignment.
        inputs = self._input(
            self._tensor(columns["obs"]).flatten(0, 1), None if floats is None else self._tensor(floats).flatten(0, 1)
        )
        steps, envs = columns["reward"].shape
        value = self._critic.run(inputs).cpu().numpy().reshape(steps + 1, envs)
        reward = self._reward.merge_and_normalise(batch) if config.normalise_reward else columns["reward"]
        flags = (columns["terminated"], columns["truncated"], columns["valid"])
        advantage = generalised_advantages(reward, value, *flags, config.gamma, config.gae_lambda)
        index = np.flatnonzero(columns["valid"])
        targets = (advantage, advantage + value[:-1], value[:-1])
        return BatchRows(
            inputs.index_select(0, self._tensor(index)),
            self._policy.encode(self._tensor(columns["action"].reshape(steps * envs, -1)[index])),
            self._tensor(columns["log_prob"].reshape(-1)[index]),
            *(self._tensor(column.reshape(-1)[index]) for column in targets),
        )

    def _tensor(self, array: Array) -> Tensor:
        return torch.tensor(array, device=self._device)

    def _train(self, rows: BatchRows, coefficients: Coefficients, seed: int) -> dict[str, float]:
        minibatches = -(-rows.size // self._config.minibatch_size)
        generator = stream(seed, "shuffle", index=self._adam.steps)
        if minibatches == 1:
            prepared = self._normalise_advantage(rows)
            for _ in range(self._config.epochs - 1):
                self._update(prepared, coefficients)
            return self._update(prepared, coefficients, measure=True)
        for epoch in range(self._config.epochs):
            order = self._tensor(generator.permutation(rows.size))
            last = epoch == self._config.epochs - 1
            measured = [
                self._update(self._normalise_advantage(rows.select(part)), coefficients, measure=last)
                for part in torch.tensor_split(order, minibatches)
            ]
        return {name: float(np.mean([m[name] for m in measured])) for name in measured[0]}

    def _normalise_advantage(self, rows: BatchRows) -> BatchRows:
        if not self._config.normalise_advantage or rows.size < 2:
            return rows
        deviation, mean = torch.std_mean(rows.advantage)
        return rows._replace(advantage=(rows.advantage - mean) / (deviation + 1e-8))

    def _update(self, rows: BatchRows, coefficients: Coefficients, measure: bool = False) -> dict[str, float]:
        config, policy = self._config, self._policy
        log_ratio = policy.log_prob(rows.obs, rows.action) - rows.log_prob
        ratio = log_ratio.exp()
        surrogate = clipped_surrogate(ratio, rows.advantage, coefficients.clip)
        policy.backward(surrogate.grad, -config.ent_coef)
        value = self._critic.forward(rows.obs).squeeze(1)
        error = value_loss(value, rows.old_value, rows.value_target, config.value_clip)
        self._critic.backward(error.grad.mul_(config.vf_coef).unsqueeze(1))
        grad = self._parameters.flat_grad
        norm = clip_by_norm(grad, config.max_grad_norm)
        check_norm("the gradient's norm", norm, self._adam.steps)
        self._adam.step(grad, coefficients.learning_rate)
        if not measure:
            return {}
        return {
            "loss/policy": float(surrogate.per_row.mean()),
            "loss/value": float(error.per_row.mean()),
            "entropy": float(policy.entropy()),
            "approx_kl": float(approximate_kl(log_ratio)),
            "clip_fraction": float(((ratio - 1.0).abs() > coefficients.clip).float().mean()),
            "grad_norm/policy": norm,
        }

    def _check_ratio(self, rows: BatchRows) -> None:
        ratio = (self._policy.log_prob(rows.obs, rows.action) - rows.log_prob).exp()
        deviation = float((ratio - 1.0).abs().max())
        if not deviation <= self._policy.ratio_tolerance:
            raise TrainingFailed(
                f"the probability ratio of the first minibatch differs from 1 by {deviation:.3g} (limit "
                f"{self._policy.ratio_tolerance:g}): worker and learner disagree on version, statistics or arithmetic"
            )

    def weights(self) -> dict[str, Array]:
        """The network's tensors, and `obs_mean` and `obs_scale` when observations are normalised."""
        statistics = self._obs.published() if self._config.normalise_obs else {}
        return self._parameters.arrays() | statistics

    def network_names(self) -> tuple[str, ...]:
        return tuple(self._parameters.tensors)

    def state(self) -> dict[str, Array]:
        """Adam's moments and count, and the statistics."""
        return self._adam.state() | self._obs.state() | self._reward.state()

    def load_state(self, weights: Weights, state: Weights) -> None:
        self._parameters.load(weights)
        self._adam.load_state(state)
        self._obs.load_state(state)
        self._reward.load_state(state)
