"""Waits for SIGTERM."""

from __future__ import annotations

import signal

from zmqrl.config.plan import Boot
from zmqrl.logs.events import EventPipe


def main(boot: Boot) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    EventPipe(boot.fds["events"]).send("ready")
    signal.sigwait({signal.SIGTERM})
    return 0
