"""Files that were truncated or changed are never loaded: the one before is, and the user can be told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.raising import raises
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.errors import DamagedCheckpoints, StoreError
from zmqrl.types import Version


def _truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flipped(content: bytes) -> bytes:
    middle = len(content) - 20
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _emptied(content: bytes) -> bytes:
    return content[:0]


DAMAGES = pytest.mark.parametrize("damage", [_truncated, _flipped, _emptied])
Damage = Callable[[bytes], bytes]


def _hurt(store: DirectoryStore, name: str, damage: Damage) -> None:
    path = Path(store.path, name)
    path.write_bytes(damage(path.read_bytes()))


def _store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(str(tmp_path), 3)


def _full(n: int) -> Full:
    return Full(Version(0, n), {"weights/a": np.full(50, n)}, {"counters": {"n": n}})


@DAMAGES
def test_the_full_before_a_damaged_one(tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture) -> None:
    store = _store(tmp_path)
    for n in (4, 5):
        store.save_full(_full(n), durable=False)
    _hurt(store, "full-0-5.safetensors", damage)
    found = store.newest_full()
    assert found is not None
    assert (found.version.n, found.arrays["weights/a"][7]) == (4, 4)
    (told,) = store.passed_over()
    assert "full-0-5" in told and str(tmp_path) in told
    assert store.passed_over() == []
    assert "1 checkpoint cannot be loaded: full-0-5" in caplog.text


@DAMAGES
def test_every_full_damaged_is_an_error_that_names_them(tmp_path: Path, damage: Damage) -> None:
    store = _store(tmp_path)
    for n in (4, 5):
        store.save_full(_full(n), durable=False)
        _hurt(store, f"full-0-{n}.safetensors", damage)
    with raises(DamagedCheckpoints, names=("full-0-5.safetensors", "full-0-4.safetensors")):
        store.newest_full()


@DAMAGES
def test_before_the_only_full_there_was_the_beginning(tmp_path: Path, damage: Damage) -> None:
    store = _store(tmp_path)
    store.save_full(_full(4), durable=False)
    _hurt(store, "full-0-4.safetensors", damage)
    assert store.newest_full() is None
    (told,) = store.passed_over()
    assert "full-0-4" in told


def test_a_damaged_full_takes_no_place_of_one_that_can_be_loaded(tmp_path: Path) -> None:
    for n in (4, 5):
        _store(tmp_path).save_full(_full(n), durable=False)
    (tmp_path / "full-0-5.safetensors").write_bytes(b"cut")
    successor = _store(tmp_path)
    assert successor.newest_full() is not None
    successor.save_full(_full(6), durable=False)
    successor.retire()
    (tmp_path / "full-0-6.safetensors").write_bytes(b"cut")
    found = _store(tmp_path).newest_full()
    assert found is not None and found.version.n == 4
    assert not (tmp_path / "full-0-5.safetensors").exists()


def test_many_damaged_files_are_one_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = _store(tmp_path)
    store.save_full(_full(1), durable=False)
    for n in range(2, 53):
        (tmp_path / f"full-0-{n}.safetensors").write_bytes(b"cut")
        (tmp_path / f"v0-{n}.safetensors").write_bytes(b"cut")
    for _ in range(2):
        found = store.newest_full()
        assert found is not None and found.version.n == 1
        assert store.newest() is None
    lines = caplog.text.splitlines()
    assert len(lines) == 2
    for kind, line in zip(("full-0", "v0"), lines, strict=True):
        assert line.count(".safetensors") == 2 and f"{kind}-52" in line and f"{kind}-51" in line
        assert "51 checkpoints cannot be loaded: " in line and "and 49 more" in line
    assert len(store.passed_over()) == 51
    assert len(store.damaged()) == 102


def test_a_refusal_names_three_of_many_damaged_fulls(tmp_path: Path) -> None:
    for n in range(2, 53):
        (tmp_path / f"full-0-{n}.safetensors").write_bytes(b"cut")
    with raises(DamagedCheckpoints, names=tuple(f"full-0-{n}.safetensors" for n in range(52, 1, -1))) as caught:
        _store(tmp_path).newest_full()
    assert caught.value.cause.count(".safetensors") == 3 and caught.value.cause.endswith("; and 48 more")


@DAMAGES
def test_the_best_before_a_damaged_one(tmp_path: Path, damage: Damage) -> None:
    store = _store(tmp_path)
    for n in (1, 2, 3):
        store.save_best(Version(0, n), tensors.dump({"a": np.array(n)}, {}), float(n))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-0-2.safetensors", "best-0-3.safetensors"]
    _hurt(store, "best-0-3.safetensors", damage)
    found = store.best()
    assert found is not None
    assert (found[0], found[2]) == (Version(0, 2), 2.0)


@pytest.mark.parametrize("fulls", [1, 2])
def test_what_cannot_be_read_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fulls: int) -> None:
    """It stays, and a run that has nothing else does not begin anew."""
    for n in range(4, 4 + fulls):
        _store(tmp_path).save_full(_full(n), durable=False)
    newest = f"full-0-{3 + fulls}.safetensors"
    store = _store(tmp_path)
    read = store._content

    def content(name: str) -> bytes:
        if name == newest:
            raise PermissionError(13, "Permission denied")
        return read(name)

    monkeypatch.setattr(store, "_content", content)
    if fulls == 1:
        with raises(DamagedCheckpoints, names=(newest,)) as caught:
            store.newest_full()
        assert "Permission denied" in caught.value.cause
    else:
        found = store.newest_full()
        assert found is not None and found.version.n == 4
        assert newest in store.passed_over()[0]
    store.retire()
    assert (tmp_path / newest).exists()


def test_a_directory_that_cannot_be_listed_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _store(tmp_path)
    saved = store.save(Version(0, 4), {"a": np.zeros(3)}, {})
    store.save_full(_full(4), durable=False)

    def listdir(_: str) -> list[str]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.listdir", listdir)
    for look in (store.newest_full, store.newest, store.best):
        with raises(StoreError, place=str(tmp_path), what="cannot be read") as caught:
            look()
        assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.EIO
    store.retire()
    with raises(StoreError, name="v0-5.safetensors", what="not read within 0.05 s"):
        store.read("v0-5.safetensors", saved.nbytes, saved.sha256, 0.05)
    monkeypatch.undo()
    found = store.newest_full()
    assert found is not None and found.version.n == 4


def test_a_file_that_can_be_read_at_the_third_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: EIO and ESTALE pass."""
    store = _store(tmp_path)
    store.save_full(_full(4), durable=False)
    read, failures = store._content, [OSError(5, "EIO"), OSError(116, "ESTALE")]

    def content(name: str) -> bytes:
        if failures:
            raise failures.pop()
        return read(name)

    monkeypatch.setattr(store, "_content", content)
    found = store.newest_full()
    assert found is not None and found.version.n == 4
    assert store.passed_over() == []


def test_a_full_of_version_0_1_is_loaded() -> None:
    """`fulls/` was written by commit 9f70a05: no name of the version inside."""
    full = DirectoryStore(str(Path(__file__).with_name("fulls")), 3).newest_full()
    assert full is not None
    assert (full.version, full.meta) == (Version(0, 3), {"counters": {"n": 3, "leg": 1.5}})
    assert full.arrays["weights/w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert full.arrays["held/obs"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (full.arrays["held_metas"].shape, int(full.arrays["episodes/total"])) == ((2, 6), 3)
