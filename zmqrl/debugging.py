"""`breakpoint()` in a process of a run: pdb on the launcher's terminal in mode single, elsewhere a line in its log.

The standard streams of these processes are pipes and logs: pdb would wait for ever.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from zmqrl.errors import ConfigError

if TYPE_CHECKING:
    import pdb

TERMINAL = "ZMQRL_TERMINAL"
"""Environment variable with the device of the launcher's terminal, where the run may be debugged on it."""
YIELD_S = 0.6
"""Within this time the view notices that the terminal is locked, and leaves it."""


def terminal_here() -> dict[str, str]:
    """The variable for the processes of a run; empty without a terminal."""
    with suppress(OSError):
        return {TERMINAL: os.ttyname(1)} if os.isatty(0) else {}
    return {}


def set_hook(is_debugged: bool) -> None:
    """Define what `breakpoint()` does here. `is_debugged`: it opens pdb where there is a terminal."""
    device = os.environ.pop(TERMINAL, None)
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _ignore if device is None or not is_debugged else partial(_debug, device)


def is_lent(terminal: int = 1) -> bool:
    """Whether a process of a run is being debugged on this terminal."""
    try:
        own = _opened(os.ttyname(terminal))
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(own, fcntl.LOCK_UN)
    return False


@cache
def _opened(device: str) -> int:
    return os.open(device, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def _debug(device: str, *_: object, **__: object) -> None:
    _debugger(device).set_trace(sys._getframe(1))


@cache
def _debugger(device: str) -> pdb.Pdb:
    import pdb

    own = _opened(device)

    class OnTerminal(pdb.Pdb):
        """Holds the lock of the terminal from its first prompt to `c` or `q`."""

        _is_locked = False

        def interaction(self, *arguments: Any, **named: Any) -> None:
            if not self._is_locked:
                fcntl.flock(own, fcntl.LOCK_EX)
                self._is_locked = True
                time.sleep(YIELD_S)
            super().interaction(*arguments, **named)

        def set_continue(self) -> None:
            super().set_continue()
            self._unlock()

        def set_quit(self) -> None:
            self._unlock()
            print("q of the debugger ends the run; c continues it", file=sys.stderr, flush=True)
            os._exit(ConfigError.exit_code)  # it is not restarted

        def _unlock(self) -> None:
            self._is_locked = False
            fcntl.flock(own, fcntl.LOCK_UN)

    streams = [open(own, mode, encoding="utf-8", closefd=False) for mode in "rw"]  # noqa: SIM115
    return OnTerminal(stdin=streams[0], stdout=streams[1], nosigint=True)


def _ignore(*_: object, **__: object) -> None:
    frame = sys._getframe(1)
    _note(f"{frame.f_code.co_filename}:{frame.f_lineno}")


@cache
def _note(place: str) -> None:
    """Once for each place."""
    print(f"breakpoint() in {place} is ignored: it needs --mode single on a terminal", file=sys.stderr, flush=True)
