"""Which view a terminal gets."""

from __future__ import annotations

import sys

from zmqrl.launch.run_state import RunState
from zmqrl.launch.view import View


def make_view(plain: bool, state: RunState) -> View:
    """The live view on a terminal, plain lines elsewhere and with `--plain`."""
    if plain or not sys.stdout.isatty():
        from zmqrl.launch.plain_view import PlainView

        return PlainView()
    from zmqrl.launch.live_view import LiveView

    return LiveView(state)
