"""What the files of `logged` show of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.peers.logged import RECORD

RECORDS = np.dtype([("at", "<f8"), ("steps", "<i8"), ("returned", "<f8")])
LAST = 100
"""Episodes of a mean return."""


@dataclass(frozen=True)
class Steps:
    """Records of the envs that collect, an array for each env with a step."""

    envs: Sequence[npt.NDArray[np.void]]

    @classmethod
    def read(cls, folder: Path, process: str) -> Steps:
        """Of the envs in processes whose command line contains `process`: a check or an evaluation is not counted."""
        envs = []
        for path in folder.iterdir():
            command, _, records = path.read_bytes().partition(b"\n")
            found = np.frombuffer(records[: len(records) // RECORD.size * RECORD.size], RECORDS)
            if process.encode() in command and len(found):
                envs.append(found)
        return cls(envs)

    @property
    def first(self) -> float | None:
        """Time of the first step."""
        return min((float(env["at"][0]) for env in self.envs), default=None)

    @property
    def total(self) -> int:
        """Steps of all envs."""
        return sum(int(env["steps"][-1]) for env in self.envs)

    def rate(self, begin: float, end: float) -> float:
        """Steps a second between two times: of each env from its first record to its last one within them."""
        rate = 0.0
        for env in self.envs:
            within = env[(env["at"] >= begin) & (env["at"] <= end)]
            if len(within) > 1 and within["at"][-1] > within["at"][0]:
                rate += float((within["steps"][-1] - within["steps"][0]) / (within["at"][-1] - within["at"][0]))
        return rate

    def reached(self, target: float) -> float | None:
        """Time at which the mean return of the last `LAST` episodes of all envs was at least `target`."""
        if not self.envs:
            return None
        ended = np.concatenate([env[~np.isnan(env["returned"])] for env in self.envs])
        if len(ended) < LAST:
            return None
        ended = ended[np.argsort(ended["at"], kind="stable")]
        sums = np.cumsum(np.concatenate([[0.0], ended["returned"]]))
        found = np.flatnonzero((sums[LAST:] - sums[:-LAST]) / LAST >= target)
        return float(ended["at"][found[0] + LAST - 1]) if len(found) else None
