"""What only a directory can suffer: damaged, late, replaced and deleted files."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from tests.support.clock import Clock
from tests.support.raising import raises
from zmqrl.config.plan import Lineage
from zmqrl.data_stores import directory, tensors
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.directory import DirectoryConfig, DirectoryStore
from zmqrl.errors import ConfigError, StoreError
from zmqrl.types import Version

WEIGHTS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "mean": np.array([1.5]), "n": np.array(3)}


def error_of(error: StoreError) -> int | None:
    """The number of the OSError that caused it."""
    return error.__cause__.errno if isinstance(error.__cause__, OSError) else None


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


def test_files_of_an_earlier_process_are_deleted_and_not_written_again(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have made them durable, or somebody may have linked them."""
    store, path = files
    for n in range(5):
        store.save(Version(0, n), WEIGHTS, {})
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    successor = DirectoryStore(str(path), 2)
    successor.save(Version(1, 0), WEIGHTS, {})
    successor.retire()
    assert sorted(item.name for item in path.iterdir()) == ["v0-4.safetensors", "v1-0.safetensors"]


def test_a_version_that_somebody_else_deleted_is_retired_as_the_others(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = files
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    for n in range(4):
        store.save(Version(0, n), WEIGHTS, {})
    (path / "v0-0.safetensors").unlink()
    store.retire()
    assert sorted(item.name for item in path.glob("v*")) == ["v0-2.safetensors", "v0-3.safetensors"]


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
    with raises(StoreError, name="v0-2.safetensors", what="not read within 0.02 s"):
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
    with raises(StoreError, name=saved.key, what="not read within 0.2 s") as caught:
        store.read(saved.key, saved.nbytes, saved.sha256, 0.2)
    assert error_of(caught.value) == errno.ENOENT
    assert clock.now == pytest.approx(0.2)


def test_a_key_cannot_leave_the_directory(files: tuple[DirectoryStore, Path]) -> None:
    store, _ = files
    store.save(Version(0, 0), WEIGHTS, {})
    with raises(StoreError, name="../secret", cause="'../secret' is not a key of a store"):
        store.read("../secret", 3, "0" * 64, 0.0)


def test_an_unwritable_place_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = DirectoryStore(str(tmp_path / "file" / "deeper"), 2)
    with raises(StoreError, name="v0-0.safetensors", what="cannot be written", fix="see store.path"):
        store.save(Version(0, 0), WEIGHTS, {})
    assert store.newest() is None


class Waits(Clock):
    """Notes each wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.waits.append(seconds)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    clock = Waits()
    monkeypatch.setattr(directory, "time", clock)
    return clock


def raising(number: int) -> Callable[..., Any]:
    def raised(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return raised


@pytest.mark.parametrize(("first_s", "deadline_s"), [(0.002, 4.0), (0.01, directory.TRANSIENT_S)], ids=["read", "list"])
def test_what_may_pass_is_tried_again_after_waits_that_double_up_to_half_a_second(
    files: tuple[DirectoryStore, Path], waits: Waits, monkeypatch: pytest.MonkeyPatch, first_s: float, deadline_s: float
) -> None:
    store, _ = files
    saved = store.save(Version(0, 0), WEIGHTS, {})
    monkeypatch.setattr(store, "_content", raising(errno.EIO))
    listed, listdir = list[str](), os.listdir
    monkeypatch.setattr("os.listdir", lambda at: (listed.append(at), listdir(at))[1])
    if first_s == 0.002:
        with raises(StoreError, name=saved.key, what="not read within 4 s") as caught:
            store.read(saved.key, saved.nbytes, saved.sha256, deadline_s)
        assert error_of(caught.value) == errno.EIO
        assert len(listed) == len(waits.waits), "a listing refreshes the cache of a client of NFS"
    else:
        assert store.newest() is None
        assert "Input/output error" in store.damaged()[saved.key]
    *doubled, last = waits.waits
    assert doubled == pytest.approx([min(0.5, first_s * 2**number) for number in range(len(doubled))])
    assert deadline_s <= waits.now <= deadline_s + 0.5 and last <= 0.5


def test_an_error_that_does_not_pass_is_raised_at_once(
    files: tuple[DirectoryStore, Path], waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = files
    saved = store.save(Version(0, 0), WEIGHTS, {})
    monkeypatch.setattr(store, "_content", raising(errno.EACCES))
    with raises(StoreError, name=saved.key, what="cannot be read") as caught:
        store.read(saved.key, saved.nbytes, saved.sha256, 5.0)
    assert error_of(caught.value) == errno.EACCES
    assert store.newest() is None
    assert waits.waits == []


@pytest.mark.parametrize(
    ("number", "logged"),
    [(errno.ENOENT, False), (errno.ESTALE, False), (errno.EIO, False), (errno.ENOTDIR, False), (errno.EACCES, True)],
)
def test_a_file_that_cannot_be_deleted_is_logged_unless_it_may_be_gone(
    files: tuple[DirectoryStore, Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    number: int, logged: bool,
) -> None:  # fmt: skip
    store, _ = files
    for n in range(3):
        store.save_best(Version(0, n), tensors.dump(WEIGHTS, {}), float(n))
    monkeypatch.setattr(directory.files, "unlink", raising(number))
    store.save_best(Version(0, 3), tensors.dump(WEIGHTS, {}), 3.0)
    assert ("cannot be deleted" in caplog.text) == logged


@pytest.mark.parametrize("durable", [False, True])
def test_a_write_that_fails_leaves_nothing_behind(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    store, path = files
    with monkeypatch.context() as patch:
        patch.setattr(directory.files, "rename", raising(errno.ENOSPC))
        with raises(StoreError, name="full-0-1.safetensors", what="cannot be written") as caught:
            store.save_full(Full(Version(0, 1), WEIGHTS, {}), durable)
        assert error_of(caught.value) == errno.ENOSPC
    assert list(path.iterdir()) == []
    store.save_full(Full(Version(0, 1), WEIGHTS, {}), durable)
    assert [item.name for item in path.iterdir()] == ["full-0-1.safetensors"]


def test_what_is_put_aside_is_durable_in_both_directories(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = files
    store.save(Version(0, 1), WEIGHTS, {})
    synced: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(directory.files, "sync_directory", lambda at: synced.append((at, sorted(os.listdir(at)))))
    assert store.put_aside("aside") == str(path / "aside")
    assert synced[-2:] == [(str(path / "aside"), ["v0-1.safetensors"]), (str(path), ["aside"])]
    store.put_back("aside")
    assert os.listdir(path) == ["v0-1.safetensors"]


@pytest.mark.parametrize("move", ["put_aside", "put_back"])
def test_checkpoints_that_cannot_be_moved_are_a_store_error(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    store, _ = files
    store.save(Version(0, 1), WEIGHTS, {})
    if move == "put_back":
        store.put_aside("aside")
    monkeypatch.setattr(directory.files, "rename", raising(errno.EACCES))
    what = {"put_aside": "cannot be moved to aside", "put_back": "cannot be moved back"}[move]
    with raises(StoreError, name="checkpoints", what=what) as caught:
        getattr(store, move)("aside")
    assert error_of(caught.value) == errno.EACCES


def test_a_full_that_cannot_be_synced_is_a_store_error(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = files
    store.save_full(Full(Version(0, 1), WEIGHTS, {}), False)
    monkeypatch.setattr(directory.files, "sync", raising(errno.EIO))
    with raises(StoreError, name="full-0-1.safetensors", what="cannot be synced to disk") as caught:
        store.sync_full(Version(0, 1))
    assert error_of(caught.value) == errno.EIO


def test_a_damaged_file_that_is_written_again_stays(files: tuple[DirectoryStore, Path]) -> None:
    store, path = files

    def write(n: int) -> None:
        store.save(Version(0, n), WEIGHTS, {})
        store.save_full(Full(Version(0, n), WEIGHTS, {}), True)

    write(1)
    write(2)
    for name in ("v0-2.safetensors", "full-0-2.safetensors"):
        (path / name).write_bytes(b"cut")
    assert store.newest_full() is not None and store.newest() is not None
    assert set(store.damaged()) == {"v0-2.safetensors", "full-0-2.safetensors"}
    write(2)
    assert store.damaged() == {}
    store.finish()
    full, newest = store.newest_full(), store.newest()
    assert full is not None and newest is not None and full.version == newest[0] == (0, 2)


def test_temporary_files_of_a_learner_that_died_are_deleted_and_those_of_the_living_stay(
    files: tuple[DirectoryStore, Path],
) -> None:
    store, path = files
    store.save(Version(0, 1), WEIGHTS, {})
    own, dead, fresh, stale, hidden = (
        f".full-0-1.safetensors.{os.getpid()}.tmp", ".full-0-2.safetensors.0.tmp", ".best-0-1.safetensors.0.tmp",
        ".best-0-2.safetensors.0.tmp", ".nfs0001",
    )  # fmt: skip
    for name in (own, dead, fresh, stale, hidden):
        (path / name).write_bytes(b"x")
    then = time.time() - directory.STALE_TEMPORARY_S - 5.0
    for name in (own, stale, hidden):
        os.utime(path / name, (then, then))
    store.retire()
    left = {fresh, hidden, "v0-1.safetensors"}
    assert {item.name for item in path.iterdir()} == {own, *left}
    store.finish()
    assert {item.name for item in path.iterdir()} == left, "its own are deleted at the end"


def test_retention_that_was_applied_costs_nothing_again(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = files
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    for n in range(9):
        store.save(Version(0, n), WEIGHTS, {})
        store.save_full(Full(Version(0, n), WEIGHTS, {}), True)
    store.retire()
    names = {item.name for item in path.iterdir()}
    assert len([name for name in names if name.endswith(".spare.tmp")]) == directory.SPARES
    for name in ("os.listdir", "os.unlink", "os.rename"):
        monkeypatch.setattr(name, lambda *paths: pytest.fail(f"again: {paths}"))
    store.retire()


def test_a_version_is_deleted_so_long_after_the_next_one_was_written(
    files: tuple[DirectoryStore, Path], waits: Waits
) -> None:
    store, path = files
    for n, at in ((0, 0.0), (1, 10.0), (2, 10.0)):
        waits.now = at
        store.save(Version(0, n), WEIGHTS, {})
    for at, is_there in ((10.0, True), (11.9, True), (12.0, False)):
        waits.now = at
        store.retire()
        assert (path / "v0-0.safetensors").exists() == is_there, at


def test_what_was_found_damaged_is_deleted_at_the_end(files: tuple[DirectoryStore, Path]) -> None:
    store, path = files
    for n in (1, 2):
        store.save(Version(0, n), WEIGHTS, {})
    store.retire()
    (path / "v0-2.safetensors").write_bytes(b"cut")
    assert store.newest() is not None
    store.finish()
    assert [item.name for item in path.iterdir()] == ["v0-1.safetensors"]


def test_a_store_that_wrote_nothing_ends_without_a_directory(tmp_path: Path) -> None:
    DirectoryStore(str(tmp_path / "none"), 2).finish()
    assert list(tmp_path.iterdir()) == []


def test_another_process_finds_the_owner(files: tuple[DirectoryStore, Path]) -> None:
    store, path = files
    for attempt in (1, 2):
        owner = Lineage("run-1", attempt, "here", "/runs/a")
        store.set_owner(owner)
        assert DirectoryStore(str(path), 2).owner() == owner


def test_what_nothing_else_can_replace_is_durable(
    files: tuple[DirectoryStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = files
    synced, sync = list[str](), directory.files.sync
    monkeypatch.setattr(
        directory.files, "sync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))
    )
    store.save(Version(0, 1), WEIGHTS, {})
    assert synced == []
    store.save_best(Version(0, 1), tensors.dump(WEIGHTS, {}), 1.0)
    store.keep(Version(0, 1), WEIGHTS, {})
    assert [Path(name).name.split(".")[1] for name in synced] == ["best-0-1", "kept-0-1"]


def test_a_store_is_visible_once_its_directory_is_there(files: tuple[DirectoryStore, Path]) -> None:
    store, path = files
    assert not store.is_visible()
    path.mkdir()
    assert store.is_visible()


@pytest.mark.parametrize(
    ("path", "lineage", "place"),
    [(None, None, "/run/checkpoints"), (None, "l1", "/run/checkpoints"), ("/data", None, "/data"),
     ("/data", "l1", "/data/l1")],
)  # fmt: skip
def test_lineages_are_kept_apart_in_a_store_outside_of_the_run(
    path: str | None, lineage: str | None, place: str
) -> None:
    config = DirectoryConfig(path)
    assert DirectoryStore.place(config, Path("/run"), lineage) == place
    assert DirectoryStore.is_shared(config) == (path is not None)
    DirectoryStore.check_mode(config, "async")


def test_a_url_is_not_a_directory() -> None:
    with raises(ConfigError, key=("store", "path"), value="'s3://bucket'"):
        DirectoryStore.check_mode(DirectoryConfig("s3://bucket"), "async")


def test_a_place_that_is_not_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with raises(ConfigError, key=("store", "path"), value=repr(str(tmp_path / "file" / "deeper"))):
        DirectoryStore.check(DirectoryConfig(str(tmp_path / "file" / "deeper")), tmp_path)
    with raises(StoreError, place=str(tmp_path / "file"), what="cannot be written", fix="see store.path"):
        DirectoryStore(str(tmp_path / "file"), 2).leave_token("run")
