"""Optimisers as plain data. Each steps the flat tensors of a group in place, by operations that a graph can repeat."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from zmqrl.errors import check_field
from zmqrl.loading import Tensor, torch


@dataclass(frozen=True)
class Optimiser(ABC):
    """A rule that moves parameters by their gradient. Its state is in tensors that the net owns."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of its tensors; each is as long as the parameters, and 0 before the first step."""
        return ()

    @abstractmethod
    def step(self, parameters: Tensor, grad: Tensor, state: Mapping[str, Tensor], steps: Tensor, rate: Tensor) -> None:
        """Move `parameters [n]` by `grad [n]`, all in place. No branch depends on the value of a tensor.

        Args:
            parameters: What is trained.
            grad: Its gradient, clipped.
            state: The tensors `[n]` that `tensors` names.
            steps: `[]` float64, the number of steps with this one.
            rate: `[]` float64, the learning rate. A Python number would stay as it was in a recorded step.
        """


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        two = isinstance(self.betas, (tuple, list)) and len(self.betas) == 2
        check_field(self, "betas", two and all(0.0 <= beta < 1.0 for beta in self.betas), "must be two in [0, 1)")
        check_field(self, "epsilon", self.epsilon > 0.0, "must be above 0")

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("mean", "square")

    def step(self, parameters: Tensor, grad: Tensor, state: Mapping[str, Tensor], steps: Tensor, rate: Tensor) -> None:
        mean, square = self._moments(grad, state)
        first, second = self.betas
        deviation = square.sqrt().div_((1.0 - torch.pow(second, steps)).sqrt()).add_(self.epsilon)
        parameters.sub_((mean / deviation).mul_(rate / (1.0 - torch.pow(first, steps))))

    def _moments(self, grad: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        first, second = self.betas
        state["mean"].lerp_(grad, 1.0 - first)
        state["square"].mul_(second).addcmul_(grad, grad, value=1.0 - second)
        return state["mean"], state["square"]


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay apart from the gradient (Loshchilov & Hutter 2019)."""

    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_field(self, "weight_decay", self.weight_decay >= 0.0, "must be at least 0")

    def step(self, parameters: Tensor, grad: Tensor, state: Mapping[str, Tensor], steps: Tensor, rate: Tensor) -> None:
        parameters.mul_(1.0 - rate * self.weight_decay)
        super().step(parameters, grad, state, steps, rate)


@dataclass(frozen=True)
class RAdam(Adam):
    """Rectified Adam (Liu et al. 2020, algorithm 2): without second moments while their variance is too large."""

    def step(self, parameters: Tensor, grad: Tensor, state: Mapping[str, Tensor], steps: Tensor, rate: Tensor) -> None:
        mean, square = self._moments(grad, state)
        first, second = self.betas
        power, longest = torch.pow(second, steps), 2.0 / (1.0 - second) - 1.0
        length = longest - 2.0 * steps * power / (1.0 - power)
        share = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        adaptive = (share * (1.0 - power)).sqrt() / (square.sqrt() + self.epsilon)
        scale = torch.where(length > 5.0, adaptive, 1.0)
        parameters.sub_((mean * scale).mul_(rate / (1.0 - torch.pow(first, steps))))


@dataclass(frozen=True)
class RMSProp(Optimiser):
    """RMSProp (Tieleman & Hinton 2012, lecture 6.5); `centred` subtracts the squared mean (Graves 2013, section 2)."""

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centred: bool = False

    def __post_init__(self) -> None:
        check_field(self, "alpha", 0.0 <= self.alpha < 1.0, "must be in [0, 1)")
        check_field(self, "epsilon", self.epsilon > 0.0, "must be above 0")
        check_field(self, "momentum", 0.0 <= self.momentum < 1.0, "must be in [0, 1)")

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("square", *(("mean",) if self.centred else ()), *(("velocity",) if self.momentum else ()))

    def step(self, parameters: Tensor, grad: Tensor, state: Mapping[str, Tensor], steps: Tensor, rate: Tensor) -> None:
        square = state["square"].mul_(self.alpha).addcmul_(grad, grad, value=1.0 - self.alpha)
        if self.centred:
            mean = state["mean"].lerp_(grad, 1.0 - self.alpha)
            square = torch.addcmul(square, mean, mean, value=-1.0).clamp_(min=0.0)  # rounding may make it negative
        change = grad / square.sqrt().add_(self.epsilon)
        if self.momentum:
            change = state["velocity"].mul_(self.momentum).add_(change)
        parameters.sub_(change * rate)


@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent; with `momentum` in the form of Sutskever et al. 2013, section 2."""

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_field(self, "momentum", 0.0 <= self.momentum < 1.0, "must be in [0, 1)")
        check_field(self, "nesterov", not self.nesterov or self.momentum > 0.0, "needs momentum above 0")

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def step(self, parameters: Tensor, grad: Tensor, state: Mapping[str, Tensor], steps: Tensor, rate: Tensor) -> None:
        if self.momentum:
            velocity = state["velocity"].mul_(self.momentum).add_(grad)
            grad = grad + self.momentum * velocity if self.nesterov else velocity
        parameters.sub_(grad * rate)
