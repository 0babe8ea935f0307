"""What of a directory is copied to a URL while its learner writes and retires checkpoints."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from tests.support.raising import raises
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.checkpoints import checkpoint_names
from zmqrl.data_stores.copies import copy_newest
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.data_stores.objects import Objects
from zmqrl.errors import StoreError
from zmqrl.types import Version

WEIGHTS = {"w": np.arange(4, dtype=np.float32)}
DURABLE_EVERY = 10


class FastLearner:
    """Writes a version and a full checkpoint each round, as sync does; each `DURABLE_EVERY`th of these is durable."""

    def __init__(self, folder: Path) -> None:
        self.store, self.n = DirectoryStore(str(folder), 8), 0

    def train(self, rounds: int) -> None:
        for _ in range(rounds):
            version = Version(0, self.n)
            self.store.save(version, WEIGHTS, {})
            self.store.save_full(Full(version, WEIGHTS, {}), self.n % DURABLE_EVERY == 0)
            self.store.retire()
            self.n += 1


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    (tmp_path / "there").mkdir()
    return Objects(f"file://{tmp_path}/there")


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None]) -> None:
    """`act` is called with the name of each object before it is put."""
    put = Objects.put

    def slow(objects: Objects, name: str, content: bytes | Path) -> None:
        act(name)
        put(objects, name, content)

    monkeypatch.setattr(Objects, "put", slow)


def test_full_checkpoints_of_a_learner_that_retires_them_during_each_upload_are_copied(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = FastLearner(tmp_path / "here")
    learner.train(25)
    meanwhile(monkeypatch, lambda name: learner.train(3))
    assert copy_newest(tmp_path / "here", objects, []) == []
    fulls = checkpoint_names(objects.names(), "full-").values()
    assert [version.n for version in fulls] == [20, 27], "the newest, and the newest of those that stay"


def test_one_that_is_there_and_retired_here_counts_among_the_newest(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = FastLearner(tmp_path / "here")
    learner.train(25)
    copy_newest(tmp_path / "here", objects, [])
    meanwhile(monkeypatch, lambda name: learner.train(3))
    learner.train(1)
    copy_newest(tmp_path / "here", objects, objects.names())
    fulls = checkpoint_names(objects.names(), "full-").values()
    assert [version.n for version in fulls] == [24, 28], "24 is there, and newer than 20"
    learner.train(10)
    copy_newest(tmp_path / "here", objects, objects.names())
    fulls = checkpoint_names(objects.names(), "full-").values()
    assert [version.n for version in fulls] == [40, 44]


def no_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def link(path: Path, to: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_copied(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    FastLearner(tmp_path / "here").train(2)
    no_links(monkeypatch, number)
    assert copy_newest(tmp_path / "here", objects, []) == []
    assert sorted(objects.names()) == ["full-0-0.safetensors", "full-0-1.safetensors", "v0-1.safetensors"]
    for name in objects.names():
        assert objects.get(name) == (tmp_path / "here" / name).read_bytes()
    assert not [*(tmp_path / "here").glob(".*")]


def test_an_error_of_a_link_that_is_not_of_the_file_system_is_reported(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FastLearner(tmp_path / "here").train(2)
    no_links(monkeypatch, errno.EROFS)
    with raises(StoreError, name="v0-1.safetensors", what="cannot be copied", cause="Read-only file system"):
        copy_newest(tmp_path / "here", objects, [])


def test_a_file_that_is_written_again_as_another_version_while_it_is_copied_does_not_count(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner recycles the files of volatile full checkpoints."""
    learner = FastLearner(tmp_path / "here")
    learner.train(25)
    no_links(monkeypatch, errno.EPERM)
    copy = shutil.copyfileobj

    def slow(file: BinaryIO, to: BinaryIO) -> None:
        learner.train(4)
        copy(file, to)

    monkeypatch.setattr(shutil, "copyfileobj", slow)
    assert copy_newest(tmp_path / "here", objects, []) == []
    fulls = checkpoint_names(objects.names(), "full-")
    assert [version.n for version in fulls.values()] == [20], "10 was retired meanwhile, as 20 and 30 stay"
    for name, version in fulls.items():
        assert tensors.parse(objects.get(name) or b"")[1]["version"] == str(version)


def test_a_kind_of_which_none_can_be_copied_is_named(objects: Objects, tmp_path: Path) -> None:
    FastLearner(tmp_path / "here").train(2)
    for path in (tmp_path / "here").glob("full-*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert copy_newest(tmp_path / "here", objects, []) == ["full-"]
    assert objects.names() == ["v0-1.safetensors"]


def test_names_that_begin_again_are_compared_by_their_digests(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"

    def train(content: float, *names: str) -> None:
        for path in here.glob("*"):
            path.unlink()
        here.mkdir(exist_ok=True)
        for name in names:
            path = here / f"{name}.safetensors"
            path.write_bytes(tensors.dump({"w": np.full(3, content, np.float32)}, {"version": name.partition("-")[2]}))

    def found() -> dict[str, float]:
        contents = {name.partition(".")[0]: objects.get(name) for name in objects.names()}
        return {name: float(tensors.parse(content)[0]["w"][0]) for name, content in contents.items() if content}

    train(1.0, "kept-0-10", "kept-0-20", "full-0-19", "full-0-20", "v-0-20", "best-0-20")
    copy_newest(here, objects, [])
    train(2.0, "kept-0-10", "full-0-19", "full-0-20", "best-0-20")
    same: set[str] = set()
    copy_newest(here, objects, objects.names(), same)
    assert {content for name, content in found().items() if not name.startswith("v")} == {2.0}
    assert "kept-0-20" not in found()
    train(1.0, "kept-0-10", "kept-0-20", "full-0-20", "v0-20", "best-0-20")
    copy_newest(here, objects, objects.names())
    train(2.0, "full-0-1", "v0-1")
    copy_newest(here, objects, objects.names())
    assert found() == {"full-0-1": 2.0, "v0-1": 2.0}, "kinds that the new training does not have yet"
    train(2.0, "kept-0-10", "full-0-19", "full-0-20", "best-0-20")
    copy_newest(here, objects, objects.names(), same)
    put: list[str] = []
    meanwhile(monkeypatch, put.append)
    monkeypatch.setattr(Objects, "starts_with", lambda *arguments: pytest.fail("compared twice"))
    copy_newest(here, objects, objects.names(), same)
    assert put == []
    objects.delete(["kept-0-10.safetensors"])
    copy_newest(here, objects, objects.names(), same)
    assert put == ["kept-0-10.safetensors"], "the service has lost it"


def test_what_was_damaged_here_after_it_was_copied_stays_there(objects: Objects, tmp_path: Path) -> None:
    FastLearner(tmp_path / "here").train(2)
    copy_newest(tmp_path / "here", objects, [])
    whole = objects.get("full-0-1.safetensors")
    for damaged in (b"", b"\xff" * 9, (whole or b"")[:-1]):
        (tmp_path / "here" / "full-0-1.safetensors").write_bytes(damaged)
        copy_newest(tmp_path / "here", objects, objects.names())
        assert objects.get("full-0-1.safetensors") == whole
