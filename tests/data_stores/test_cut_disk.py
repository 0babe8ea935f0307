"""A cut after any operation on the disk leaves a FULL that is no older than the last durable one."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.data_stores.cut_disk import CutDisk
from tests.support.stored_runs import begun
from zmqrl.config.plan import Lineage
from zmqrl.config.sections import Config, EvaluatorSection
from zmqrl.data_stores import directory, files, tensors
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.errors import ConfigError
from zmqrl.planning.plan_run import plan_run
from zmqrl.run_files.run_info import read_info
from zmqrl.run_files.stored_config import read_config
from zmqrl.types import Version

DURABLE_EVERY = 5


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """An empty directory in memory: many thousand files are made in it."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def disk(quick: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CutDisk]:
    (quick / "disk").mkdir()
    (quick / "cuts").mkdir()
    recorded = CutDisk(quick / "disk", monkeypatch)
    yield recorded
    recorded.check()


def _full(version: Version) -> Full:
    return Full(version, {"a": np.full(40, version.n), "b": np.arange(version.n)}, {"counters": {"n": version.n}})


class _Promise:
    """What a cut must leave: a FULL of `at_least`, or a later one, whole and under its own name."""

    def __init__(self, disk: CutDisk, store: Path, cuts: Path) -> None:
        self._disk, self._store, self._cuts = disk, store, cuts
        self.at_least: Version | None = None
        self.states = 0
        disk.at_each = self.check

    def check(self) -> None:
        for state in self._disk.cuts(self._cuts):
            self.states += 1
            found = DirectoryStore(str(state / self._store), 2).newest_full()
            if found is None:
                assert self.at_least is None
            else:
                assert self.at_least is None or found.version >= self.at_least, (found.version, self.at_least)
                expected = _full(found.version)
                assert {n: a.tolist() for n, a in found.arrays.items()} == {
                    n: a.tolist() for n, a in expected.arrays.items()
                }
                assert found.meta == expected.meta
            shutil.rmtree(state)

    def durable(self, version: Version) -> None:
        self.at_least = version
        self._disk.forget()
        self.check()


@pytest.mark.parametrize("piece", [1 << 20, 600], ids=["one write", "in pieces"])
@pytest.mark.whole
def test_each_operation_of_two_learners(
    quick: Path, disk: CutDisk, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Rounds of sync: FULL in each, few of them durable; then a death, a successor, and its end."""
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    monkeypatch.setattr(tensors, "PIECE_BYTES", piece)
    place = Path("run") / "checkpoints"
    promise = _Promise(disk, place, quick / "cuts")
    for incarnation in range(2):
        store = DirectoryStore(str(disk.root / place), 2)
        found = store.newest_full()
        if found is not None:
            store.sync_full(found.version)
            promise.durable(found.version)
        for n in range(13):
            version = Version(incarnation, n)
            store.save(version, {"a": np.full(9, n)}, {})
            durable = n % DURABLE_EVERY == 0
            store.save_full(_full(version), durable)
            if durable:
                promise.durable(version)
            store.retire()
    store.finish()
    assert disk.operations > 250 and promise.states > 1000, (disk.operations, promise.states)
    assert not [name for name in os.listdir(disk.root / place) if name.startswith(".")]


def test_what_a_run_writes_before_its_first_lease(quick: Path, disk: CutDisk) -> None:
    """Before the run directory is whole a resume is refused, or goes on; from then on it has all that it needs."""
    run_dir = disk.root / "runs" / "today"
    plan = plan_run(Config(evaluator=EvaluatorSection(episodes=0)), run_dir, time.time())
    is_made = has_full = False
    seen = 0

    def check() -> None:
        nonlocal seen
        for state in disk.cuts(quick / "cuts"):
            seen += 1
            cut = state / "runs" / "today"
            try:
                assert read_config(cut) == plan.config
            except ConfigError:
                assert not is_made
            info = read_info(cut)
            assert not is_made or (info is not None and info.run_id == plan.run_id)
            found = DirectoryStore(str(cut / "checkpoints"), 2).newest_full()
            assert found is not None or not has_full
            shutil.rmtree(state)

    disk.at_each = check
    made = begun(plan)
    is_made = True
    disk.forget()
    check()
    store = DirectoryStore(plan.store_path, 2)
    store.set_owner(plan.lineage)
    store.save(Version(0, 0), {"a": np.zeros(3)}, {})
    store.save_full(_full(Version(0, 0)), durable=True)
    has_full = True
    disk.forget()
    check()
    made.write("status.json", {"n": 1})
    made.mark_ended(time.time())
    made.release()
    assert seen > 40


def test_a_hard_link_of_a_backup_keeps_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    store, backup = DirectoryStore(str(tmp_path / "store"), 1), tmp_path / "backup"
    backup.mkdir()
    linked: dict[str, bytes] = {}
    for n in range(12):
        store.save(Version(0, n), {"a": np.full(40, n)}, {})
        store.save_full(_full(Version(0, n)), durable=False)
        for path in [path for path in (tmp_path / "store").iterdir() if not (backup / path.name).exists()]:
            os.link(path, backup / path.name)  # cp -al
            linked[path.name] = path.read_bytes()
        store.retire()
    assert len(linked) >= 24
    assert {path.name: path.read_bytes() for path in backup.iterdir()} == linked


def test_the_name_of_a_file_that_was_written_again_is_not_loaded(tmp_path: Path) -> None:
    """A cut may keep an old name of an inode and the new content."""
    store = DirectoryStore(str(tmp_path), 2)
    for n in (3, 7):
        store.save_full(_full(Version(0, n)), durable=False)
    shutil.copy(tmp_path / "full-0-3.safetensors", tmp_path / "full-0-9.safetensors")
    found = store.newest_full()
    assert found is not None and found.version == Version(0, 7)
    assert "full-0-9" in store.passed_over()[0]


def test_the_end_keeps_what_retention_keeps_and_nothing_hidden(tmp_path: Path) -> None:
    """Of a fast run, whose versions are all younger than retention waits for."""
    (tmp_path / ".full-0-7.safetensors.1.tmp").write_bytes(b"of a learner that was killed")
    being_written = tmp_path / ".best-0-7.safetensors.1.tmp"
    being_written.write_bytes(b"by the evaluator")
    store = DirectoryStore(str(tmp_path), 3)
    for n in range(40):
        store.save(Version(0, n), {"a": np.full(9, n)}, {})
        store.save_full(_full(Version(0, n)), durable=n in (0, 20))
        store.retire()
    store.save_full(_full(Version(0, 40)), durable=True)
    store.finish()
    names = sorted(path.name.removesuffix(".safetensors") for path in tmp_path.iterdir())
    assert names == sorted(["full-0-20", "full-0-39", "full-0-40", "v0-37", "v0-38", "v0-39", being_written.name])


def test_a_version_that_is_written_again_counts_once(tmp_path: Path) -> None:
    """As at the end of a run that is stopped between two batches."""
    store = DirectoryStore(str(tmp_path), 1)
    for n in (1, 2, 2):
        store.save(Version(0, n), {"a": np.zeros(3)}, {})
    store.finish()
    assert os.listdir(tmp_path) == ["v0-2.safetensors"]


def test_what_is_durable_or_of_another_process_is_never_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has such a file open reads it to its end, however often it was retired."""
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    before = DirectoryStore(str(tmp_path), 100)
    before.save(Version(0, 0), {"a": np.zeros(40)}, {})
    before.save_full(_full(Version(0, 0)), durable=False)
    store = DirectoryStore(str(tmp_path), 100)
    held = {name: (tmp_path / name).open("rb") for name in os.listdir(tmp_path)}
    for n in range(1, 30):
        store.save(Version(1, n), {"a": np.full(40, n)}, {})
        store.save_full(_full(Version(1, n)), durable=n % 4 == 0)
        if n % 4 == 0:
            held[f"full-1-{n}.safetensors"] = (tmp_path / f"full-1-{n}.safetensors").open("rb")
        store.retire()
    for name, file in held.items():
        with file:
            metadata = tensors.verify(file.read())
            assert name.startswith("v") or f"full-{metadata['version']}.safetensors" == name


def test_a_durable_file_is_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that still has the old name of a retired file would have another version's content under it."""
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    store = DirectoryStore(str(tmp_path), 1)
    for n in range(6):
        store.save(Version(0, n), {"a": np.full(9, n)}, {})
        store.save_full(_full(Version(0, n)), durable=False)
        store.retire()

    def retired() -> set[str]:
        return {path.name for path in tmp_path.glob(".*.spare.tmp")}

    before = retired()
    assert len(before) == directory.SPARES
    store.save_full(_full(Version(0, 6)), durable=True)
    store.keep(Version(0, 6), {"a": np.zeros(9)}, {})
    assert retired() == before
    store.save_full(_full(Version(0, 7)), durable=False)
    assert len(retired()) == directory.SPARES - 1, "another one is written over a retired file"


def test_a_directory_whose_sync_failed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sync of a name that the disk has lost may succeed."""
    calls, failures = list[str](), [OSError(errno.EIO, "Input/output error")]
    mkdir = files.mkdir

    def sync_once_failing(path: str) -> None:
        if failures:
            raise failures.pop()
        calls.append(f"sync {Path(path).name}")

    monkeypatch.setattr(files, "sync_directory", sync_once_failing)
    monkeypatch.setattr(files, "mkdir", lambda path: (calls.append(f"make {Path(path).name}"), mkdir(path)))
    with pytest.raises(OSError, match="Input/output error"):
        files.make_directory(str(tmp_path / "store"))
    files.make_directory(str(tmp_path / "store"))
    assert calls == ["make store", "make store", f"sync {tmp_path.name}"]


def test_the_place_of_a_lineage_is_durable_in_every_directory_above_it(quick: Path, disk: CutDisk) -> None:
    """Its owner record is what makes it."""
    place, version = Path("shared") / "lineage", Version(0, 3)
    store = DirectoryStore(str(disk.root / place), 2)
    store.set_owner(Lineage("lineage", 1, "host", "/run"))
    store.save_full(_full(version), durable=True)
    for state in disk.cuts(quick / "cuts"):
        found = DirectoryStore(str(state / place), 2).newest_full()
        assert found is not None and found.version == version
