"""From a plan to its data store, as every process of the run opens it."""

from __future__ import annotations

from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.base import DataStore
from zmqrl.plugins import load


def make_store(plan: RunPlan) -> DataStore:
    """The store of `store.kind` at the plan's path."""
    kind = load(plan.config.store.kind, "zmqrl.data_stores", DataStore)
    store: DataStore = kind(plan.store_path, plan.config.store.keep)
    return store
