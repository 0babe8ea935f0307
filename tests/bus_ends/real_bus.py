"""A broker process, and ends of the bus, over an arena of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from zmqrl.bus_ends.learner_end import LearnerEnds, SegmentSource
from zmqrl.bus_ends.zmq_learner import learner_ends
from zmqrl.bus_ends.zmq_sink import LocalSink
from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot, Endpoints, RunPlan
from zmqrl.shared_memory.arena import Arena
from zmqrl.wire.agent_link import AgentLink


class RealBus:
    """Closed by `close`, which ends every process that was started here."""

    def __init__(self, plan: RunPlan, folder: Path) -> None:
        self.plan, self.arena = plan, Arena.create(plan)
        names = ("segments", "descriptors", "notices", "control")
        self.endpoints = Endpoints(**{name: f"ipc://{folder}/{name}" for name in names})
        self.agent = AgentLink(self.endpoints)
        self._ends: list[Any] = [self.agent]
        self._children: list[subprocess.Popen[str]] = []
        self.broker = self.start_broker()

    def boot(self, role: str, index: int = 0, spawn: int = 0, inherit: bool = False) -> Boot:
        assert self.arena.fd is not None
        fd = self.arena.fd if inherit else os.dup(self.arena.fd)
        return Boot(role, index, spawn, "local", self.plan, self.endpoints, {"arena": fd})

    def learner(self) -> LearnerEnds:
        self._ends.append(learner_ends(self.boot("learner")))
        return self._ends[-1]  # type: ignore[no-any-return]

    def source(self) -> SegmentSource:
        return self.learner().source

    def sink(self, index: int = 0, spawn: int = 0) -> LocalSink:
        self._ends.append(LocalSink(self.boot("worker", index, spawn)))
        return self._ends[-1]  # type: ignore[no-any-return]

    def start_broker(self) -> subprocess.Popen[str]:
        return self.start(
            ["-m", "zmqrl.entry", "zmqrl.broker", self.plan.run_id, "0"], self.boot("broker", inherit=True)
        )

    def start(self, arguments: list[str], boot: Boot) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            pass_fds=tuple(boot.fds.values()),
            text=True,
        )
        self._children.append(child)
        assert child.stdin is not None
        child.stdin.write(json.dumps(to_json(boot)) + "\n")
        child.stdin.flush()
        return child

    def kill(self, child: subprocess.Popen[str]) -> None:
        child.kill()
        child.communicate()

    def close(self) -> None:
        for end in reversed(self._ends):
            end.close()
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        self.arena.close()
