"""A line every 10 s, for logs and pipes."""

from __future__ import annotations

import sys

from zmqrl.launch.run_state import RunState
from zmqrl.launch.status import progress
from zmqrl.launch.view import View

LINE_EVERY_S = 10.0


class PlainView(View):
    """Writes to stdout; messages to stderr."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def update(self, state: RunState, now: float) -> None:
        if now < self._next_at or not state.metrics:
            return
        self._next_at = now + LINE_EVERY_S
        print(line_of(state, now), flush=True)

    def message(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        sys.stdout.flush()


def line_of(state: RunState, now: float) -> str:
    """The run in one line."""
    done, eta_s = progress(state, now)
    m = state.metrics
    parts = [
        f"{now - state.plan.started_at:7.1f}s",
        f"{100 * done:5.1f}%",
        f"{state.env_steps:,} env steps",
        f"{m.get('env_steps_per_s', 0.0):,.0f}/s",
        f"{m.get('updates_per_s', 0.0):,.0f} updates/s",
    ]
    if "train_return_mean_100" in m:
        parts.append(f"return {m['train_return_mean_100']:.1f}")
    if "policy_lag_mean" in m:
        parts.append(f"lag {m['policy_lag_mean']:.1f}")
    parts.append(f"workers {state.ready_workers}/{max(1, state.expected_workers)}")
    if eta_s is not None:
        parts.append(f"eta {eta_s:.0f}s")
    if state.bottleneck:
        parts.append(f"bottleneck {state.bottleneck}")
    return "  ".join(parts)
