"""Scores what it is told; `algorithm.evaluator: slow` never answers the final version."""

from __future__ import annotations

import json
import sys
import time

from zmqrl.config.plan import Boot
from zmqrl.logs.events import EventPipe


def main(boot: Boot) -> int:
    events = EventPipe(boot.fds["events"])
    events.send("ready")
    for line in sys.stdin:
        told = json.loads(line)
        final = "final" in told
        if final and boot.plan.config.algorithm.get("evaluator") == "slow":
            sys.stdin.read()
            return 0
        notice = told["final"] if final else told["notice"]
        score = {"version": notice["version"], "env_steps": notice["env_steps"], "return_mean": 30.0, "return_std": 1.0}
        events.send("score", **score, episodes=20, wall=time.time(), best=True, final=final)
        if final:
            return 0
    return 0
