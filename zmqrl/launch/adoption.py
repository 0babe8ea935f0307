"""Checkpoints of zmqrl 0.1, which lie directly in `store.path`: moved to the place of their run's lineage."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from zmqrl.data_stores import files, tensors
from zmqrl.data_stores.directory import checkpoint_names
from zmqrl.errors import ConfigError, StoreError
from zmqrl.launch.run_directory import RunInfo


def left_by_0_1(root: Path) -> list[str]:
    """Names of the checkpoints directly in `root`; best, versions, then FULLs, newest first."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    # FULLs last and the newest first: wherever a move ends half-way, the place has the newest FULL or none.
    fulls = list(reversed(checkpoint_names(names, "full-")))
    return [*checkpoint_names(names, "best-"), *checkpoint_names(names, "v"), *fulls]


def adopt(root: Path, place: Path, names: Sequence[str], info: RunInfo) -> None:
    """Move `names` from `root` to `place`. ConfigError unless all of them are of the run of `info`."""
    foreign = foreign_files(root, names, info)
    if foreign:
        moved = " ".join(shlex.quote(str(root / name)) for name in names if name not in foreign) or f"{root}/FILE..."
        target = shlex.quote(str(place))
        raise ConfigError(
            f"store.path: {root} holds checkpoints of zmqrl 0.1, and some may belong to other runs "
            f"({', '.join(foreign)}); move those of this run, and resume again:\n"
            f"   mkdir -p {target} && mv {moved} {target}"
        )
    try:
        files.make_directory(str(place))
        for name in names:
            files.rename(str(root / name), str(place / name))
        for folder in (place, root):
            files.sync_directory(str(folder))
    except OSError as error:
        raise ConfigError(f"store.path: {root}: its checkpoints cannot be moved to {place}: {error}") from error


def foreign_files(root: Path, names: Sequence[str], info: RunInfo) -> list[str]:
    """Of `names` those that another run may have written.

    All FULLs must be of the attempt that `info` names, and no file older or younger than that attempt. A run that was
    resumed with 0.1 may fail this too: its user then moves the files.
    """
    end = float("inf") if info.ended_at is None else info.ended_at
    written = {name: (root / name).stat().st_mtime for name in names}
    foreign = {name for name, at in written.items() if not info.started_at <= at <= end}
    foreign |= {name for name in names if name.startswith("full-") and _attempt_of(root, name) != info.started_at}
    return [name for name in names if name in foreign]


def _attempt_of(root: Path, name: str) -> float | None:
    """When the attempt began in which this FULL was written."""
    content = (root / name).read_bytes()
    try:
        tensors.verify(content)
        return float(json.loads(tensors.parse(content)[1]["full"])["counters"]["leg"])
    except (StoreError, KeyError, TypeError, ValueError):
        return None
