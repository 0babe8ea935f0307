"""What a drill found of one of its two runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zmqrl.config.codec import to_json
from zmqrl.types import Ledger
from zmqrl.views.problem import counted

UNKNOWN = "unknown"
"""The reason of dropped rows without a known cause."""


@dataclass(frozen=True)
class RunReport:
    """One of the two runs."""

    name: str
    mode: str
    exit_code: int | None
    env_steps: int | None
    restarts: int | None
    attempts: int
    """Lifetimes of its launcher."""
    ledger: dict[str, Any] | None
    """Ledger of the last attempt, from `summary.json`."""
    failures: tuple[str, ...]
    left: tuple[str, ...]
    ledgers: tuple[Ledger, ...] = ()
    """Ledgers of the attempts that ended as requested, from their shared memory."""

    @property
    def unknown(self) -> int:
        """Rows in `dropped.unknown`, over these attempts."""
        of_summary: int = (self.ledger or {}).get("dropped", {}).get(UNKNOWN, 0)
        return max(of_summary, sum(ledger.dropped.get(UNKNOWN, 0) for ledger in self.ledgers))

    @property
    def faults(self) -> list[str]:
        """What of it does not hold."""
        found = [f"{self.name}: {failure}" for failure in self.failures]
        found += [f"left behind: {what}" for what in self.left]
        if self.exit_code != 0:
            found.append(f"{self.name}: exit code {self.exit_code}")
        if self.ledger is None and not self.failures:
            found.append(f"{self.name}: the ledger is missing")
        elif self.ledger is not None and not self.ledger["balanced"]:
            found.append(f"{self.name}: the ledger does not balance: {self.ledger}")
        before = self.ledgers[:-1]  # the last one is the summary's
        unbalanced = [ledger for ledger in before if not ledger.balanced and not ledger.dropped.get(UNKNOWN)]
        found += [f"{self.name}: the ledger of an attempt does not balance: {ledger}" for ledger in unbalanced]
        if self.unknown:
            found.append(f"{self.name}: {self.unknown} rows are in dropped.unknown")
        return found

    def data(self) -> dict[str, Any]:
        """JSON data of the report; the attempts are the key `legs` of drill.json."""
        data: dict[str, Any] = to_json(self)
        data["legs"] = data.pop("attempts")
        return data

    def __str__(self) -> str:
        attempts = counted(self.attempts, "attempt")
        if self.env_steps is None or self.restarts is None:
            return f"{self.name}: {self.mode}, {attempts}, the last one without a summary"
        return (
            f"{self.name}: {self.mode}, {self.env_steps:,} env steps in {attempts}; "
            f"in the last one: {counted(self.restarts, 'restart')}, ledger {_ledger(self.ledger)}"
        )


@dataclass(frozen=True)
class Threshold:
    """Whether the learning run learnt."""

    threshold: float | None
    solved_at_env_steps: int | None
    env_steps: int
    budget_env_steps: int
    """The preset's total: a run that has not learnt by then has failed."""

    @property
    def failed(self) -> bool:
        """Whether the run had all of its env steps and did not reach the threshold."""
        return (
            self.threshold is not None and self.solved_at_env_steps is None and self.env_steps >= self.budget_env_steps
        )

    def __str__(self) -> str:
        if self.threshold is None:
            return "not judged"
        if self.solved_at_env_steps is not None:
            return f"{self.threshold:g} reached at {self.solved_at_env_steps} env steps"
        what = "NOT REACHED" if self.failed else "not reached, the drill was too short for it"
        return f"{self.threshold:g} {what}: {self.env_steps} of {self.budget_env_steps} env steps"


def _ledger(ledger: dict[str, Any] | None) -> str:
    if ledger is None:
        return "unknown"
    dropped = sum(ledger["dropped"].values())
    balance = "balances" if ledger["balanced"] else "DOES NOT BALANCE"
    parts = f"{ledger['stored']} stored + {ledger['in_flight']} in flight + {dropped} dropped"
    return f"{ledger['produced']} produced = {parts}: {balance}"
