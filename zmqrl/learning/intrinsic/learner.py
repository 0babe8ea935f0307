"""Trains the network of an intrinsic reward, and adds its rewards to what an algorithm trains on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from zmqrl.learning.base import LearnerContext, Progress, check_norm
from zmqrl.learning.executor import Batch, make_executor
from zmqrl.learning.groups import Group
from zmqrl.learning.intrinsic.base import ENV_REWARD, Intrinsic, IntrinsicSection
from zmqrl.learning.net import NORM, Net
from zmqrl.learning.optimisers import SGD
from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.initial import initial_weights
from zmqrl.ops.running_stats import RunningStats
from zmqrl.random_streams import stream
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, Weights

MOST_DEVIATIONS = 5.0
"""Bound of observations in deviations (Burda et al. 2018, section 2.4)."""


class IntrinsicLearner:
    """A part of a learner: full checkpoints hold its network, its optimiser and its statistics."""

    def __init__(self, intrinsic: Intrinsic, section: IntrinsicSection, context: LearnerContext) -> None:
        self._intrinsic, self._section, self._context = intrinsic, section, context
        spec, fixed = intrinsic.network(), tuple(sorted(intrinsic.fixed))
        trained = Group("trained", tuple(name for name, _ in spec.towers if name not in fixed))
        groups = (trained, *([Group("fixed", fixed, optimiser=SGD())] if fixed else []))
        self._net = Net(spec, groups, initial_weights(spec, context.seed), context.device, context.precision)
        self._executor = make_executor(context.executor, self._net, context.report)
        self._rewards, self._obs = RunningStats.empty(1), RunningStats.empty(0)
        self._measured: Mapping[str, Tensor] = {}
        self._mean = 0.0

    def rewarded(self, batch: Batch) -> dict[str, Tensor]:
        """A batch of replay with the sum of both rewards, of transitions or of sequences. Train on its steps."""
        if "next_obs" in batch:
            name, rows = "n_step_return", {key: batch[key] for key in ("obs", "action", "next_obs")}
            valid = torch.ones_like(batch[name], dtype=torch.bool)
        else:
            name, valid = "reward", batch["valid"].flatten(0, 1)
            found = {"obs": batch["obs"][:, :-1], "action": batch["action"], "next_obs": batch["obs"][:, 1:]}
            rows = {key: column.flatten(0, 1) for key, column in found.items()}
        rows, bonus = self._take(rows, valid)
        self._train(rows)
        return {**batch, name: batch[name] + bonus.reshape(batch[name].shape)}

    def learn(self, batch: SegmentBatch, observations: Callable[[Array], Tensor], progress: Progress) -> SegmentBatch:
        """Segments with the sum of both rewards. Train on each of their valid rows once.

        Args:
            batch: The segments.
            observations: Function that makes network inputs of stored observations.
            progress: Names the order of the rows.
        """
        columns, obs = batch.columns, observations(batch.columns["obs"])
        found = {"obs": obs[:-1], "action": self._tensor(columns["action"]), "next_obs": obs[1:]}
        valid = self._tensor(columns["valid"].reshape(-1))
        rows, bonus = self._take({name: column.flatten(0, 1) for name, column in found.items()}, valid)
        order = np.flatnonzero(columns["valid"])
        stream(self._context.seed, "intrinsic", index=progress.updates).shuffle(order)
        for part in np.array_split(order, -(-len(order) // self._section.batch_size) or 1):
            if len(part):
                index = self._tensor(part)
                self._train({name: column.index_select(0, index) for name, column in rows.items()})
        reward = columns["reward"] + bonus.reshape(columns["reward"].shape).cpu().numpy()
        return replace(batch, columns={**columns, "reward": reward, ENV_REWARD: columns["reward"]})

    def metrics(self, updates: int) -> dict[str, float]:
        """Metrics of this round, before which `updates` were done. TrainingFailed: a gradient was not finite."""
        found = {f"intrinsic/{name}": float(value) for name, value in self._measured.items()}
        for name, value in found.items():
            if NORM in name:
                check_norm(name, value, updates)
        return {"intrinsic/reward": self._mean, **found}

    def state(self) -> dict[str, Array]:
        """For FULL."""
        return {**self._net.weights(), **self._net.state(), **self._rewards.state("reward."), **self._obs.state("obs.")}

    def load_state(self, state: Weights) -> None:
        """Back to what `state` gave."""
        self._net.load_state(state, state)
        self._rewards, self._obs = (RunningStats.load(state, prefix) for prefix in ("reward.", "obs."))

    def _take(self, rows: Batch, valid: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """What is trained on, and the scaled rewards `[B]`, 0 where a row is not valid. Statistics take the rows in."""
        counts = valid.cpu().numpy()
        if rows["obs"].is_floating_point():
            self._obs = _merged(self._obs, rows["next_obs"].flatten(1), counts)
        found = {**rows, "valid": valid.float(), **{name: self._whitened(rows[name]) for name in ("obs", "next_obs")}}
        with torch.no_grad():
            rewards = self._intrinsic.rewards(self._net, found)
        self._rewards = _merged(self._rewards, rewards.unsqueeze(1), counts)
        bonus = rewards * found["valid"] * (self._section.weight * float(self._rewards.scale[0]))
        self._mean = float(bonus.sum() / found["valid"].sum().clamp(min=1.0))
        return found, bonus

    def _train(self, rows: Batch) -> None:
        rate = torch.tensor(self._section.learning_rate, dtype=torch.float64, device=self._context.device)
        self._measured = self._executor.run(self._update, rows, dict.fromkeys(self._net.groups, rate))

    def _update(self, rows: Batch) -> dict[str, Tensor]:
        loss = (self._intrinsic.losses(self._net, rows) * rows["valid"]).sum() / rows["valid"].sum().clamp(min=1.0)
        self._net.step("trained", loss)
        return {"loss": loss}

    def _whitened(self, obs: Tensor) -> Tensor:
        """Bytes of images stay as they are: networks scale them."""
        if not obs.is_floating_point() or not self._obs.count:
            return obs
        mean, scale = (self._tensor(array.astype(np.float32)) for array in (self._obs.mean, self._obs.scale))
        flat = ((obs.flatten(1) - mean) * scale).clamp(-MOST_DEVIATIONS, MOST_DEVIATIONS)
        return flat.reshape(obs.shape)

    def _tensor(self, array: Array) -> Tensor:
        return torch.tensor(array, device=self._context.device)


def _merged(stats: RunningStats, rows: Tensor, counts: Array) -> RunningStats:
    known = stats if stats.count else RunningStats.empty(rows.shape[1])
    return known.merge(rows.cpu().numpy()[counts])
