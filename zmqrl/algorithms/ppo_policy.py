"""PPO's actor: a tower, the distribution on top of it, and the way back from log-probabilities to gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zmqrl.acting.spec import NetworkSpec
from zmqrl.networks.flat import FlatParameters
from zmqrl.networks.module import Tower
from zmqrl.ops.categorical import Categorical
from zmqrl.ops.gaussian import Gaussian
from zmqrl.types import SpaceSpec


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
        self._distribution, self._action = Categorical(self._tower.forward(obs)), action
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
        """As float32 `[B, A]`."""
        return action.float().view(-1, self._size)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-densities `[B]` of encoded actions."""
        self._distribution, self._action = Gaussian(self._tower.forward(obs), self._log_std), action
        return self._distribution.log_prob(action)

    def entropy(self) -> Tensor:
        """Entropy of the last `log_prob`."""
        return self._distribution.entropy()

    def backward(self, by_log_prob: Tensor, by_entropy: float) -> None:
        """Write the gradients, given the loss's by each log-density `[B]` and by the entropy."""
        by_mean, by_log_std = self._distribution.grads(self._action, by_log_prob, by_entropy)
        self._tower.backward(by_mean)
        self._log_std_grad.copy_(by_log_std)
