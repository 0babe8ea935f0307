"""A memory backend over a folder of files, with a fault in every third message or so."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgpack

from zmqrl.config.plan import RunPlan
from zmqrl.memory_backends.base import MemoryBackend

Frames = list[bytes]
EVERY = 3
LOOK_EVERY_S = 0.01


@dataclass(frozen=True)
class FaultyConfig:
    folder: str
    fault: Literal["none", "lost", "doubled", "reordered", "torn"] = "none"


class FaultyBackend(MemoryBackend):
    Config: ClassVar[type[Any]] = FaultyConfig

    def __init__(self, config: FaultyConfig, plan: RunPlan) -> None:
        super().__init__(config, plan)
        self._folder = Path(config.folder, plan.run_id)
        self._sent = self._written = 0
        self._before: Frames = []
        self._held_back: Frames | None = None

    def send(self, frames: Sequence[Any]) -> bool:
        message = [bytes(frame) for frame in frames]
        self._sent += 1
        for changed in getattr(self, f"_{self.config.fault}")(message):
            self._write(changed)
        self._before = message
        return True

    def receive(self, timeout_s: float) -> list[Frames]:
        until = time.monotonic() + timeout_s
        while not (paths := sorted(self._folder.glob("*.segment"))) and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
        found = [msgpack.unpackb(path.read_bytes()) for path in paths]
        for path in paths:
            path.unlink()
        return found

    def _write(self, message: Frames) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._written += 1
        path = self._folder / f"{time.time_ns()}-{os.getpid()}-{self._written}.segment"
        path.with_suffix(".part").write_bytes(msgpack.packb(message))
        path.with_suffix(".part").rename(path)

    def _none(self, message: Frames) -> list[Frames]:
        return [message]

    def _lost(self, message: Frames) -> list[Frames]:
        return [] if self._sent % EVERY == 0 else [message]

    def _doubled(self, message: Frames) -> list[Frames]:
        return [message, message]

    def _reordered(self, message: Frames) -> list[Frames]:
        """One is held back until the next one was sent."""
        if self._held_back is None:
            self._held_back = message
            return []
        held, self._held_back = self._held_back, None
        return [message, held]

    def _torn(self, message: Frames) -> list[Frames]:
        """The end of the message before in the place of its own; or frames are missing, or cut off."""
        if self._sent % EVERY or len(self._before) != len(message):
            return [message]
        columns = zip(message[2:], self._before[2:], strict=True)
        mixed = [*message[:2], *(now[: len(now) // 2] + old[len(old) // 2 :] for now, old in columns)]
        return [mixed, message[:-1], message[1:], [], [b""], [*message[:-1], message[-1][:-1]]]
