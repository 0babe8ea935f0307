"""Interface of a view of a run, and the final lines of every run."""

from __future__ import annotations

from abc import ABC, abstractmethod

from zmqrl.launch.run_state import RunState
from zmqrl.launch.summary import Summary


class View(ABC):
    """Only the launcher's main thread calls it."""

    @abstractmethod
    def update(self, state: RunState, now: float) -> None:
        """Show `state` at unix time `now`; called often, redraws as it likes."""

    @abstractmethod
    def message(self, text: str) -> None:
        """Print a block to stderr without breaking the view."""

    @abstractmethod
    def close(self) -> None:
        """Give the terminal back."""


def final_lines(summary: Summary) -> str:
    """The summary for people."""
    counts = f"{_count(summary.env_steps)} env steps, {_count(summary.updates)} updates in {summary.wall_s:.1f} s"
    lines = [f"run {summary.run_id}: {summary.status}, {counts}"]
    if summary.train_return_mean_100 is not None:
        solved = f", solved at {summary.solved_at_env_steps:,} env steps" if summary.solved_at_env_steps else ""
        lines.append(f"  return {summary.train_return_mean_100:.1f} (mean of the last 100 episodes){solved}")
    if summary.eval_return_mean is not None:
        lines.append(f"  evaluated {summary.eval_return_mean:.1f} (mean of {summary.eval_episodes} greedy episodes)")
    if summary.ledger is not None:
        ledger = summary.ledger
        dropped, unknown = sum(ledger["dropped"].values()), ledger["dropped"].get("unknown", 0)
        wrong = f"DOES NOT BALANCE ({unknown:,} rows unknown, {ledger['overbooked']:,} counted more than once)"
        lines.append(
            f"  ledger {'balanced' if ledger['balanced'] else wrong}: produced {ledger['produced']:,} = "
            f"stored {ledger['stored']:,} + in flight {ledger['in_flight']:,} + dropped {dropped:,}"
        )
    if summary.restarts:
        lines.append(f"  restarts {summary.restarts}")
    if summary.recovery == "restart_episode":
        lines.append("  env.recovery restart_episode: the weights also depend on restarts and resumes")
    if summary.bottleneck:
        lines.append(f"  bottleneck {summary.bottleneck}")
    return "\n".join(lines)


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"
