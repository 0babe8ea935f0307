"""DQN's learner: one sampled minibatch per update."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zmqrl.algorithms.base import LearnerContext, LearnResult, OffPolicyLearner, Progress
from zmqrl.algorithms.q_learning.base import QLearningAlgorithm
from zmqrl.learning.base import check_norm
from zmqrl.learning.schedule import value_at
from zmqrl.networks.initial import parameter_shapes
from zmqrl.networks.module import FlatParameters, Tower
from zmqrl.networks.torch_input import TorchInput
from zmqrl.ops.manual import FlatAdam, clip_by_norm, double_q_target, half_square, huber, q_target
from zmqrl.replay.base import Replay, ReplaySample, SegmentBatch
from zmqrl.types import Array, Weights


class ManualDQNLearner(OffPolicyLearner):
    """One thread, no waiting. Gradients are written out (`zmqrl.ops`, `zmqrl.networks`); autograd is not used."""

    def __init__(self, algorithm: QLearningAlgorithm, context: LearnerContext) -> None:
        weights, device = context.weights, context.device
        self._config, self._device = algorithm.config, device
        network = algorithm.network()
        shapes = parameter_shapes(network)
        self._online, self._target = FlatParameters(shapes, device), FlatParameters(shapes, device)
        self._q = Tower(network.tower("q"), self._online)
        self._target_q = Tower(network.tower("q"), self._target)
        self._adam = FlatAdam(self._online.flat, epsilon=self._config.adam_epsilon, weight_decay=self._config.decay)
        self._input = TorchInput(algorithm.input, algorithm.env.observation)
        self._loss = huber if self._config.loss == "huber" else half_square
        self._online.load(weights)
        self._target.load(weights)

    def observe(self, batch: SegmentBatch) -> None:
        """DQN keeps no statistics of observations."""
        del batch

    @torch.inference_mode()
    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        """Do `updates` updates; `TrainingFailed` when the gradient is not finite."""
        config = self._config
        if config.prioritised is not None:
            section = config.prioritised
            replay.anneal(section.beta + progress.fraction * (section.beta_end - section.beta))
        metrics: dict[str, float] = {}
        rate = value_at(config.learning_rate, progress)
        for number in range(progress.updates, progress.updates + updates):
            sample = replay.sample(config.batch_size, config.n_step, config.gamma, number)
            metrics = self._update(replay, sample, rate, measure=number == progress.updates + updates - 1)
            if (number + 1) % config.target_update_every == 0:
                self._update_target()
        return LearnResult(updates, metrics | {"epsilon": value_at(config.epsilon, progress)})

    def _update(self, replay: Replay, sample: ReplaySample, rate: float, measure: bool) -> dict[str, float]:
        config, grad = self._config, self._online.flat_grad
        target = self._targets(sample)
        q = self._q.forward(self._observed(sample.obs))
        action = self._tensor(sample.action, torch.int64).unsqueeze(1)
        error = q.gather(1, action).squeeze(1) - target
        loss, slope = self._loss(error)
        if config.prioritised is not None:
            weight = self._tensor(sample.weight, torch.float32)
            loss, slope = loss * weight, slope * weight
            replay.set_priorities(sample, error.cpu().numpy())
        by_q = torch.zeros_like(q).scatter_(1, action, slope.mul_(1.0 / len(sample.rows)).unsqueeze(1))
        self._q.backward(by_q)
        norm = clip_by_norm(grad, math.inf if config.max_grad_norm is None else config.max_grad_norm)
        check_norm("the gradient's norm", norm, self._adam.steps)
        self._adam.step(grad, rate)
        return {**self._measure(loss, error, q, norm), "learning_rate": rate} if measure else {}

    def _targets(self, sample: ReplaySample) -> Tensor:
        next_obs = self._observed(sample.next_obs)
        n_step_return = self._tensor(sample.n_step_return, torch.float32)
        discount = self._tensor(sample.discount, torch.float32)
        next_q = self._target_q.run(next_obs)
        if self._config.double:
            return double_q_target(n_step_return, discount, next_q, self._q.run(next_obs))
        return q_target(n_step_return, discount, next_q)

    def _measure(self, loss: Tensor, error: Tensor, q: Tensor, norm: float) -> dict[str, float]:
        return {
            "loss/q": float(loss.mean()),
            "td_error": float(error.abs().mean()),
            "q_mean": float(q.mean()),
            "grad_norm/q": norm,
        }

    def _update_target(self) -> None:
        if self._config.target_tau is None:
            self._target.flat.copy_(self._online.flat)
        else:
            self._target.flat.lerp_(self._online.flat, self._config.target_tau)

    def _observed(self, obs: Array) -> Tensor:
        return self._input(torch.tensor(obs, device=self._device))

    def _tensor(self, array: Array, dtype: torch.dtype) -> Tensor:
        # Copied into memory that torch has aligned: kernels pick their path by alignment.
        return torch.tensor(array, dtype=dtype, device=self._device)

    def weights(self) -> dict[str, Array]:
        """The online network's tensors."""
        return self._online.arrays()

    def network_names(self) -> tuple[str, ...]:
        return tuple(self._online.tensors)

    def state(self) -> dict[str, Array]:
        """Adam's moments and count, and the target network as `target.<name>`."""
        return self._adam.state() | {f"target.{name}": value for name, value in self._target.arrays().items()}

    def load_state(self, weights: Weights, state: Weights) -> None:
        self._online.load(weights)
        self._target.load({name: state[f"target.{name}"] for name in self._target.tensors})
        self._adam.load_state(state)
