"""What a resume goes on from: looked for, and refused where nothing can be loaded, before anything is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zmqrl.config.hosts import LOCAL, filled, is_remote
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import HostSection
from zmqrl.data_stores.base import DataStore
from zmqrl.data_stores.damage import unlogged
from zmqrl.data_stores.make import make_store
from zmqrl.data_stores.no_full import no_full
from zmqrl.data_stores.owner import check_owner
from zmqrl.errors import ConfigError, HostFailed, StoreError
from zmqrl.launch.adoption import adopt, left_by_0_1
from zmqrl.launch.boots import FAR_RUNS
from zmqrl.launch.lineage import recorded_env_steps
from zmqrl.launch.run_directory import read_config, read_info


def prepare_resume(plan: RunPlan, from_scratch: bool = False) -> RunPlan:
    """`plan` with what is known of the checkpoints that it resumes from; call it when nothing else stands in the way.

    What an unreachable or rebooted learner's host left is copied to the run directory first.

    Args:
        plan: From `plan_run` with `resume`.
        from_scratch: The user allows the run to begin at env step 0 where no full checkpoint can be loaded.

    Raises:
        ConfigError: The checkpoints belong to another run, or the run had env steps and nothing can be loaded.
    """
    run_dir = Path(plan.run_dir)
    env_steps = recorded_env_steps(run_dir)
    why = [f"its records name {env_steps} env steps"] if env_steps else []
    unseen = _look_at_old_host(plan)
    required = env_steps > 0
    if _is_visible(plan):
        required = _check_full(plan, from_scratch, [*why, *unseen], required)
    if unseen and required and not from_scratch and plan.config.learner.host == read_config(run_dir).learner.host:
        # The next attempt has another folder there: what is on that disk would never be looked at again.
        raise ConfigError(
            f"--resume {run_dir}: {unseen[0]}, and this attempt's learner is to run there; resume again when it is "
            "reachable, or name another learner.host to continue from the copies here"
        )
    for text in unseen:
        print(f"{text}; the run continues from the copies in {plan.store_path}", file=sys.stderr, flush=True)
    return replace(plan, full_required=required and not from_scratch, from_scratch=from_scratch)


def _check_full(plan: RunPlan, from_scratch: bool, why: Sequence[str], required: bool) -> bool:
    """Whether the learner has to find a FULL."""
    store = make_store(plan)
    try:
        check_owner(store, plan.store_path, plan.lineage)
        with unlogged():
            loads = store.newest_full() is not None
    except StoreError as error:
        if not from_scratch:
            raise no_full(plan, store.passed_over() or [str(error)], why) from error
        return False
    damaged = store.passed_over()
    if not loads and not damaged and _adopted(plan, store):
        return True
    if not loads and (required or damaged) and not from_scratch:
        raise no_full(plan, damaged, why)
    return loads or required


def _adopted(plan: RunPlan, store: DataStore) -> bool:
    """Whether an attempt of 0.1 left the checkpoints directly in `store.path`; they are this lineage's from now on."""
    info, configured = read_info(Path(plan.run_dir)), plan.config.store.path
    if info is None or info.lineage is not None or configured is None:
        return False
    root = Path(configured).expanduser().absolute()
    left = left_by_0_1(root)
    if not left:
        return False
    adopt(root, Path(plan.store_path), left, info)
    return store.newest_full() is not None


def _is_visible(plan: RunPlan) -> bool:
    """Whether this machine has the checkpoints: its learner's, the copies of another host's, or a shared store.

    `store.path` may be another directory on the learner's host; the lineage's own name in it tells that.
    """
    return plan.config.learner.host == LOCAL or plan.config.store.path is None or Path(plan.store_path).is_dir()


def _look_at_old_host(plan: RunPlan) -> list[str]:
    """Copy what is newer on the disk of the last attempt's learner; why it could not be looked at, if so."""
    stored, info = read_config(Path(plan.run_dir)), read_info(Path(plan.run_dir))
    host = stored.learner.host
    section = stored.hosts.get(host, HostSection())
    if info is None or stored.store.path is not None or not is_remote(host, section):
        return []
    from zmqrl.orchestrators.ssh_checkpoints import bring_left

    folder = f"{filled(section, stored.defaults).workdir}/{FAR_RUNS}/{info.run_id}/{host}/checkpoints"
    try:
        bring_left(host, replace(stored, ssh=plan.config.ssh), folder, Path(plan.run_dir) / "checkpoints")
    except HostFailed as error:
        return [f"{host}, where the learner was, could not be looked at: {error.cause} ({error.mend})"]
    except OSError as error:
        raise ConfigError(f"{plan.run_dir}: checkpoints of {host} cannot be written there: {error.strerror}") from error
    return []
