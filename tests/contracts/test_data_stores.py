"""The DataStore contract, over every kind found; then what only a directory can suffer."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.s3_server import BUCKET, S3Server
from zmqrl.config.plan import Lineage
from zmqrl.data_stores import directory, tensors
from zmqrl.data_stores.base import DataStore, Full
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.data_stores.memory import MemoryStore
from zmqrl.data_stores.object import ObjectStore
from zmqrl.errors import StoreError
from zmqrl.plugins import load, modules
from zmqrl.types import Version

KINDS = modules("zmqrl.data_stores", DataStore)
WEIGHTS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "mean": np.array([1.5]), "n": np.array(3)}


PLACES = (*KINDS, "object in files")
pytestmark = pytest.mark.usefixtures("s3")  # started before a test looks for processes that are left


@pytest.fixture(params=PLACES)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataStore:
    """An empty store that keeps 3 versions."""
    if request.param == "object in files":
        return ObjectStore(f"file://{tmp_path}/objects", 3)
    if request.param != "object":
        return load(request.param, "zmqrl.data_stores", DataStore)(str(tmp_path / "checkpoints"), 3)
    server: S3Server = request.getfixturevalue("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return ObjectStore(f"s3://{BUCKET}/{tmp_path.name}", 3)


def test_kinds_found() -> None:
    assert KINDS == ("directory", "memory", "object")


def test_an_empty_store(store: DataStore) -> None:
    assert store.newest() is None
    assert store.newest_full() is None
    assert store.best() is None
    with pytest.raises(StoreError, match="v0-0"):
        store.read("v0-0.safetensors", 3, "0" * 64, 0.01)


def test_weights_come_back_bit_for_bit(store: DataStore) -> None:
    saved = store.save(Version(1, 2), WEIGHTS, {"env_steps": "7"})
    arrays, metadata = tensors.parse(store.read(saved.key, saved.nbytes, saved.sha256, 1.0))
    assert metadata == {"env_steps": "7"}
    for name, array in WEIGHTS.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        assert arrays[name].tobytes() == array.tobytes()


def test_a_wrong_digest_is_never_returned(store: DataStore) -> None:
    saved = store.save(Version(1, 2), WEIGHTS, {})
    with pytest.raises(StoreError):
        store.read(saved.key, saved.nbytes, "0" * 64, 0.02)


def test_newest_is_by_incarnation_then_n(store: DataStore) -> None:
    for version in (Version(0, 9), Version(1, 2), Version(0, 10)):
        store.save(version, {"v": np.array(version)}, {})
    found = store.newest()
    assert found is not None
    assert found[0] == (1, 2)
    assert tensors.parse(found[1])[0]["v"].tolist() == [1, 2]


def test_full_with_its_plain_data(store: DataStore) -> None:
    for n in range(4):
        store.save_full(Full(Version(0, n), {"n": np.array(n)}, {"counters": {"n": n, "solved": None}}), n == 3)
        store.retire()
    full = store.newest_full()
    assert full is not None
    assert (full.version, full.meta, full.arrays["n"]) == ((0, 3), {"counters": {"n": 3, "solved": None}}, 3)


def test_best_is_one(store: DataStore) -> None:
    for n, score in ((1, 10.0), (2, 0.1 + 0.2)):
        saved = store.save(Version(0, n), {"n": np.array(n)}, {})
        store.save_best(Version(0, n), store.read(saved.key, saved.nbytes, saved.sha256, 1.0), score)
    best = store.best()
    assert best is not None
    assert (best[0], best[2]) == ((0, 2), 0.1 + 0.2)
    assert tensors.parse(best[1])[0]["n"] == 2


def test_retention_keeps_the_newest(store: DataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    saved = [store.save(Version(0, n), WEIGHTS, {}) for n in range(6)]
    store.retire()
    for old in saved[:3]:
        with pytest.raises(StoreError):
            store.read(old.key, old.nbytes, old.sha256, 0.0)
    for kept in saved[3:]:
        store.read(kept.key, kept.nbytes, kept.sha256, 0.0)


def test_what_is_put_aside_is_not_found_and_comes_back(store: DataStore) -> None:
    assert store.put_aside("none-yet") is None
    saved = store.save(Version(0, 1), WEIGHTS, {})
    store.save_full(Full(Version(0, 1), WEIGHTS, {}), True)
    store.save_best(Version(0, 1), store.read(saved.key, saved.nbytes, saved.sha256, 1.0), 2.0)
    if isinstance(store, MemoryStore):
        with pytest.raises(StoreError, match="MemoryStore"):
            store.put_aside("before")
        return
    assert store.put_aside("before") == f"{store.path}/before"  # type: ignore[attr-defined]
    assert (store.newest(), store.newest_full(), store.best()) == (None, None, None)
    store.put_back("before")
    store.put_back("before")
    best, full = store.best(), store.newest_full()
    assert best is not None and full is not None
    assert (best[0], full.version) == ((0, 1), (0, 1))
    store.read(saved.key, saved.nbytes, saved.sha256, 0.0)


def test_a_token_is_seen_until_it_is_removed(store: DataStore) -> None:
    token = store.leave_token("run-1")
    if token is None:  # nothing to compare
        return
    assert store.sees_token("run-1", token)
    assert not store.sees_token("run-2", token)
    assert not store.sees_token("run-1", "another")
    store.remove_token("run-1")
    store.remove_token("run-1")
    assert not store.sees_token("run-1", token)


# --- what can happen to files


@pytest.fixture
def files(tmp_path: Path) -> tuple[DirectoryStore, Path]:
    return DirectoryStore(str(tmp_path / "s"), 2), tmp_path / "s"


def test_a_version_is_not_deleted_right_after_it_was_superseded(files: tuple[DirectoryStore, Path]) -> None:
    store, path = files
    for n in range(9):
        store.save(Version(0, n), WEIGHTS, {})
        store.retire()
    assert len(list(path.glob("v*"))) == 9


def test_what_an_earlier_process_left_is_retired_too(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = files
    for n in range(5):
        store.save(Version(0, n), WEIGHTS, {})
        store.save_full(Full(Version(0, n), WEIGHTS, {}), False)
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    temporary = path / ".v0-9.safetensors.1.tmp"
    temporary.write_bytes(b"x")
    os.utime(temporary, (1, 1))
    successor = DirectoryStore(str(path), 2)
    successor.sync_full(Version(0, 4))
    successor.save(Version(1, 0), WEIGHTS, {})
    successor.retire()
    names = sorted(item.name for item in path.iterdir())
    spares = [name for name in names if name.endswith(".spare.tmp")]
    assert len(spares) <= directory.SPARES
    assert names == [*spares, *(f"{n}.safetensors" for n in ("full-0-3", "full-0-4", "v0-4", "v1-0"))]


@pytest.mark.parametrize("damage", ["truncate", "flip", "flip_header", "empty", "garbage"])
def test_damaged_files_are_passed_over_and_named(
    files: tuple[DirectoryStore, Path], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, path = files
    for n in (1, 2):
        store.save_full(Full(Version(0, n), WEIGHTS, {"n": n}), True)
        saved = store.save(Version(0, n), WEIGHTS, {})
    for name in ("full-0-2.safetensors", "v0-2.safetensors"):
        whole = bytearray((path / name).read_bytes())
        if damage == "flip":
            whole[-1] ^= 1
        if damage == "flip_header":
            whole[whole.index(b"a.weight")] ^= 1
        cut = {"truncate": whole[:-3], "empty": b"", "garbage": os.urandom(200)}.get(damage, whole)
        (path / name).write_bytes(cut)
    full, newest = store.newest_full(), store.newest()
    assert full is not None
    assert newest is not None
    assert full.version == newest[0] == (0, 1)
    assert "full-0-2.safetensors" in caplog.text
    with pytest.raises(StoreError, match="v0-2"):
        store.read(saved.key, saved.nbytes, saved.sha256, 0.02)


def test_a_file_that_appears_late_is_found(files: tuple[DirectoryStore, Path]) -> None:
    store, path = files
    saved = store.save(Version(0, 0), WEIGHTS, {})
    hidden = path / "elsewhere"
    (path / saved.key).rename(hidden)
    timer = threading.Timer(0.1, lambda: hidden.rename(path / saved.key))
    timer.start()
    assert len(store.read(saved.key, saved.nbytes, saved.sha256, 5.0)) == saved.nbytes
    timer.join()


def test_a_replaced_file_is_read_again(files: tuple[DirectoryStore, Path]) -> None:
    store, path = files
    saved = store.save(Version(0, 0), WEIGHTS, {})
    good = (path / saved.key).read_bytes()
    (path / saved.key).write_bytes(b"something else")
    (path / "good").write_bytes(good)
    timer = threading.Timer(0.1, lambda: (path / "good").rename(path / saved.key))
    timer.start()
    assert store.read(saved.key, saved.nbytes, saved.sha256, 5.0) == good
    timer.join()


@pytest.mark.timed
def test_a_deleted_file_ends_at_the_deadline_with_its_cause(files: tuple[DirectoryStore, Path]) -> None:
    store, path = files
    saved = store.save(Version(0, 0), WEIGHTS, {})
    (path / saved.key).unlink()
    begun = time.monotonic()
    with pytest.raises(StoreError, match="No such file"):
        store.read(saved.key, saved.nbytes, saved.sha256, 0.2)
    assert 0.2 <= time.monotonic() - begun < 1.0


def test_a_key_cannot_leave_the_directory(files: tuple[DirectoryStore, Path]) -> None:
    store, _ = files
    store.save(Version(0, 0), WEIGHTS, {})
    with pytest.raises(StoreError, match="is not a key"):
        store.read("../secret", 3, "0" * 64, 0.0)


def test_an_unwritable_place_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = DirectoryStore(str(tmp_path / "file" / "deeper"), 2)
    with pytest.raises(StoreError, match=r"store\.path"):
        store.save(Version(0, 0), WEIGHTS, {})
    assert store.newest() is None


def test_an_owner_is_found_again_or_never_recorded(store: DataStore) -> None:
    """A kind that keeps lineages apart by their paths need not record whose it is."""
    assert store.owner() is None
    for attempt in (1, 2):
        owner = Lineage("run-1", attempt, "here", "/runs/a")
        store.set_owner(owner)
        assert store.owner() in (None, owner)
