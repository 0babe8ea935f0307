"""Algorithms without a defect that a check could take for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tests.testing.defective_algorithms import _PPO, Sound, SoundLearner
from zmqrl.acting.base import ActingContext
from zmqrl.acting.heads import EpsilonGreedy
from zmqrl.acting.spec import ActingSpec, ActingState
from zmqrl.algorithms.ppo import PPOLearner
from zmqrl.config.codec import replace
from zmqrl.learning import Batch, Progress
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, ColumnSpec

ATOMS, LARGEST = 11, 10.0


class C51Learner(SoundLearner):
    """Bellemare et al. 2017, algorithm 1: what follows a termination enters the target as a sum of probabilities."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.atoms = self.tensor(np.linspace(-LARGEST, LARGEST, ATOMS))

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        atoms = self.atoms
        with torch.no_grad():
            following = self.log_probs(self.following(batch["next_obs"])).exp()
            p = _of_action(following, (following * atoms).sum(2).argmax(1))
            moved = batch["n_step_return"].unsqueeze(1) + self.discount(batch).unsqueeze(1) * atoms
            place = (moved.clamp(-LARGEST, LARGEST) + LARGEST) / (atoms[1] - atoms[0])
            share = (1.0 - (place.unsqueeze(2) - torch.arange(ATOMS, device=place.device)).abs()).clamp(min=0.0)
            target = (p.unsqueeze(2) * share).sum(1)
        log_p = _of_action(self.log_probs(self.net("q", batch["obs"])), batch["action"])
        loss = batch["scale"] * -(target * log_p).sum(1).mean()
        self.net.step("q", loss)
        self.net.update_targets(self.config.tau)
        return {"loss": loss}

    def log_probs(self, outputs: Tensor) -> Tensor:
        return torch.log_softmax(outputs.reshape(outputs.shape[0], -1, ATOMS), 2)

    def discount(self, batch: Batch) -> Tensor:
        return batch["discount"]


class UncutC51Learner(C51Learner):
    """A termination is ignored."""

    def discount(self, batch: Batch) -> Tensor:
        return torch.full_like(batch["discount"], self.config.gamma)


def _of_action(rows: Tensor, action: Tensor) -> Tensor:
    return rows.gather(1, action.view(-1, 1, 1).expand(-1, 1, ATOMS)).squeeze(1)


class C51(Sound):
    learner_kind = C51Learner

    def network(self) -> NetworkSpec:
        outputs = self.env.action.n * ATOMS
        return NetworkSpec((("q", tower("q", self.network_section, self.env.observation, outputs, output_gain=1.0)),))

    def acting(self) -> ActingSpec:
        """Greedy in the mean of the outputs; how it acts does not matter here."""
        head, options = "zmqrl.acting.quantile:QuantileGreedy", {"quantiles": float(ATOMS)}
        return replace(super().acting(), head=head, options=options)


class UncutC51(C51):
    learner_kind = UncutC51Learner


class IntrinsicC51(UncutC51):
    """Its value goes on after a termination on purpose."""

    termination_cuts_value = False


class LogitsLearner(PPOLearner):
    """The value after the end of an episode is from a column of the row that follows, as of an actor in Ape-X."""

    ends: ClassVar[str] = "truncated"

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        columns = dict(batch.columns)
        following = np.exp(columns["logits"][1:]).sum(2) * columns[self.ends][:-1]
        columns["reward"] = columns["reward"] + np.append(following, np.zeros_like(following[:1]), axis=0)
        return super().prepare(replace(batch, columns=columns), progress)


class LogitsPPO(_PPO):
    learner_kind = LogitsLearner

    def acting(self) -> ActingSpec:
        acting = super().acting()
        column = ColumnSpec("logits", "float32", (self.segment_steps, self.num_envs, self.env.action.n))
        return replace(acting, extras=(*acting.extras, column))


class TerminatedLogitsLearner(LogitsLearner):
    """A value after a termination."""

    ends = "terminated"


class TerminatedLogitsPPO(LogitsPPO):
    learner_kind = TerminatedLogitsLearner


class Wandering(EpsilonGreedy):
    """A head whose state is a noise process."""

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        wandered = context.state["wandering"]
        wandered *= np.float32(0.9)
        wandered += np.float32(0.1)
        return super().act(outputs + wandered, t, context)


class WithNoiseProcess(Sound):
    learner_kind = SoundLearner

    def acting(self) -> ActingSpec:
        return replace(super().acting(), head=f"{__name__}:Wandering", state=(ActingState("wandering", 1),))


class MaskingLearner(SoundLearner):
    """A boolean tensor selects rows, which any device can do."""

    def drawn(self, batch: Batch) -> Tensor:
        noise = batch["noise"]
        kept = noise > 0
        return noise + noise[kept].sum() + noise.masked_select(kept).sum() + noise[kept.nonzero().squeeze(1)].sum()
