"""The messages of a resume that finds no FULL, or one that `--from-scratch` would leave; which weights are left."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.base import Full, few
from zmqrl.data_stores.checkpoints import checkpoint_names, names_in, newest_whole
from zmqrl.data_stores.make import shared_directory
from zmqrl.errors import ConfigError


def no_full(plan: RunPlan, damaged: Sequence[str] = (), why: Sequence[str] = ()) -> ConfigError:
    """The refusal of a resume.

    `damaged`: the files that cannot be loaded, with the cause of each. `why`: further facts: unreachable hosts, records
    of env steps.
    """
    causes = "; ".join([*why, *([few(damaged, 3)] if damaged else [])]).replace(f" in {plan.store_path}", "")
    lines = [
        f"no full checkpoint can be loaded from {plan.store_path}" + (f": {causes}" if causes else ""),
        f"   start at env step 0: zmqrl train --resume {shlex.quote(plan.lineage.run_dir)} --from-scratch",
    ]
    place = Path(plan.store_path)
    if shared_directory(plan.config.store) is not None and checkpoint_names(names_in(place.parent), "full-"):
        here, there = shlex.quote(str(place)), shlex.quote(str(place.parent))
        move = f"mkdir -p {here} && mv {there}/*.safetensors {here}"
        lines.append(f"   checkpoints of zmqrl 0.1 are directly in {place.parent}; if they belong to this run: {move}")
    files = [shlex.quote(file) for file in starting_files(place)]
    if files:
        other = f" (or {files[1]})" if len(files) > 1 else ""
        preset = shlex.quote(plan.config.run.preset or "PRESET")
        lines.append(f"   start a new run with its weights: zmqrl train {preset} --init-from {files[0]}{other}")
    return ConfigError("\n".join(lines))


def check_nothing_loads(plan: RunPlan, full: Full | None) -> None:
    """ConfigError where a run that has to start again could continue from `full`."""
    if full is None or plan.may_continue:
        return
    counters: Any = full.meta["counters"]
    raise ConfigError(
        f"the run can be continued: full-{full.version} in {plan.store_path} can be loaded (env "
        f"step {int(counters.get('env_steps', 0)):,})\n   to continue the run: remove "
        "--from-scratch\n   to start again and keep this run: use a new --run-dir, and remove "
        "--resume and --from-scratch",
        key=("--from-scratch",),
    )


def starting_files(folder: Path) -> list[str]:
    """The newest best checkpoint and the newest version in `folder` that can be loaded."""
    return [str(folder / name) for kind in ("best-", "v") for name in newest_whole(folder, kind, 1)]


def starting_full(place: str) -> str | None:
    """The newest full checkpoint at `place` that can be loaded; None where none is a file."""
    return next((str(Path(place, name)) for name in newest_whole(Path(place), "full-", 1)), None)
