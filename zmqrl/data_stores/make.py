"""Data store of the configuration: how every process of the run, and every command, opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zmqrl.config.codec import replace
from zmqrl.config.kinds import options_of
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import StoreSection
from zmqrl.data_stores.base import DataStore
from zmqrl.data_stores.directory import DirectoryConfig
from zmqrl.plugins import load


def kind_of(section: StoreSection) -> tuple[type[DataStore], Any]:
    """The class of `store.kind`, and its own configuration. ConfigError when there is none."""
    kind: type[DataStore] = load(section.kind, "zmqrl.data_stores", DataStore)
    return kind, options_of(kind.Config, "store", section.options)


def place_of(section: StoreSection, run_dir: Path, lineage: str | None) -> str:
    """See `DataStore.place`."""
    kind, config = kind_of(section)
    return kind.place(config, run_dir, lineage)


def is_shared(section: StoreSection) -> bool:
    """See `DataStore.is_shared`."""
    kind, config = kind_of(section)
    return kind.is_shared(config)


def shared_directory(section: StoreSection) -> str | None:
    """The directory that hosts may share; None: another kind of store, or one in the run directory."""
    config = kind_of(section)[1]
    return config.path if isinstance(config, DirectoryConfig) else None


def open_store(section: StoreSection, place: str) -> DataStore:
    """The store at `place`, which `place_of` computed; nothing is read or written yet."""
    kind, config = kind_of(section)
    return kind(place, section.keep, config)


def make_store(plan: RunPlan) -> DataStore:
    """The store of the plan."""
    section, acted_with = plan.config.store, 1 + plan.config.mode.rounds_ahead
    return open_store(replace(section, keep=max(section.keep, acted_with)), plan.store_path)
