"""Waits for SIGTERM."""

from __future__ import annotations

import signal

from zmqrl.config.plan import Boot
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import Ready


def main(boot: Boot) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    EventPipe(boot.fds["events"]).send(Ready())
    signal.sigwait({signal.SIGTERM})
    return 0
