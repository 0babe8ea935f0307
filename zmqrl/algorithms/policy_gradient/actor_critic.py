"""The learner of a policy gradient with a critic: values, targets, and sequences for memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from zmqrl.algorithms.base import LearnerContext, Progress
from zmqrl.algorithms.policy_gradient.learner import PolicyLearner
from zmqrl.algorithms.policy_gradient.memory import STATE, CriticState, begins, flat, sequences
from zmqrl.algorithms.policy_gradient.plan import ActorCritic
from zmqrl.learning import Batch, Group, Part
from zmqrl.learning.normalisation import ValueNormaliser, by_segment
from zmqrl.loading import Tensor, np, torch
from zmqrl.ops.returns import explained_variance, generalised_advantages
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import ACTING_STATE, Array


class ActorCriticLearner(PolicyLearner):
    """Values of a batch, and advantages and targets from them. With memory minibatches are whole sequences."""

    algorithm: ActorCritic

    def __init__(self, algorithm: ActorCritic, context: LearnerContext, further: Sequence[Group] = ()) -> None:
        self._value, self._critic_state = ValueNormaliser(context.weights), CriticState()
        has_state = algorithm.memory is not None and not algorithm.config.shared
        parts: dict[str, Part] = {"critic_state": self._critic_state} if has_state else {}
        super().__init__(algorithm, context, {"value": self._value, **parts}, further)

    @property
    def minibatch_size(self) -> int | None:
        """Rows per update; with memory sequences."""
        size, memory = super().minibatch_size, self.algorithm.memory
        return size if size is None or memory is None else max(1, size // memory.sequence)

    def targets(self, batch: SegmentBatch, obs: Tensor, reward: Array, value: Array) -> tuple[Array, Array]:
        """Advantages and targets of the critic, `[T, E]` each, by default of generalised advantage estimation.

        `value [T + 1, E]` is that of `obs [T + 1, E, ...]`; the others are as in `estimate`.
        """
        del obs
        config, columns = self.config, batch.columns
        flags = (columns["terminated"], columns["truncated"], columns["valid"])
        advantage = generalised_advantages(reward, value, *flags, config.gamma, config.gae_lambda)
        return advantage, advantage + value[:-1]

    def estimate(self, batch: SegmentBatch, obs: Tensor, reward: Array) -> dict[str, Array]:
        """Advantages, the targets of the critic, and what it predicted before."""
        normalise_value, valid = self.config.normalise_value, batch.columns["valid"]
        values, states = self.values(obs, batch)
        predicted = values.cpu().numpy()
        value = self._value.restored(predicted) if normalise_value else predicted
        advantage, target = self.targets(batch, obs, reward, value)
        explained = explained_variance(value[:-1][valid], target[valid]) if valid.any() else math.nan
        self.add_metrics({"explained_variance": explained})
        if normalise_value:
            self._value.merge(target[valid])
            target = self._value.normalised(target)
        return {"advantage": advantage, "target": target, "old_value": predicted[:-1], **states}

    def values(self, obs: Tensor, batch: SegmentBatch) -> tuple[Tensor, dict[str, Array]]:
        """What the critic predicts for `obs [T + 1, E, ...]`, `[T + 1, E]`.

        And the states before each sequence, `state.critic [T / k, E, size]`, of a critic with a memory of its own.
        """
        if self.algorithm.memory is None or self.config.shared:
            return self.batch_outputs("critic", obs, batch).reshape(obs.shape[:2]), {}
        core, reset = self.algorithm.core("critic"), self._after_ends(batch)
        is_begin = ~batch.columns[ACTING_STATE + self.algorithm.core("actor")][0].any(1)
        size = self.algorithm.state_size("critic")
        values, states = [], []
        for envs, meta in by_segment(batch):
            held = self._critic_state.before(meta.id.vector_env, is_begin[envs], size)
            found, before = self._unrolled_in_parts(core, obs[:, envs], self.tensor(held), reset[:, envs])
            self._critic_state.keep(meta.id.vector_env, before[-1].cpu().numpy())
            values.append(found)
            states.append(before[:-1])
        return torch.cat(values, 1), {f"{STATE}critic": torch.cat(states, 1).cpu().numpy()}

    def _unrolled_in_parts(self, core: str, obs: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Values `[T + 1, N]` of one segment, and the states before each sequence and before the last row."""
        values, states, every = [], [], self.algorithm.memory.sequence if self.algorithm.memory else 1
        for row in range(0, len(obs), every):
            state = torch.where(reset[row].unsqueeze(1), 0.0, state) if row < len(obs) - 1 else state
            states.append(state)
            rows = slice(row, row + every)
            found, after = self.net.unroll("critic", obs[rows], {core: state}, reset[rows])
            state = after[core]
            values.append(found.squeeze(2))
        return torch.cat(values), torch.stack(states)

    def batch_outputs(self, tower: str, obs: Tensor, batch: SegmentBatch) -> Tensor:
        """Outputs `[(T + 1) E, K]` of `actor` or of `critic`; memory begins with the state before the first row."""
        below = "torso" if self.config.shared else tower
        if self.algorithm.memory is None:
            features = torch.cat([self.net(below, rows) for rows in self._parts(obs.flatten(0, 1))])
        else:
            core = self.algorithm.core(below)
            start = {core: self.tensor(batch.columns[ACTING_STATE + core][0])}
            features = self.net.unroll(below, obs, start, self._after_ends(batch))[0].flatten(0, 1)
        return self.net(tower, features) if self.config.shared else features

    def _parts(self, obs: Tensor) -> Sequence[Tensor]:
        """Rows `[B, ...]` in parts of a minibatch if they are bytes: their floats are the largest array of a round."""
        return torch.split(obs, self.minibatch_size or len(obs)) if obs.dtype == torch.uint8 else (obs,)

    def newest(self, batch: SegmentBatch, obs: Tensor) -> tuple[Tensor, Array]:
        """Outputs of the newest policy for each row `[T * E, K]`, and its log-probability of the action `[T, E]`."""
        rows = {name: self.tensor(column).flatten(0, 1) for name, column in self.acted(batch).items()}
        outputs = self.batch_outputs("actor", obs, batch)[: rows["action"].shape[0]]
        return outputs, self.policy(outputs, rows)[0].reshape(batch.columns["valid"].shape).cpu().numpy()

    def _after_ends(self, batch: SegmentBatch) -> Tensor:
        """Rows `[T + 1, E]` after one that is not valid: their episodes begin."""
        valid = batch.columns["valid"]
        return self.tensor(np.concatenate((np.zeros_like(valid[:1]), ~valid)))

    def select(self, batch: SegmentBatch, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows; with memory sequences `[S, k, ...]`, with the state before the first row and where episodes begin."""
        memory, valid = self.algorithm.memory, batch.columns["valid"]
        if memory is None:
            return super().select(batch, columns)
        acting, every = "torso" if self.config.shared else "actor", memory.sequence
        given = {"valid": valid.astype(np.float32), "reset": begins(valid, every)}
        states = {f"{STATE}{acting}": self.tensor(batch.columns[ACTING_STATE + self.algorithm.core(acting)])}
        found = {**columns, **{name: self.tensor(column) for name, column in given.items()}, **states}
        return {
            name: column.flatten(0, 1) if name.startswith(STATE) else sequences(column, every)
            for name, column in found.items()
        }

    def tower(self, name: str, rows: Batch) -> Tensor:
        """Outputs `[B, K]` of a tower for rows of a minibatch."""
        if self.algorithm.memory is None:
            return self.net(name, rows["obs"])
        obs, reset = rows["obs"].transpose(0, 1), rows["reset"].transpose(0, 1)
        outputs, _ = self.net.unroll(name, obs, {self.algorithm.core(name): rows[f"{STATE}{name}"]}, reset)
        return outputs.transpose(0, 1).flatten(0, 1)

    def both(self, rows: Batch) -> tuple[Tensor, Tensor]:
        """Outputs of the policy `[B, K]` and values `[B]`."""
        if not self.config.shared:
            return self.tower("actor", rows), self.tower("critic", rows).squeeze(1)
        features = self.tower("torso", rows)
        return self.net("actor", features), self.net("critic", features).squeeze(1)

    def outputs(self, rows: Batch) -> Tensor:
        """Outputs of the policy for rows of a minibatch."""
        return self.both(rows)[0]

    def check_ratio(self, rows: Batch, batch: SegmentBatch, progress: Progress) -> None:
        """Check the ratio of sequences too."""
        super().check_ratio(self.per_row(rows), batch, progress)

    def per_row(self, rows: Batch) -> Batch:
        """Numbers of all rows; with memory those of the sequences, side by side."""
        return rows if self.algorithm.memory is None else flat(rows)

    def value_losses(self, value: Tensor, rows: Batch) -> Tensor:
        """The squared error of each row."""
        return (value - rows["target"]).square()

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """The policy's loss and the critic's, in one step."""
        rows = self.per_row(batch)
        outputs, value = self.both(rows)
        loss, metrics = self.loss(outputs, rows)
        loss_value = self.mean(self.value_losses(value, rows), rows)
        self.net.step("policy", loss + self.config.vf_coef * loss_value)
        return {**metrics, "loss/value": loss_value}
