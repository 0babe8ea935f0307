"""Scores what it is told; `algorithm.evaluator: slow` never answers the final version."""

from __future__ import annotations

import sys
import time

from zmqrl.config.plan import Boot
from zmqrl.logs.events import EventPipe
from zmqrl.messages.lines import evaluate
from zmqrl.messages.process import Ready, VersionScore


def main(boot: Boot) -> int:
    events = EventPipe(boot.fds["events"])
    events.send(Ready())
    for line in sys.stdin:
        told = evaluate(line)
        if told.final and boot.plan.config.algorithm.get("evaluator") == "slow":
            sys.stdin.read()
            return 0
        notice = told.notice
        events.send(
            VersionScore(notice.version, notice.env_steps, 30.0, 1.0, 20, time.time(), best=True, final=told.final)
        )
        if told.final:
            return 0
    return 0
