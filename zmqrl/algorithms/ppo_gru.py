"""PPO with memory: actor and critic share a gated recurrent unit, trained on sequences from stored state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zmqrl.acting.spec import ActingSpec, ActingState
from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner, Progress
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.algorithms.ppo_learner import PPOLearner
from zmqrl.config.codec import replace
from zmqrl.config.sections import FORBID_UNKNOWN, Positive, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import Batch
from zmqrl.loading import Tensor
from zmqrl.networks.build import tower
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import ACTING_STATE, Array, ModeName

CORE = "torso.gru"
"""Name of the layer with state."""
WHOLE = frozenset({"obs", "state", "reset"})
"""Columns of a minibatch of sequences that are not flattened; every other column is a number per row."""


@dataclass(frozen=True)
class PPOGRUConfig(PPOConfig):
    """The fields of `kind: ppo`, and those of the recurrent unit."""

    __pydantic_config__ = FORBID_UNKNOWN

    shared: bool = True
    """Actor and critic share the hidden layers (`torso`): always."""
    gru_size: Positive = 64
    """Numbers of recurrent state."""
    sequence: Positive = 16
    """Rows of a sequence, a divisor of `env.segment_steps`: gradients reach so many rows, state is stored so often."""


class PPOGRU(PPO, Algorithm):
    """Hidden layers, a gated recurrent unit, then a linear layer each for actor and critic."""

    Config: ClassVar[type[PPOGRUConfig]] = PPOGRUConfig
    config: PPOGRUConfig

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` when sequences do not fit segments or minibatches."""
        super().check(mode, vector_envs, replay)
        sequence = self.config.sequence
        if self.segment_steps % sequence:
            raise ConfigError(
                f"must be a divisor of env.segment_steps {self.segment_steps}",
                key=("algorithm", "sequence"),
                value=str(sequence),
                is_subject=True,
                others=(("env", "segment_steps"),),
            )
        if self.config.minibatch_size < sequence:
            raise ConfigError(
                f"is less than a sequence of {sequence} rows",
                key=("algorithm", "minibatch_size"),
                value=str(self.config.minibatch_size),
                is_subject=True,
            )
        if not self.config.shared:
            raise ConfigError(
                "actor and critic of ppo_gru share the recurrent unit", key=("algorithm", "shared"), value="false"
            )

    @property
    def executors(self) -> tuple[str, ...]:
        """Autograd alone."""
        return ("eager", "compiled")

    def network(self) -> NetworkSpec:
        """Towers `torso`, `actor` and `critic`; `log_std` when actions are continuous."""
        section, orthogonal = self.network_section, self.config.orthogonal_init
        *layers, last = tower("torso", section, self.env.observation, 1, output_gain=1.0, orthogonal=orthogonal)
        size = self.config.gru_size
        torso = (*layers, LayerSpec("gru", CORE, last.inputs, size, gain=1.0 if orthogonal else 0.0))
        free = () if self.env.action.choices else (("log_std", (self._action_size,), self.config.log_std_init),)
        return NetworkSpec((("torso", torso), *self._heads(size)), free)

    def acting(self) -> ActingSpec:
        """Acting of PPO with the state of the recurrent unit, stored at the start of each sequence."""
        state = (ActingState(CORE, self.config.gru_size),)
        return replace(super().acting(), state=state, state_every=self.config.sequence)

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return PPOGRULearner(self, context)


class PPOGRULearner(PPOLearner):
    """Minibatches are whole sequences; invalid rows in them have no weight."""

    algorithm: PPOGRU
    config: PPOGRUConfig

    @property
    def minibatch_size(self) -> int:
        """Sequences per minibatch."""
        return max(1, self.config.minibatch_size // self.config.sequence)

    def values(self, obs: Tensor, batch: SegmentBatch) -> Tensor:
        """What the critic predicts, `[T + 1, E]`, from the state at the start of the segment."""
        columns = batch.columns
        start = {CORE: self.tensor(columns[ACTING_STATE + CORE][0])}
        ended = np.concatenate((np.zeros_like(columns["valid"][:1]), ~columns["valid"]))
        features, _ = self.net.unroll("torso", obs, start, self.tensor(ended))
        return self.net("critic", features.flatten(0, 1)).reshape(obs.shape[:2])

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        """Sequences `[S, k, ...]`, each with the state before its first row and where episodes begin in it."""
        columns, valid = self.advantages(batch, progress), batch.columns["valid"]
        begins = np.zeros_like(valid)
        begins[1:] = ~valid[:-1]
        begins[:: self.config.sequence] = False  # that is in the stored state
        given: Mapping[str, Array] = {"valid": valid.astype(np.float32), "reset": begins}
        columns |= {name: self.tensor(column) for name, column in given.items()}
        sequences = {name: self._sequences(column) for name, column in columns.items()}
        rows = {**sequences, "state": self.tensor(batch.columns[ACTING_STATE + CORE]).flatten(0, 1)}
        self.check_ratio(_flat(rows), batch, progress)
        return rows

    def features(self, rows: Batch) -> Tensor:
        """The state of the unit after each row, `[S k, gru_size]`."""
        obs, reset = rows["obs"].transpose(0, 1), rows["reset"].transpose(0, 1)
        features, _ = self.net.unroll("torso", obs, {CORE: rows["state"]}, reset)
        return features.transpose(0, 1).flatten(0, 1)

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Train as PPO does, over the valid rows of the sequences."""
        return super().train(_flat(batch))

    def mean(self, values: Tensor, rows: Batch) -> Tensor:
        """Over the valid rows."""
        return (values * rows["valid"]).sum() / rows["valid"].sum().clamp(min=1.0)

    def standardised(self, advantage: Tensor, rows: Batch) -> Tensor:
        """Advantages with mean 0 and deviation 1 over the valid rows."""
        centred = advantage - self.mean(advantage, rows)
        return centred / (self.mean(centred.square(), rows).sqrt() + 1e-8)

    def _sequences(self, column: Tensor) -> Tensor:
        """`[T, E, ...]` to `[T / k E, k, ...]`."""
        parts = column.reshape(-1, self.config.sequence, *column.shape[1:])
        return parts.transpose(1, 2).flatten(0, 1).contiguous()


def _flat(rows: Batch) -> dict[str, Tensor]:
    """Numbers per row of all sequences, side by side; what the unit reads stays in sequences."""
    return {n: column if n in WHOLE or not column.dim() else column.flatten(0, 1) for n, column in rows.items()}
