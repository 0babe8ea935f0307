"""Trained policies out of a run directory: for `zmqrl eval` and `zmqrl.load_policy`."""

from __future__ import annotations

from pathlib import Path

from zmqrl.acting.base import Policy
from zmqrl.acting.load import make_policy
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
    policy = make_policy(make_algorithm(config, env).acting())
    policy.load(tensors.parse(content)[0], {})
    return version, policy
