"""The run on the launcher's terminal."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from zmqrl.launch.picture import picture_of
from zmqrl.launch.run_state import RunState
from zmqrl.launch.status import status_of
from zmqrl.launch.view import View

REDRAW_EVERY_S = 0.25


class LiveView(View):
    """Redraws at most four times a second."""

    def __init__(self, state: RunState) -> None:
        self._console = Console()
        self._errors = Console(stderr=True)
        self._live = Live(Text("starting"), console=self._console, auto_refresh=False, transient=False)
        self._live.start()
        self._next_at = 0.0

    def update(self, state: RunState, now: float) -> None:
        if now < self._next_at:
            return
        self._next_at = now + REDRAW_EVERY_S
        self._live.update(picture(state, now), refresh=True)

    def message(self, text: str) -> None:
        self._live.console.print(Text(text, style="red"))

    def close(self) -> None:
        self._live.stop()


def picture(state: RunState, now: float) -> Group:
    """The run at unix time `now`, as `zmqrl status -f` shows it from another shell."""
    return picture_of(status_of(state, now))
