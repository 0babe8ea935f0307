"""What an attempt changed in its run directory before it was refused: taken back, so that a refusal leaves nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from zmqrl.config.plan import INITIAL
from zmqrl.data_stores import files
from zmqrl.data_stores.base import DataStore
from zmqrl.errors import StoreError
from zmqrl.supervision.owner_record import FOLDER

RECORDS = ("config.json", "run.json", "status.json", INITIAL)
MADE = (*RECORDS, "metrics.jsonl", "episodes.csv", "logs", "checkpoints", "tensorboard", "environment", FOLDER)
"""What an attempt makes directly in the run directory; anything else there is its user's."""


class Undo:
    """Undo of one attempt, in a run directory that was there before it."""

    def __init__(self, path: Path) -> None:
        """Call before the attempt owns `path`. OSError: it cannot be read."""
        self._path = path
        self._before = set(os.listdir(path))
        self._made: tuple[str, ...] = (FOLDER,)
        self._records: dict[str, bytes] = {}
        self._aside: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Call before the attempt writes its records: keep those of the attempt before. OSError: one is unreadable."""
        self._before |= set(os.listdir(self._path)) - {FOLDER}
        self._made = MADE
        self._records = {name: (self._path / name).read_bytes() for name in RECORDS if name in self._before}

    def put_aside(self, name: str, folder: str) -> None:
        """Move a file or folder of the directory to `folder` in it, durable. OSError: as far as it came."""
        source, target = self._path / name, self._path / folder / name
        files.make_directory(str(target.parent))

        def put_back() -> None:
            if source.is_dir():  # the attempt has made its own; a file is replaced
                shutil.rmtree(source, ignore_errors=True)
            files.rename(str(target), str(source))
            target.parent.rmdir()  # once it is empty

        files.rename(str(source), str(target))
        self._aside.append(put_back)
        for changed in (target.parent, self._path):
            files.sync_directory(str(changed))

    def put_store_aside(self, store: DataStore, folder: str) -> str | None:
        """See `DataStore.put_aside`."""
        self._aside.append(lambda: store.put_back(folder))
        return store.put_aside(folder)

    def undo(self) -> None:
        """Restore the run directory as it was before, as far as the disk allows."""
        for name, content in self._records.items():
            with contextlib.suppress(OSError):
                path = self._path / name
                files.replace(str(path), [(0, content)], str(self._path / f".{name}.{os.getpid()}"), durable=True)
        while self._aside:
            with contextlib.suppress(OSError, StoreError):
                self._aside.pop()()
        for name in (name for name in self._made if name not in self._before):
            _remove(self._path / name)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
