"""The shared memory of a run, read from outside: the stream records, held slots, the newest version."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from zmqrl.config.plan import RunPlan
from zmqrl.drill.witness import ROW, rows_of
from zmqrl.errors import ArenaError
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.weights import WeightsReader
from zmqrl.types import Array, Ledger, SlotRef, Version

ARENA, WEIGHTS = "memfd:zmqrl-arena", "memfd:zmqrl-weights"


class SharedView:
    """Reads only. It maps the memory until `close`, so the stream records of a killed run remain readable."""

    def __init__(self, arena: Arena, weights_fd: int) -> None:
        self._arena, self._weights_fd = arena, weights_fd
        self._weights = WeightsReader(weights_fd)

    @classmethod
    def open(cls, plan: RunPlan, agent_pid: int) -> SharedView | None:
        """Through the host agent's descriptors; None while it has not made them, or is gone."""
        fds = _named_fds(agent_pid)
        if not {ARENA, WEIGHTS} <= fds.keys():
            return None
        try:
            arena_fd = os.open(f"/proc/{agent_pid}/fd/{fds[ARENA]}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            weights_fd = os.open(f"/proc/{agent_pid}/fd/{fds[WEIGHTS]}", os.O_RDWR | os.O_CLOEXEC)
            return cls(Arena.attach(plan, arena_fd), weights_fd)
        except (OSError, ArenaError):  # it is only being made
            os.close(arena_fd)
            return None

    def stored(self) -> tuple[int, ...]:
        """Rows stored of each vector env."""
        streams = self._arena.streams
        return tuple(streams.read(v).stored for v in range(streams.streams))

    def holders(self) -> tuple[int, ...]:
        """The worker index to which each vector env was handed over last; -1: none."""
        streams = self._arena.streams
        return tuple(streams.read(v).holder[0] for v in range(streams.streams))

    def version(self) -> Version | None:
        """The newest version that this host's workers can act with."""
        return self._weights.version()

    def ledger(self) -> Ledger:
        """The current stream records."""
        return self._arena.ledger()

    def left_over(self) -> Array:
        """The witness's rows in slots that are accepted and not released: a next learner would be given them."""
        return self._rows(self._arena.held())

    def in_flight(self) -> Array:
        """The witness's rows in slots that are sealed and not accepted."""
        return self._rows(self._arena.sealed())

    def close(self) -> None:
        """Let go of the memory."""
        self._arena.close()
        os.close(self._weights_fd)

    def _rows(self, refs: list[SlotRef]) -> Array:
        columns, meta = self._arena.columns, self._arena.meta
        found = [rows_of({name: columns[name][ref.slot] for name in columns}, [meta(ref.slot)]) for ref in refs]
        return np.concatenate([np.zeros(0, ROW), *found])


def _named_fds(pid: int) -> dict[str, str]:
    found = {}
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            name = os.readlink(entry).removeprefix("/").removesuffix(" (deleted)")
            if name.startswith("memfd:"):
                found[name] = entry.name
    except OSError:
        return {}
    return found
