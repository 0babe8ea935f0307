"""A resume that finds no FULL: what to tell the user, and which weights are left to start from."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from zmqrl.config.plan import RunPlan
from zmqrl.data_stores import tensors
from zmqrl.data_stores.directory import checkpoint_names
from zmqrl.errors import ConfigError, StoreError


def no_full(plan: RunPlan, why: Sequence[str] = ()) -> ConfigError:
    """The refusal of a resume; `why` are damaged files, hosts that could not be asked, records of env steps."""
    causes = f": {'; '.join(why)}" if why else ""
    again = f"zmqrl train --resume {shlex.quote(plan.lineage.run_dir)} --from-scratch"
    lines = [
        f"--resume {plan.lineage.run_dir}: no full checkpoint can be loaded from {plan.store_path}{causes}",
        f"   {again} begins at env step 0",
    ]
    place = Path(plan.store_path)
    if plan.config.store.path is not None and checkpoint_names(_names(place.parent), "full-"):
        here, there = shlex.quote(str(place)), shlex.quote(str(place.parent))
        move = f"mkdir -p {here} && mv {there}/*.safetensors {here}"
        lines.append(f"   checkpoints of zmqrl 0.1 are directly in {place.parent}; if they are of this run: {move}")
    files = list(starting_files(place))
    preset = shlex.quote(plan.config.run.preset or "PRESET")
    lines += [f"   a new run from its weights: zmqrl train {preset} --init-from {shlex.quote(f)}" for f in files]
    return ConfigError("\n".join(lines))


def starting_files(folder: Path) -> Iterator[str]:
    """The newest best checkpoint and the newest version in `folder` that can be loaded."""
    names = _names(folder)
    for kind in ("best-", "v"):
        whole = (name for name in reversed(checkpoint_names(names, kind)) if is_whole(folder / name))
        yield from (str(folder / name) for name in list(whole)[:1])


def is_whole(path: Path) -> bool:
    """Whether a checkpoint can be read and is as it was written."""
    try:
        tensors.verify(path.read_bytes())
    except (OSError, StoreError):
        return False
    return True


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
