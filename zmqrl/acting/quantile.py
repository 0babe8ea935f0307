"""Acting with quantiles of the return: the mean of each action's quantiles is its q value."""

from __future__ import annotations

from zmqrl.acting.base import ActingContext
from zmqrl.acting.heads import EpsilonGreedy
from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError
from zmqrl.types import Array


class QuantileGreedy(EpsilonGreedy):
    """Head `epsilon_greedy` for outputs `[N, n * quantiles]`, those of action 0 first. Option `quantiles`: how many."""

    takes = EpsilonGreedy.takes | {"quantiles"}

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        """ConfigError without the option."""
        super().__init__(spec, rows)
        if spec.options.get("quantiles", 0) < 1:
            raise ConfigError(f"head {spec.head!r} needs the option quantiles, at least 1")
        self._shape = (rows, spec.action.n, int(spec.options["quantiles"]))

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        return super().act(outputs.reshape(self._shape).mean(2), t, context)

    def act_greedily(self, outputs: Array) -> Array:
        return super().act_greedily(outputs.reshape(self._shape).mean(2))
