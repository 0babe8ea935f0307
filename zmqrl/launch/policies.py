"""Trained policies out of a run directory: for `zmqrl eval` and `zmqrl.load_policy`."""

from __future__ import annotations

from pathlib import Path

from zmqrl.acting.base import Policy
from zmqrl.acting.load import make_policy
from zmqrl.algorithms.base import Progress
from zmqrl.algorithms.make import make_algorithm
from zmqrl.config.sections import Config
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore
from zmqrl.errors import StoreError
from zmqrl.plugins import load
from zmqrl.types import EnvSpec, Version


def stored_policy(run_dir: Path, config: Config, env: EnvSpec) -> tuple[Version, Policy]:
    """The best version of a run, else its newest, ready to act. StoreError when there is none."""
    path = config.store.path or str(run_dir / "checkpoints")
    store: DataStore = load(config.store.kind, "zmqrl.data_stores", DataStore)(path, config.store.keep)
    best = store.best()
    found = best[:2] if best is not None else store.newest()
    if found is None:
        raise StoreError(f"{path} holds no version of the policy")
    version, content = found
    algorithm = make_algorithm(config, env)
    policy = make_policy(algorithm.acting())
    # Greedy actions do not depend on the schedule, but a head may ask for its values when it is loaded.
    horizon = config.run.schedule_env_steps or config.run.total_env_steps
    schedule = algorithm.schedule(Progress(config.run.seed, horizon, 0, horizon))
    policy.load(tensors.parse(content)[0], schedule)
    return version, policy
