"""What a process inherits from the one that starts it, where that would keep it from its work.

Terminals, window managers, supervisors and batch systems pass on ignored and blocked signals, closed descriptors, a
umask, and a working directory that was removed since.
"""

from __future__ import annotations

import os
import signal
import sys

from zmqrl.errors import ConfigError

INTENDED = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    | {signal.SIGPIPE, signal.SIGXFSZ}
)
"""Signals that stay ignored: by `nohup` and by a shell for what it starts in the background; and by Python itself."""
OWN_FILES = 0o700


def set_right() -> None:
    """Restore the state that a process of zmqrl relies on; what it starts inherits it. Call it before all else.

    - With SIGCHLD ignored the exit codes of children are lost; a blocked or ignored SIGTERM or SIGUSR1 has no effect.
    - A closed descriptor of 0 to 2, which a socket would get, becomes the null device. Its stream, which would be None,
      is opened.
    - A umask that takes rights of the owner makes files that this process itself cannot open.
    """
    for number in signal.valid_signals() - INTENDED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(os.umask(OWN_FILES) & ~OWN_FILES)
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(null, True)
    os.close(null)
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            stream = open(descriptor, mode, buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def working_directory() -> str:
    """The working directory. ConfigError: it does not exist any more."""
    try:
        return os.getcwd()
    except OSError as error:
        fix = "change to a directory that exists: cd ~"
        raise ConfigError(f"the working directory cannot be used: {error.strerror}", fix=fix) from error
