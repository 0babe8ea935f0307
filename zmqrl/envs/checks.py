"""What an env may return, checked once per step on the whole batch, and the fault that names who broke it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from zmqrl.errors import EnvFault
from zmqrl.types import Array


@dataclass(frozen=True)
class Where:
    """The place of a fault: enough to run it again alone."""

    env: str
    vector_env: int
    slot: int
    seed: int
    episode: int
    step: int

    def fault(self, what: str) -> EnvFault:
        """The error to raise."""
        place = f"slot {self.slot}, seed {self.seed}, episode {self.episode}, step {self.step}"
        return EnvFault(f"env {self.env} (vector env {self.vector_env}, {place}): {what}", asdict(self))


def first_bad_slot(obs: Array, reward: Array) -> tuple[int, str] | None:
    """The first slot whose observation holds NaN or whose reward is not finite, and what it is; None if all is well."""
    if obs.dtype.kind == "f" and math.isnan(obs.sum()):  # inf - inf may give NaN too: look closer
        rows = np.isnan(obs.reshape(len(obs), -1)).any(axis=1)
        if rows.any():
            slot = int(rows.argmax())
            return slot, f"the observation has NaN: {_short(obs[slot])}"
    if not math.isfinite(reward.sum()):
        rows = ~np.isfinite(reward)
        if rows.any():
            slot = int(rows.argmax())
            return slot, f"the reward is {reward[slot]}"
    return None


def _short(row: Array) -> str:
    return np.array2string(row, threshold=8, precision=4).replace("\n", "")
