"""The run in one line, then a line every 10 s, for logs and pipes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from zmqrl.debugging import is_lent
from zmqrl.types import Severity
from zmqrl.views.base import Status, View, bottleneck_of, reports_of
from zmqrl.views.header import duration
from zmqrl.views.problem import report_cells

LINE_EVERY_S = 10.0


class PlainView(View):
    """Writes to stdout, from the first metrics on; messages to stderr."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def update(self, status: Status, now: float) -> None:
        if now < self._next_at or is_lent() or not (current := status())["metrics"]:
            return
        if not self._next_at:
            _print(f"run {current['run_id']}: {current['mode']}, in {current['run_dir']}", sys.stdout)
        self._next_at = now + LINE_EVERY_S
        _print(line_of(current), sys.stdout)

    def message(self, text: str, severity: Severity = "note") -> None:
        _print(text, sys.stderr)

    def close(self, status: Status) -> None:
        return


def _print(text: str, stream: TextIO) -> None:
    """A stream that is closed, or whose reader has gone, ends no run; in the main thread they are lossy anyway."""
    with suppress(OSError, ValueError):
        print(text, file=stream, flush=True)


def line_of(status: Mapping[str, Any]) -> str:
    """The run in one line."""
    m = status["metrics"]
    parts = [
        f"{status['wall_s']:7.1f}s",
        f"{100 * status['progress']:5.1f}%",
        f"{status['env_steps']:,} env steps",
        f"{m.get('env_steps_per_s', 0.0):,.0f}/s",
        f"{m.get('updates_per_s', 0.0):,.0f} updates/s",
    ]
    if "train_return_mean_100" in m:
        parts.append(f"return {m['train_return_mean_100']:.1f}")
    parts += report_cells(reports_of(m))
    if "policy_lag_mean" in m:
        parts.append(f"lag {m['policy_lag_mean']:.1f}")
    parts.append(f"workers {status['ready_workers']}/{max(1, status['expected_workers'])}")
    if status["eta_s"] is not None:
        at_most = "" if status["stop_at_return"] is None else "at most "
        parts.append(f"eta {at_most}{duration(status['eta_s'])}")
    if status["bottleneck"]:
        parts.append(f"bottleneck {bottleneck_of(status)}")
    return "  ".join(parts)
