"""The host leases, renewed by a thread: what the launcher writes may wait for a file server or a terminal."""

from __future__ import annotations

import contextlib
import queue
import threading
import time

from zmqrl.errors import name_of
from zmqrl.messages.command import Lease
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
        self._faults: queue.SimpleQueue[str] = queue.SimpleQueue()
        """To be reported."""

    def start(self) -> None:
        """The agents are being started. Called once. RuntimeError: the system starts no thread."""
        self._confirmed_at = time.monotonic()
        thread = threading.Thread(target=self._renew, name="leases", daemon=True)
        thread.start()
        self._thread = thread

    def confirm(self, now: float) -> Problem | None:
        """The launcher continues at `now`, in monotonic seconds.

        Returns:
            The problem to report if it was blocked, or if the leases could not be sent.
        """
        blocked_s, self._confirmed_at = now - self._confirmed_at, now
        if blocked_s < BLOCKED_S:
            with contextlib.suppress(queue.Empty):
                cause = f"the leases of the hosts cannot be sent: {self._faults.get_nowait()}"
                return Problem("launcher", cause, "retrying; a host ends after limits.host_lease_s without one")
            return None
        waited = "a file of the run directory, the terminal or a callback, or was suspended"
        return Problem("launcher", f"it did not continue for {blocked_s:.0f} s: it waited for {waited}", "it continues")

    def end(self) -> None:
        """No lease is sent once this returns. Safe to call twice, and before `start`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _renew(self) -> None:
        is_failing = False
        while not self._ended.wait(LEASE_EVERY_S):
            if time.monotonic() - self._confirmed_at >= self._most_s:
                continue
            try:
                self._orchestrator.command(None, Lease())
                is_failing = False
            except Exception as error:  # noqa: BLE001 - the top of a thread: without it every host ends
                if not is_failing:
                    self._faults.put(f"{name_of(error)}: {error}")
                is_failing = True
