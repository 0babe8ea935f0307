"""The host leases, renewed by a thread: what the launcher writes may wait for a file server or a terminal."""

from __future__ import annotations

import threading
import time

from zmqrl.messages.agent import Lease
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.views.problem import Problem

LEASE_EVERY_S = 1.0
BLOCKED_S = 10.0
"""The launcher's loop usually takes `MONITOR_S`; one that takes so long is reported."""


class LeaseRenewal:
    """Sends the lease of all hosts every second, for `most_s` after the last `confirm`.

    A launcher that is suspended (Ctrl-Z) or killed sends none: that stops its threads too.
    """

    def __init__(self, orchestrator: Orchestrator, most_s: float) -> None:
        self._orchestrator, self._most_s = orchestrator, most_s
        self._confirmed_at = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """The agents are being started. Called once."""
        self._confirmed_at = time.monotonic()
        self._thread = threading.Thread(target=self._renew, name="leases", daemon=True)
        self._thread.start()

    def confirm(self, now: float) -> Problem | None:
        """The launcher continues at `now`, in monotonic seconds. Returns the problem to report if it was blocked."""
        blocked_s, self._confirmed_at = now - self._confirmed_at, now
        if blocked_s < BLOCKED_S:
            return None
        waited = "a file of the run directory, the terminal or a callback, or was suspended"
        return Problem("launcher", f"it did not continue for {blocked_s:.0f} s: it waited for {waited}", "it continues")

    def end(self) -> None:
        """No lease is sent once this returns. Safe to call twice, and before `start`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _renew(self) -> None:
        while not self._ended.wait(LEASE_EVERY_S):
            if time.monotonic() - self._confirmed_at < self._most_s:
                self._orchestrator.command(None, Lease())
