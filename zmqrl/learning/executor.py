"""Runs an update: the algorithm's function of a batch, which steps groups of a `Net`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeAlias

from zmqrl.errors import ConfigError
from zmqrl.learning.base import Report, log_report
from zmqrl.learning.net import Net
from zmqrl.loading import Tensor, torch

Batch: TypeAlias = "Mapping[str, Tensor]"
Update: TypeAlias = "Callable[..., Mapping[str, Tensor]]"
"""`update(batch, **variant)`: steps groups, and returns metrics and what else the caller wants. It reads numbers that
change from one call to the next from `batch` alone. `variant` are constants, such as `actor=True`."""


class Executor(ABC):
    """One way to run updates. One thread."""

    def __init__(self, net: Net) -> None:
        self.net = net

    @abstractmethod
    def run(self, update: Update, batch: Batch, rates: Mapping[str, Tensor], **variant: bool) -> dict[str, Tensor]:
        """What `update` returned, and the norm of each gradient, all detached.

        Args:
            update: The function.
            batch: What it is called with.
            rates: Learning rate of each group, `[]` float64.
            variant: Constants of the function; each combination is a graph of its own.
        """


class EagerExecutor(Executor):
    """Autograd, operation by operation."""

    def run(self, update: Update, batch: Batch, rates: Mapping[str, Tensor], **variant: bool) -> dict[str, Tensor]:
        with torch.enable_grad(), self.net.running(rates) as norms:
            results = update(batch, **variant)
            return {name: value.detach() for name, value in {**results, **norms}.items()}


def make_executor(name: str, net: Net, report: Report = log_report) -> Executor:
    """The executor that `learner.executor` names."""
    if name == "eager":
        return EagerExecutor(net)
    if name == "compiled" and net.device.startswith("cuda"):
        from zmqrl.learning.captured import CapturedExecutor

        return CapturedExecutor(net, report=report)
    if name in ("traced", "compiled"):
        from zmqrl.learning.compiled import CompiledExecutor, TracedExecutor

        return TracedExecutor(net, report) if name == "traced" else CompiledExecutor(net, report=report)
    raise ConfigError("eager and compiled are known", key=("learner", "executor"), value=repr(name))
