"""What only a directory can suffer: damaged, late, replaced and deleted files."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from tests.clock import Clock
from zmqrl.data_stores import directory, tensors
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.errors import StoreError
from zmqrl.types import Version

WEIGHTS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "mean": np.array([1.5]), "n": np.array(3)}


@pytest.fixture
def files(tmp_path: Path) -> tuple[DirectoryStore, Path]:
    return DirectoryStore(str(tmp_path / "s"), 2), tmp_path / "s"


def test_a_reader_that_is_overtaken_by_retention_does_not_get_another_version(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retired file is written again: whoever has it open reads the content of a later version."""
    store, path = files
    reader = DirectoryStore(str(path), 2)
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    store.save(Version(0, 0), {"n": np.full(3, 0)}, {})
    opened: list[str] = []

    def overtaken(name: str, mode: str) -> IO[bytes]:
        file = open(name, mode)  # noqa: SIM115 - as `open` does
        if not opened:
            for n in range(1, 9):
                store.save(Version(0, n), {"n": np.full(3, n)}, {})
                store.retire()
        opened.append(name)
        return file

    monkeypatch.setattr(directory, "open", overtaken, raising=False)
    assert reader.newest() is None, "the only version that was listed is gone"
    version, content = reader.newest() or pytest.fail("there are versions")
    assert tensors.parse(content)[0]["n"].tolist() == [version.n] * 3
    assert opened[0].endswith("v0-0.safetensors")


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


def test_a_deleted_file_ends_at_the_deadline_with_its_cause(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = files
    saved = store.save(Version(0, 0), WEIGHTS, {})
    (path / saved.key).unlink()
    clock = Clock()
    monkeypatch.setattr(directory, "time", clock)
    with pytest.raises(StoreError, match="No such file"):
        store.read(saved.key, saved.nbytes, saved.sha256, 0.2)
    assert clock.now == pytest.approx(0.2)


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
