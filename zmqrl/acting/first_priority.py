"""First priorities of replay that workers compute, as in Ape-X (Horgan et al. 2018, section 3 and appendix F)."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.acting.base import ActingContext
from zmqrl.acting.heads import EpsilonGreedy
from zmqrl.loading import np
from zmqrl.types import Array


class FirstPriority(EpsilonGreedy):
    """Head `epsilon_greedy` that also fills the extra `priority`: the absolute TD error, with the q values of acting.

    Options: `gamma`, and `n_step`, the rewards of a target, which ends with the episode or the segment as in replay.
    """

    takes = EpsilonGreedy.takes | {"gamma", "n_step"}
    fills = frozenset({"priority"})

    def complete(self, outputs: Array, columns: Mapping[str, Array], context: ActingContext) -> None:
        gamma, steps = self.spec.options["gamma"], int(self.spec.options["n_step"])
        continues = ~(columns["terminated"] | columns["truncated"])
        continues[-1] = False
        best = ahead = outputs[1:].max(2)
        for _ in range(steps):
            target = columns["reward"] + gamma * ~columns["terminated"] * ahead
            ahead = np.where(continues, np.roll(target, -1, axis=0), best)
        taken = np.take_along_axis(outputs[:-1], columns["action"][..., None], axis=2).squeeze(2)
        context.extras["priority"][...] = np.abs(target - taken)
