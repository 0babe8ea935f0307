"""The run on the launcher's terminal, drawn again four times a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from zmqrl.debugging import is_lent
from zmqrl.types import Severity
from zmqrl.views.base import Status, View
from zmqrl.views.tables import OF_SEVERITY, render

REDRAW_EVERY_S = 0.25
STOPPABLE = ("starting", "running", "paused")
"""Phases in which Ctrl-C begins the end."""


class LiveView(View):
    """What `zmqrl status -f` shows from another shell."""

    def __init__(self) -> None:
        self._live = self._started()
        self._next_at = 0.0

    def _started(self) -> Live:
        live = Live(Text("starting"), console=Console(), auto_refresh=False, transient=False)
        live.start()
        return live

    def update(self, status: Status, now: float) -> None:
        if now < self._next_at:
            return
        self._next_at = now + REDRAW_EVERY_S
        if is_lent():
            self._live.stop()
            return
        self._live = self._live if self._live.is_started else self._started()
        self._draw(status())

    def _draw(self, current: Mapping[str, Any]) -> None:
        hint = "   Ctrl-C: stop with a checkpoint" if current["phase"] in STOPPABLE else ""
        # The cursor is on a line of its own: behind a full one, the terminal's echo of Ctrl-C would begin another.
        self._live.update(Group(render(current, current["run_dir"] + hint), Text()), refresh=True)

    def message(self, text: str, severity: Severity = "note") -> None:
        self._live.console.print(Text(text, style=OF_SEVERITY[severity]))

    def close(self, status: Status) -> None:
        try:
            self._draw(status())
        finally:
            self._live.stop()
