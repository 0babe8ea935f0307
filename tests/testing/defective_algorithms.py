"""Algorithms with one defect each, as users make them. `Sound` is what their learners are before the defect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.ppo import PPO, PPOLearner
from zmqrl.config.codec import replace
from zmqrl.learning import PRIORITY, Batch, Group, LearnerContext, LearnResult, Progress, ReplayLearner, Schedule
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import categorical
from zmqrl.replay.base import Replay, SegmentBatch
from zmqrl.spaces import SpaceKind
from zmqrl.types import MODES, Array, ModeName

SCALE = Schedule(1.0, 0.5)


@dataclass(frozen=True)
class SoundConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.9
    batch_size: int = 32
    tau: float = 0.05
    scale: Schedule = SCALE


class Sound(Algorithm):
    """Q-learning whose targets are softened by noise."""

    Config: ClassVar[type[SoundConfig]] = SoundConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"discrete"})
    learner_kind: ClassVar[type[SoundLearner]]

    def network(self) -> NetworkSpec:
        layers = tower("q", self.network_section, self.env.observation, self.env.action.n, output_gain=1.0)
        return NetworkSpec((("q", layers),))

    def acting(self) -> ActingSpec:
        layers = self.network().tower("q")
        return ActingSpec(layers, "epsilon_greedy", self.env.action, self.env.observation, input=self.input)

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        return {"epsilon": 0.2}

    def learner(self, context: LearnerContext) -> ReplayLearner:
        return self.learner_kind(self, context, [Group("q", target=self.learner_kind.target)])


class SoundLearner(ReplayLearner):
    target: ClassVar[bool | tuple[str, ...]] = True

    def noise(self) -> Mapping[str, tuple[int, ...]]:
        return {"noise": ()}

    def numbers(self, progress: Progress) -> Mapping[str, float]:
        return {"scale": self.config.scale.at(progress.fraction)}

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        with torch.no_grad():
            following = self.following(batch["next_obs"]).max(1).values
            target = batch["n_step_return"] + batch["discount"] * following + 0.01 * self.drawn(batch)
        q = self.net("q", batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        loss = self.scale(batch) * (q - target).square().mean()
        self.net.step("q", loss)
        self.net.update_targets(self.config.tau)
        return {"loss": loss}

    def following(self, obs: Tensor) -> Tensor:
        return self.net("q", obs, target=True)

    def drawn(self, batch: Batch) -> Tensor:
        return batch["noise"]

    def scale(self, batch: Batch) -> Tensor:
        return batch["scale"]


Sound.learner_kind = SoundLearner


class WrongPriorities(SoundLearner):
    """One number in place of one per row."""

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        return {**super().train(batch), PRIORITY: torch.ones(1)}


class Copying(SoundLearner):
    """The target network is set to the network after each update."""

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        results = super().train(batch)
        self.net.update_targets()
        return results


class Unread(SoundLearner):
    """`target=True` is missing: the following values are those of the network itself."""

    def following(self, obs: Tensor) -> Tensor:
        return self.net("q", obs)


class UnreadOld(SoundLearner):
    """No loss reads the second target."""

    target = ("target", "old")


class CopyingOld(UnreadOld):
    """The second target is set to the network after each update."""

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        results = super().train(batch)
        self.net.update_targets(target="old")
        return results


class Forgetful(SoundLearner):
    """A moment of the optimiser is not in the checkpoint."""

    def state(self) -> dict[str, Array]:
        return {name: array for name, array in super().state().items() if not name.endswith("square")}

    def load_state(self, weights: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        super().load_state(weights, {**super().state(), **state})


class GlobalRandom(SoundLearner):
    """Draws from torch's global generator."""

    def drawn(self, batch: Batch) -> Tensor:
        return torch.randn_like(batch["noise"])


class FrozenSchedule(SoundLearner):
    """A schedule is a Python float."""

    factor = 1.0

    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        self.factor = 1.0 - 10.0 * progress.fraction
        return super().update(replay, updates, progress)

    def scale(self, batch: Batch) -> Tensor:
        return batch["scale"] * self.factor


class NeverAnnealed(SoundLearner):
    """A schedule keeps the value of its start."""

    def numbers(self, progress: Progress) -> Mapping[str, float]:
        return {"scale": self.config.scale.at(0.0)}


class OtherDevice(SoundLearner):
    """A tensor is made on the CPU, wherever the others are."""

    def drawn(self, batch: Batch) -> Tensor:
        return batch["noise"] * torch.linspace(0.0, 1.0, len(batch["noise"]))


class ReadsFromDevice(SoundLearner):
    """numpy reads a tensor where it is."""

    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        self.net.parameter("q.0.weight").detach().numpy()
        return super().update(replay, updates, progress)


class ShapedByValue(SoundLearner):
    """How many values are left is known on the device alone."""

    def drawn(self, batch: Batch) -> Tensor:
        return batch["noise"] + torch.unique(batch["noise"]).sum()


class Uncut(SoundLearner):
    """A termination is ignored."""

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        return super().train({**batch, "discount": torch.full_like(batch["discount"], self.config.gamma)})


def with_learner(learner: type[ReplayLearner]) -> type[Sound]:
    return type(learner.__name__, (Sound,), {"learner_kind": learner, "__module__": __name__})


class _PPO(PPO):
    learner_kind: ClassVar[type[PPOLearner]]
    executors = ("eager", "compiled")

    def learner(self, context: LearnerContext) -> PPOLearner:
        return self.learner_kind(self, context)


class Terminating(PPOLearner):
    """A truncation is a termination."""

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        columns = dict(batch.columns)
        columns["terminated"] = columns["terminated"] | columns["truncated"]
        columns["truncated"] = np.zeros_like(columns["truncated"])
        return super().prepare(replace(batch, columns=columns), progress)


class TrainsResets(PPOLearner):
    """Rows that only reset are trained like others."""

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        columns = dict(batch.columns)
        columns["valid"] = np.ones_like(columns["valid"])
        return super().prepare(replace(batch, columns=columns), progress)


class OtherLogProbs(PPOLearner):
    """The old log-probabilities are those of the version that is trained, not of the one that acted."""

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        rows = super().prepare(batch, progress)
        log_prob, _ = categorical(self.net("actor", rows["obs"]), rows["action"])
        return {**rows, "log_prob": log_prob}


class SlowFrozenSchedule(PPOLearner):
    """The weight of the entropy bonus goes from 0.001 to 0 over the run, as a Python float."""

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        self.config = replace(self.config, ent_coef=1e-3 * (1.0 - progress.fraction))
        return super().learn(batch, progress)


def ppo_with(learner: type[PPOLearner]) -> type[_PPO]:
    return type(learner.__name__, (_PPO,), {"learner_kind": learner, "__module__": __name__})
