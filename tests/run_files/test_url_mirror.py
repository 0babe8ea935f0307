"""Copies of a run at a URL, here of files: what is copied, kept and fetched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.agent.plans import stand_in_plan
from tests.support.raising import raises
from tests.support.stored_runs import begun
from tests.support.waiting import until
from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Lineage, RunPlan
from zmqrl.config.sections import StoreSection
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.copies import BUSY_SHARE
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.data_stores.object import ObjectStore
from zmqrl.data_stores.objects import Objects
from zmqrl.data_stores.owner import check_owner
from zmqrl.errors import ConfigError, StoreError, StoreRefused
from zmqrl.run_files.lineage import lineage_of
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.run_files.stored_config import read_config, stored_config
from zmqrl.run_files.url_mirror import UrlMirror, check_mirror_owner, fetch, target_of
from zmqrl.types import Version
from zmqrl.views.problem import Problem

SLOW_S = 0.05
WEIGHTS = {"w": np.arange(4, dtype=np.float32)}


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[RunPlan]:
    """Of a run that has begun."""
    there = f"file://{tmp_path}/there"
    plan = stand_in_plan(tmp_path / "run")
    lineage = Lineage("run-1", 1, "here", plan.run_dir)
    config = replace(plan.config, store=StoreSection(options={"path": None, "mirror": there}))
    plan = replace(plan, config=config, lineage=lineage, store_path=f"{plan.run_dir}/checkpoints")
    directory = begun(plan)
    yield plan
    directory.release()


def _copied(plan: RunPlan) -> list[Problem]:
    """One copy, with its problems."""
    problems: list[Problem] = []
    target = target_of(plan)
    assert target is not None
    mirror = UrlMirror(plan, target, problems.append)
    mirror.end()
    until(lambda: mirror.is_complete(0.5, lambda: False) or problems, "a copy")
    mirror.abandon()
    return problems


def _there(plan: RunPlan) -> list[str]:
    folder = Path(plan.run_dir).with_name("there") / plan.lineage.id
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".safetensors")


def _write(plan: RunPlan, *versions: Version) -> DirectoryStore:
    store = DirectoryStore(plan.store_path, 8)
    for version in versions:
        saved = store.save(version, WEIGHTS, {})
        store.save_full(Full(version, WEIGHTS, {}), True)
        store.save_best(version, store.read(saved.key, saved.nbytes, saved.sha256, 1.0), 1.0)
    return store


def test_the_newest_of_each_kind_are_copied_and_older_ones_deleted_there(plan: RunPlan) -> None:
    _write(plan, Version(0, 1), Version(0, 2), Version(0, 3))
    assert _copied(plan) == []
    assert _there(plan) == [f"{n}.safetensors" for n in ("best-0-3", "full-0-2", "full-0-3", "v0-3")]
    _write(plan, Version(0, 10))
    assert _copied(plan) == []
    assert _there(plan) == [f"{n}.safetensors" for n in ("best-0-10", "full-0-10", "full-0-3", "v0-10")]


def test_all_kept_versions_are_copied_and_fetched(plan: RunPlan, tmp_path: Path) -> None:
    store = _write(plan, Version(0, 4))
    for version in (Version(0, 1), Version(0, 2), Version(0, 3)):
        store.keep(version, WEIGHTS, {"env_steps": "7"})
    assert _copied(plan) == []
    kept = [f"kept-0-{n}.safetensors" for n in (1, 2, 3)]
    assert [name for name in _there(plan) if name.startswith("kept-")] == kept
    url = f"{plan.config.store.options['mirror']}/{plan.lineage.id}"
    fetch(url, tmp_path / "fetched", to_resume=True)
    fetched = DirectoryStore(str(tmp_path / "fetched" / "checkpoints"), 8)
    assert [version.n for version in fetched.versions()] == [1, 2, 3, 4]
    store.put_aside("before")
    store.keep(Version(1, 1), WEIGHTS, {"env_steps": "7"})
    assert _copied(plan) == []
    assert [name for name in _there(plan) if name.startswith("kept-")] == ["kept-1-1.safetensors"]


def test_a_run_that_starts_from_scratch_replaces_the_later_versions_there(plan: RunPlan) -> None:
    store = _write(plan, Version(3, 9))
    assert _copied(plan) == []
    store.put_aside("before")
    assert _copied(plan) == []
    assert "full-3-9.safetensors" in _there(plan), "nothing else is there yet"
    _write(plan, Version(1, 1))
    assert _copied(plan) == []
    assert _there(plan) == [f"{n}.safetensors" for n in ("best-1-1", "full-1-1", "v1-1")]


def test_a_damaged_checkpoint_is_not_copied(plan: RunPlan) -> None:
    _write(plan, Version(0, 1), Version(0, 2))
    damaged = Path(plan.store_path, "full-0-2.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    Path(plan.store_path, "v0-2.safetensors").write_bytes(b"")
    assert _copied(plan) == []
    assert _there(plan) == ["best-0-2.safetensors", "full-0-1.safetensors", "v0-1.safetensors"]
    assert not [path for path in Path(plan.store_path).iterdir() if path.name.startswith(".")]


def test_a_kind_of_which_none_can_be_copied_is_reported_once_and_the_rest_is_copied(plan: RunPlan) -> None:
    _write(plan, Version(0, 1))
    Path(plan.store_path, "full-0-1.safetensors").write_bytes(b"half")
    problems: list[Problem] = []
    target = target_of(plan)
    assert target is not None
    config = replace(plan.config, run=replace(plan.config.run, checkpoint_every_s=0.001))
    mirror = UrlMirror(replace(plan, config=config), target, problems.append)
    until(lambda: len(problems) > 0, "a report")
    mirror.end()
    until(lambda: mirror.is_complete(0.5, lambda: False), "the last copy")
    (problem,) = problems
    assert "no full checkpoint in" in problem.cause
    assert _there(plan) == ["best-0-1.safetensors", "v0-1.safetensors"]
    assert Path(plan.run_dir).with_name("there").joinpath(plan.lineage.id, "run.json").exists()


@pytest.mark.parametrize("attempt", [1, 2])
def test_what_another_machine_copied_since_is_not_replaced(plan: RunPlan, attempt: int) -> None:
    """Also with the same number: both continued from the same state."""
    _write(plan, Version(0, 1))
    assert _copied(plan) == []
    elsewhere = Lineage(plan.lineage.id, attempt, "another-host", "/home/another/run")
    record = Path(plan.run_dir).with_name("there") / plan.lineage.id / "owner.json"
    record.write_text(json.dumps(to_json(elsewhere)))
    _write(plan, Version(0, 2))
    (problem,) = _copied(plan)
    assert "/home/another/run of another-host" in problem.cause
    assert "full-0-2.safetensors" not in _there(plan)
    what = f"was continued elsewhere: attempt {attempt} of run-1, run directory /home/another/run of another-host"
    with raises(ConfigError, key=("store", "mirror"), what=what):
        check_mirror_owner(plan)
    check_mirror_owner(replace(plan, lineage=replace(plan.lineage, attempt=attempt + 1)))


@pytest.mark.parametrize("kind", ["directory", "object"])
def test_a_machine_lost_before_its_first_copy_ends_does_not_lock_the_url(
    plan: RunPlan, tmp_path: Path, kind: str
) -> None:
    """It wrote the owner record, and `run.json` there is of the attempt before."""
    if kind == "object":
        plan = _of_objects(plan, f"file://{tmp_path}/there")
    else:
        _write(plan, Version(0, 1))
    assert _copied(plan) == []
    url = f"file://{tmp_path}/there/{plan.lineage.id}"
    lost = Lineage(plan.lineage.id, 2, "lost", "/runs/lost")
    ObjectStore(url, 1).set_owner(lost)
    fetch(url, tmp_path / "again", to_resume=True)
    lineage = lineage_of(plan.config, tmp_path / "again", resume=True)
    assert lineage.attempt == 3
    check_owner("store.mirror", url, lost, lineage)
    what = "was continued elsewhere: attempt 2 of run-1, run directory /runs/lost of lost"
    with raises(ConfigError, key=("store", "mirror"), what=what):  # an earlier copy
        check_owner("store.mirror", url, lost, lineage_of(plan.config, Path(plan.run_dir), resume=True))
    fetch(url, tmp_path / "evaluated", to_resume=False)


def test_checkpoints_not_visible_on_this_machine_are_reported(plan: RunPlan, tmp_path: Path) -> None:
    (problem,) = _copied(replace(plan, store_path=str(tmp_path / "on another host")))
    assert "is not visible on this machine" in problem.cause


def test_an_outage_that_becomes_a_refusal_is_reported_again_and_not_waited_for(
    plan: RunPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[StoreError] = [StoreError("Connection refused"), StoreError("timed out")]

    def names(objects: Objects) -> list[str]:
        raise errors.pop(0) if errors else StoreRefused("403 Forbidden")

    monkeypatch.setattr(Objects, "names", names)
    monkeypatch.setattr("zmqrl.run_files.url_mirror.AGAIN_S", 0.01)
    problems: list[Problem] = []
    target = target_of(plan)
    assert target is not None
    mirror = UrlMirror(plan, target, problems.append)
    until(lambda: len(problems) > 1, "the refusal")
    mirror.end()
    until(lambda: not mirror.is_alive, "the end of the thread")
    assert not mirror.is_complete(0.0, lambda: False)
    named = [problem.cause.removeprefix("the run is not copied: ") for problem in problems]
    assert named == ["Connection refused", "403 Forbidden"]


def test_a_slow_service_is_not_kept_busy(plan: RunPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def names(objects: Objects) -> list[str]:
        calls.append(time.monotonic())
        time.sleep(SLOW_S)
        return []

    monkeypatch.setattr(Objects, "names", names)
    config = replace(plan.config, run=replace(plan.config.run, checkpoint_every_s=0.001))
    target = target_of(plan)
    assert target is not None
    mirror = UrlMirror(replace(plan, config=config), target, lambda problem: None)
    until(lambda: len(calls) > 2, "three copies")
    mirror.abandon()
    assert calls[2] - calls[1] >= SLOW_S / BUSY_SHARE


def test_metrics_are_copied_when_they_have_grown_by_a_fraction_and_at_the_end(
    plan: RunPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy sends the whole file, which grows as long as the run."""
    puts: list[tuple[str, bool]] = []
    listings = 0

    def put(objects: Objects, name: str, content: bytes | Path) -> None:
        if objects.url == url:  # the thread of an earlier test may still end
            puts.append((name, isinstance(content, Path)))
        write(objects, name, content)

    def names(objects: Objects) -> list[str]:
        nonlocal listings
        listings += objects.url == url
        return names_of(objects)

    def copies(since: int, count: int) -> None:
        until(lambda: listings > since + count, "further copies")

    target = target_of(plan)
    assert target is not None
    url, write, names_of = target.url, Objects.put, Objects.names
    monkeypatch.setattr(Objects, "put", put)
    monkeypatch.setattr(Objects, "names", names)
    metrics, row = Path(plan.run_dir, "metrics.jsonl"), b'{"wall_s": 1.0, "env_steps": 1}\n'
    metrics.write_bytes(row * 1000)
    config = replace(plan.config, run=replace(plan.config.run, checkpoint_every_s=0.001))
    mirror = UrlMirror(replace(plan, config=config), target, lambda problem: None)
    for grown in (40, 100):
        copies(listings, 2)
        with metrics.open("ab") as file:
            file.write(row * grown)
    copies(listings, 2)
    assert puts.count(("metrics.jsonl", True)) == 2
    with metrics.open("ab") as file:
        file.write(row)
    RunDirectory(Path(plan.run_dir)).count_attempts(7)
    mirror.end()
    until(lambda: mirror.is_complete(0.5, lambda: False), "the last copy")
    assert Objects(url).get("metrics.jsonl") == metrics.read_bytes()
    assert sorted(puts) == [
        ("config.json", True),
        *[("metrics.jsonl", True)] * 3,
        ("owner.json", False),
        *[("run.json", True)] * 2,
    ]


def test_what_is_fetched_is_a_run_directory_with_its_own_checkpoints(plan: RunPlan, tmp_path: Path) -> None:
    _write(plan, Version(0, 1))
    shared = StoreSection(options={"path": str(tmp_path / "shared"), "mirror": f"file://{tmp_path}/there"})
    stored = Path(plan.run_dir, "config.json")
    data = json.loads(stored.read_text())
    data["config"]["store"]["path"] = shared.options["path"]
    stored.write_text(json.dumps(data))
    assert _copied(plan) == []
    fetch(f"file://{tmp_path}/there/run-1", tmp_path / "again", to_resume=True)
    store = read_config(tmp_path / "again").store
    assert store.options == {"path": None, "mirror": f"file://{tmp_path}/there"}
    full = DirectoryStore(str(tmp_path / "again" / "checkpoints"), 8).newest_full()
    assert full is not None and full.version == (0, 1)


def test_an_evaluation_fetches_no_full_checkpoints(plan: RunPlan, tmp_path: Path) -> None:
    _write(plan, Version(0, 1))
    assert _copied(plan) == []
    fetch(f"file://{tmp_path}/there/run-1", tmp_path / "again", to_resume=False)
    names = sorted(path.name for path in (tmp_path / "again" / "checkpoints").iterdir())
    assert names == ["best-0-1.safetensors", "v0-1.safetensors"]


@pytest.mark.parametrize("was_there", [True, False])
def test_a_fetch_that_fails_leaves_nothing(
    plan: RunPlan, tmp_path: Path, was_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(plan, Version(0, 1))
    assert _copied(plan) == []
    again, requested = tmp_path / "again", []

    def fetch_object(objects: Objects, name: str, path: Path) -> bool:
        requested.append(name)
        if len(requested) > 3:
            raise StoreError(f"{name} cannot be read: Connection refused")
        path.write_bytes(b"x")
        assert not [*again.glob("*.json")], "a directory without its checkpoints is no run"
        return True

    for module in ("run_files.url_mirror", "data_stores.copies"):
        monkeypatch.setattr(f"zmqrl.{module}.fetch_object", fetch_object)
    if was_there:
        again.mkdir()
    with raises(ConfigError, key=(), what="summary.json cannot be read: Connection refused"):
        fetch(f"file://{tmp_path}/there/run-1", again, to_resume=True)
    assert again.exists() == was_there
    assert not was_there or not [*again.iterdir()]


@pytest.mark.parametrize("ends", [True, False])
def test_a_copy_that_is_written_meanwhile_is_listed_again(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The run there replaces the checkpoints between the listing and the reading."""
    _write(plan, Version(0, 1))
    assert _copied(plan) == []
    n = 1

    def pieces(objects: Objects, name: str) -> Iterator[bytes]:
        nonlocal n
        if name.startswith("full-") and (n < 3 or not ends):
            n += 1
            there = Path(objects.url.removeprefix("file://"))
            (there / name).rename(there / f"full-0-{n}.safetensors")
        yield from read(objects, name)

    read = Objects.pieces
    monkeypatch.setattr(Objects, "pieces", pieces)
    again = tmp_path / "again"
    if not ends:
        with raises(ConfigError, value=f"file://{tmp_path}/there/run-1", fix="try again, or stop that run first"):
            fetch(f"file://{tmp_path}/there/run-1", again, to_resume=True)
        assert not again.exists()
        return
    fetch(f"file://{tmp_path}/there/run-1", again, to_resume=True)
    assert sorted(path.name for path in (again / "checkpoints").glob("full-*")) == ["full-0-3.safetensors"]


def test_a_copy_with_another_content_is_refused(plan: RunPlan, tmp_path: Path) -> None:
    assert _copied(plan) == []
    (tmp_path / "there" / "run-1" / "config.json").write_text("{")
    stored, fix = f"file://{tmp_path}/there/run-1/config.json", "restore the file from a copy of the run"
    with raises(ConfigError, value=stored, fix=fix):
        fetch(f"file://{tmp_path}/there/run-1", tmp_path / "again", to_resume=True)
    assert not (tmp_path / "again").exists()


def _of_objects(plan: RunPlan, url: str) -> RunPlan:
    section = StoreSection(kind="object", options={"url": url})
    plan = replace(plan, config=replace(plan.config, store=section), store_path=f"{url}/{plan.lineage.id}")
    Path(plan.run_dir, "config.json").write_text(json.dumps(stored_config(plan.config)))
    return plan


def test_records_of_a_run_whose_checkpoints_are_objects_are_copied_next_to_them(plan: RunPlan, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/objects"
    plan = _of_objects(plan, url)
    assert _copied(plan) == []
    fetch(f"{url}/run-1", tmp_path / "again", to_resume=True)
    assert read_config(tmp_path / "again").store == plan.config.store
