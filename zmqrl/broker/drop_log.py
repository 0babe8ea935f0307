"""Lines about dropped rows in the broker's log: `zmqrl logs broker --grep dropped`. The counters are in the ledger."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from zmqrl.broker.events import Dropped

MOST_LINES = 20
WINDOW_S = 10.0


class DropLog:
    """At most `MOST_LINES` within `WINDOW_S`; what is left out is summed up in the first line after that."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`out`: the process's stderr, which is its log, if not given. `clock`: seconds that are never set back."""
        self._out, self._clock = out, clock
        self._begun_at = -WINDOW_S
        self._lines = 0
        self._left_out: Counter[str] = Counter()
        """Rows by reason."""

    def add(self, dropped: Dropped) -> None:
        """One line, or a count."""
        now = self._clock()
        if now >= self._begun_at + WINDOW_S:
            self._sum_up()
            self._begun_at, self._lines = now, 0
        if self._lines >= MOST_LINES:
            self._left_out[dropped.reason] += dropped.rows
            return
        self._lines += 1
        vector_env, incarnation, index = dropped.id
        where = f"vector env {vector_env}, incarnation {incarnation}, index {index}"
        self._write(f"{dropped.rows} rows, {dropped.reason}: segment {where}")

    def close(self) -> None:
        """The process ends: sum up what was left out."""
        self._sum_up()

    def _sum_up(self) -> None:
        for reason, rows in self._left_out.items():
            self._write(f"{rows} rows, {reason}: of unidentified segments, within {WINDOW_S:g} s")
        self._left_out.clear()

    def _write(self, text: str) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%S")
        print(f"{at} dropped {text}", file=self._out or sys.stderr, flush=True)
