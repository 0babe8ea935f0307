"""What only a store of objects does; here the objects are files."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from tests.support.raising import raises
from zmqrl.data_stores import directory
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.object import ObjectStore
from zmqrl.errors import DamagedCheckpoints
from zmqrl.types import Version

WEIGHTS = {"w": np.arange(6, dtype=np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def store(folder: Path) -> ObjectStore:
    return ObjectStore(f"file://{folder}", 2)


def _damage(folder: Path, name: str) -> None:
    path = folder / f"{name}.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.safetensors"))


def test_damaged_objects_are_passed_over_and_named(store: ObjectStore, folder: Path) -> None:
    for n in (1, 2):
        store.save_full(Full(Version(0, n), WEIGHTS, {"n": n}), True)
        store.save(Version(0, n), WEIGHTS, {})
    _damage(folder, "full-0-2")
    _damage(folder, "v0-2")
    full, newest = store.newest_full(), store.newest()
    assert full is not None and newest is not None
    assert full.version == newest[0] == (0, 1)
    (told,) = store.passed_over()
    assert "full-0-2.safetensors" in told and store.passed_over() == []
    assert sorted(store.damaged()) == ["full-0-2.safetensors", "v0-2.safetensors"]
    _damage(folder, "full-0-1")
    with raises(DamagedCheckpoints, names=("full-0-2.safetensors", "full-0-1.safetensors")):
        store.newest_full()


def test_what_an_earlier_process_left_is_retired_too(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is damaged takes no place of what can be loaded."""
    for n in range(5):
        store.save(Version(0, n), WEIGHTS, {})
        store.save_full(Full(Version(0, n), WEIGHTS, {}), True)
    _damage(folder, "full-0-4")
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    successor = ObjectStore(f"file://{folder}", 2)
    assert successor.newest_full() is not None
    successor.save(Version(1, 0), WEIGHTS, {})
    successor.retire()
    assert _names(folder) == ["full-0-2", "full-0-3", "v0-4", "v1-0"]


def test_a_version_is_not_deleted_right_after_it_was_superseded(store: ObjectStore, folder: Path) -> None:
    for n in range(5):
        store.save(Version(0, n), WEIGHTS, {})
        store.retire()
    assert len(_names(folder)) == 5
    store.finish()
    assert _names(folder) == ["v0-3", "v0-4"]


def test_a_service_that_is_away_does_not_stop_retention(store: ObjectStore, folder: Path) -> None:
    for n in range(5):
        store.save(Version(0, n), WEIGHTS, {})
    aside = folder.rename(folder.with_name("aside"))
    folder.write_text("in the way")
    store.retire()
    store.finish()
    folder.unlink()
    aside.rename(folder)
    store.finish()
    assert _names(folder) == ["v0-3", "v0-4"]


def test_a_full_may_be_written_while_another_thread_retires(store: ObjectStore) -> None:
    """With `store.async_replay` a thread of its own writes it."""
    for n in range(20):
        store.save(Version(0, n), WEIGHTS, {})
    fulls = Thread(target=lambda: [store.save_full(Full(Version(0, n), WEIGHTS, {}), True) for n in range(200)])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    fulls.start()
    try:
        while fulls.is_alive():
            store.retire()
    finally:
        sys.setswitchinterval(interval)
        fulls.join()
