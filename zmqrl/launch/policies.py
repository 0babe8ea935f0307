"""Trained policies out of a run directory: for `zmqrl eval` and `zmqrl.load_policy`."""

from __future__ import annotations

from pathlib import Path

from zmqrl.acting.base import Policy
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.algorithms.base import Progress, schedule_of
from zmqrl.algorithms.make import make_algorithm
from zmqrl.config.sections import Config
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore, few
from zmqrl.data_stores.make import open_store
from zmqrl.errors import DamagedCheckpoints, StoreError
from zmqrl.launch.run_directory import stored_place
from zmqrl.types import EnvSpec, Version


def stored_policy(run_dir: Path, config: Config, env: EnvSpec) -> tuple[Version, Policy]:
    """The best version of a run, else its newest, ready to act. StoreError when there is none."""
    version, content = newest_or_best(*stored_checkpoints(run_dir, config))
    algorithm = make_algorithm(config, env)
    policy = make_policy(algorithm.acting())
    # Greedy actions do not depend on the schedule, but a head may request its values when it is loaded.
    horizon = config.run.schedule_env_steps or config.run.total_env_steps
    schedule = schedule_of(algorithm, Progress(config.run.seed, horizon, 0, horizon))
    policy.load(tensors.parse(content)[0], schedule)
    return version, policy


def stored_checkpoints(run_dir: Path, config: Config) -> tuple[DataStore, str]:
    """The checkpoints of the run in `run_dir`, and where they are."""
    place = stored_place(run_dir, config)
    return open_store(config.store, place), place


def newest_or_best(store: DataStore, place: str) -> tuple[Version, bytes]:
    """The best version, else the newest, with its verified content.

    Raises:
        DamagedCheckpoints: There are versions, and none of them can be loaded.
        StoreError: There is none.
    """
    best = store.best()
    found = best[:2] if best is not None else store.newest()
    if found is None:
        damaged = store.damaged()
        if damaged:
            causes = few([f"{name}: {cause}" for name, cause in damaged.items()])
            message = f"{place}: all {len(damaged)} checkpoints of the policy are damaged or unreadable ({causes})"
            raise DamagedCheckpoints(message, tuple(damaged))
        raise StoreError(f"{place} has no version of the policy")
    return found
