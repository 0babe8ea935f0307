"""FULL with replay, written while training continues: slots are copied one by one, and verified afterwards.

The copy is counted in `shared_memory.arena.check_fits`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from zmqrl.data_stores.base import DataStore, Full
from zmqrl.errors import StoreError
from zmqrl.memory_backends.base import TakenSegment
from zmqrl.types import Array, SlotRef
from zmqrl.workers.counters import prefixed
from zmqrl.workers.replay_checkpoint import metas_array

END_S = 600.0


class BackgroundFull:
    """One FULL on its way. The thread reads slots and writes a file; everything else was copied before."""

    def __init__(
        self,
        store: DataStore,
        full: Full,
        held: Sequence[TakenSegment],
        columns: Mapping[str, Array],
        is_held: Callable[[SlotRef], bool],
    ) -> None:
        """`full` has the sampler's state already; `held` are the segments of replay, oldest first."""
        self._store, self._full = store, full
        self._held, self._columns, self._is_held = held, columns, is_held
        self._nbytes = 0
        self.begun_at_s = time.monotonic()
        """The moment whose state it holds."""
        self.took_s = 0.0
        """Once it is written."""
        self._error: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="full", daemon=True)
        self._thread.start()

    @property
    def is_written(self) -> bool:
        """Whether the thread has ended: `result` states how."""
        return not self._thread.is_alive()

    def result(self) -> int:
        """Its bytes, once it is written. StoreError when it failed."""
        if self._error is not None:
            raise self._error
        return self._nbytes

    def wait(self) -> None:
        """Until it is written, or has failed."""
        self._thread.join(END_S)

    def _run(self) -> None:
        try:
            self._nbytes = self._store.save_full(self._with_replay(), durable=True)
        except StoreError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - a thread's end: what is not reported would count as written
            self._error = StoreError(f"the full checkpoint cannot be written: {type(error).__name__}: {error}")
        self.took_s = time.monotonic() - self.begun_at_s

    def _with_replay(self) -> Full:
        """What replay let go of before or while it was copied is left out, and so are its priorities."""
        copies = {name: np.empty((len(self._held), *c.shape[1:]), c.dtype) for name, c in self._columns.items()}
        whole: list[int] = []
        for place, (ref, _) in enumerate(self._held):
            for name, column in self._columns.items():
                copies[name][len(whole)] = column[ref.slot]
            if self._is_held(ref):
                whole.append(place)
        arrays = dict(self._full.arrays)
        for name in [name for name in arrays if name.startswith("sampler/") and len(arrays[name]) == len(self._held)]:
            if arrays[name].ndim > 1:  # one row a segment
                arrays[name] = arrays[name][whole]
        arrays.update(prefixed("held", {name: copy[: len(whole)] for name, copy in copies.items()}))
        arrays["held_metas"] = metas_array([self._held[place].meta for place in whole])
        return replace(self._full, arrays=arrays)
