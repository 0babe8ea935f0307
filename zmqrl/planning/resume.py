"""What a resume continues from: found and checked before anything is started."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL, is_remote
from zmqrl.config.paths import expanded
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import HostSection
from zmqrl.data_stores import files, tensors
from zmqrl.data_stores.base import DataStore, Full, unlogged
from zmqrl.data_stores.checkpoints import checkpoint_names
from zmqrl.data_stores.make import is_shared, make_store, shared_directory
from zmqrl.data_stores.no_full import check_nothing_loads, no_full
from zmqrl.data_stores.owner import check_owner
from zmqrl.errors import ConfigError, HostFailed, HostUnreachable, StoreError
from zmqrl.metrics.groups import EPISODES_CSV, METRICS
from zmqrl.orchestrators.make import access_of
from zmqrl.run_files.lineage import recorded_env_steps
from zmqrl.run_files.run_directory import SUMMARY, RunDirectory
from zmqrl.run_files.run_info import RunInfo, read_info
from zmqrl.run_files.stored_config import read_config
from zmqrl.run_files.url_mirror import check_mirror_owner

RESULTS = (SUMMARY, METRICS, "tensorboard", "videos", EPISODES_CSV)
"""Results of earlier attempts in a run directory: a run that begins at env step 0 has its own."""


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
        what = f"{root} holds checkpoints of zmqrl 0.1, and some may belong to other runs ({', '.join(foreign)})"
        fix = f"move those of this run, and resume again:\n   mkdir -p {target} && mv {moved} {target}"
        raise ConfigError(what, key=("store", "path"), fix=fix)
    try:
        files.make_directory(str(place))
        for name in names:
            files.rename(str(root / name), str(place / name))
        for folder in (place, root):
            files.sync_directory(str(folder))
    except OSError as error:
        raise ConfigError(
            f"its checkpoints cannot be moved to {place}: {error}", key=("store", "path"), value=str(root)
        ) from error


def foreign_files(root: Path, names: Sequence[str], info: RunInfo) -> list[str]:
    """Files of `names` that another run may have written.

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


def prepare_resume(plan: RunPlan, directory: RunDirectory, from_scratch: bool = False) -> RunPlan:
    """`plan` with what is known of the checkpoints that it resumes from; call it after all other checks.

    What an unreachable or rebooted learner's host left is copied to the run directory first.

    Args:
        plan: From `plan_run` with `resume`.
        directory: The run's, owned by this process and not begun: no other launcher writes here.
        from_scratch: The user allows the run to begin at env step 0 where no full checkpoint can be loaded.

    Raises:
        HostUnreachable: The learner would run on that of the last attempt, whose disk cannot be read now.
        ConfigError: The checkpoints or their copy belong to another run or to a later attempt elsewhere, or the run had
            env steps and nothing can be loaded. Without `plan.may_continue`: something can be loaded.
    """
    run_dir = Path(plan.run_dir)
    check_mirror_owner(plan)
    env_steps = recorded_env_steps(run_dir)
    why = [f"the {env_steps:,} env steps of the run would be lost"] if env_steps else []
    unseen = _check_old_host(plan)
    required, full, visible = env_steps > 0, None, _is_visible(plan)
    # The next attempt has another folder there: what is on that disk would never be looked at again.
    same_host = plan.config.learner.host == read_config(run_dir).learner.host
    waits = bool(unseen) and same_host and not from_scratch
    if visible and not (waits and required):
        required, full = _check_full(plan, from_scratch, [*why, *unseen], required)
        check_nothing_loads(plan, full)
    if waits and required:
        what = f"{unseen[0]}. The resumed learner would run on {plan.config.learner.host} too, in a new folder"
        fix = (
            "newer checkpoints in the old folder would never be used. Resume when the host is reachable, set another "
            f"learner.host to continue from the copies in {run_dir / 'checkpoints'}, which may be older, or start at "
            "env step 0 with --from-scratch"
        )
        raise HostUnreachable(what, key=("--resume",), value=str(run_dir), fix=fix)
    for text in unseen:
        print(f"{text}; the run continues from the copies in {plan.store_path}", file=sys.stderr, flush=True)
    if visible and full is None and from_scratch:
        _put_results_aside(plan, directory)
    warnings = (*plan.warnings, *_nothing_to_train(plan, full))
    return replace(plan, full_required=required and not from_scratch, from_scratch=from_scratch, warnings=warnings)


def _nothing_to_train(plan: RunPlan, full: Full | None) -> Iterator[str]:
    counters: Any = {} if full is None else full.meta["counters"]
    env_steps, total = int(counters.get("env_steps", 0)), plan.config.run.total_env_steps
    if env_steps >= total:
        yield (
            f"run.total_env_steps is {total:,}, and the run has {env_steps:,} env steps: nothing remains to "
            "train; to train N more env steps, use --for N"
        )


def _put_results_aside(plan: RunPlan, directory: RunDirectory) -> None:
    """The run begins at env step 0: results, metrics and checkpoints of earlier attempts are moved aside."""
    name, kept = f"before-attempt-{plan.lineage.attempt}", []
    try:
        found = [result for result in RESULTS if (directory.path / result).exists()]
        for result in found:
            directory.put_aside(result, name)
        kept += [str(directory.path / name)] if found else []
        aside = directory.put_store_aside(make_store(plan), name)
    except (OSError, StoreError) as error:
        raise ConfigError(f"earlier results cannot be kept in {name}: {error}", key=("--from-scratch",)) from error
    if aside is not None:
        kept.append(aside)
    if kept:
        text = f"the run starts at env step 0; the results of earlier attempts are kept in {' and '.join(kept)}"
        print(text, file=sys.stderr, flush=True)


def _check_full(plan: RunPlan, from_scratch: bool, why: Sequence[str], required: bool) -> tuple[bool, Full | None]:
    """Whether the learner has to find a FULL, and the newest that can be loaded."""
    store = make_store(plan)
    try:
        check_owner(store.place_key, plan.store_path, store.owner(), plan.lineage)
        with unlogged():
            full = store.newest_full()
    except StoreError as error:
        if not from_scratch:
            raise no_full(plan, store.passed_over() or [str(error)], why) from error
        return False, None
    damaged = store.passed_over()
    if full is None and not damaged:
        full = _adopted(plan, store)
    if full is None and (required or damaged) and not from_scratch:
        raise no_full(plan, damaged, why)
    return full is not None or required, full


def _adopted(plan: RunPlan, store: DataStore) -> Full | None:
    """The FULL of an attempt of 0.1, which left it directly in `store.path`; it is this lineage's from now on."""
    info, configured = read_info(Path(plan.run_dir)), shared_directory(plan.config.store)
    if info is None or info.lineage is not None or configured is None:
        return None
    root = expanded(configured, "store.path").absolute()
    left = left_by_0_1(root)
    if not left:
        return None
    adopt(root, Path(plan.store_path), left, info)
    return store.newest_full()


def _is_visible(plan: RunPlan) -> bool:
    """Whether this machine has the checkpoints: its learner's, the copies of another host's, or a shared store."""
    return plan.config.learner.host == LOCAL or not is_shared(plan.config.store) or make_store(plan).is_visible()


def _check_old_host(plan: RunPlan) -> list[str]:
    """Copy what is newer on the disk of the last attempt's learner; the reason if that failed."""
    stored, info = read_config(Path(plan.run_dir)), read_info(Path(plan.run_dir))
    host = stored.learner.host
    section = stored.hosts.get(host, HostSection())
    if info is None or is_shared(stored.store) or not is_remote(host, section):
        return []
    access = access_of(replace(stored, ssh=plan.config.ssh), [host])
    try:
        access.bring_left(host, info.run_id, Path(plan.run_dir) / "checkpoints")
    except HostFailed as error:
        return [f"{host}, the previous learner's host, is unreachable: {error.cause} ({error.fix})"]
    except OSError as error:
        raise ConfigError(f"{plan.run_dir}: checkpoints of {host} cannot be written there: {error.strerror}") from error
    return []
