"""Runs that have one `store.path` keep their checkpoints apart: side by side, in series, from 0.1, after a resume."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqrl as api
from tests.support.runs.command_runs import PLAIN, resume, summary, zmqrl
from zmqrl.data_stores import tensors
from zmqrl.learner.full_content import RENAMED_COUNTERS
from zmqrl.supervision.run_owner import RunOwner


def train(at: Path, name: str, steps: int, seed: int, *words: object) -> dict[str, Any]:
    """A run in single mode with the shared store; its summary."""
    run_dir = at / name
    sets = (f"store.path={at / 'store'}", f"run.total_env_steps={steps}", *PLAIN)
    flags = [word for pair in sets for word in ("--set", pair)]
    zmqrl(
        "train", "cartpole-ppo", "--mode", "single", "--seed", seed, "--run-dir", run_dir, "--plain", *flags, *words,
        at=at,
    )  # fmt: skip
    return summary(run_dir) if (run_dir / "summary.json").is_file() else {}


def places(store: Path) -> list[Path]:
    return sorted(path for path in store.iterdir() if path.is_dir())


def fulls(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("full-*.safetensors"))


def actions(run_dir: Path) -> list[int]:
    """Of the policy in its checkpoints."""
    obs = np.random.default_rng(1).normal(size=(500, 4)).astype(np.float32)
    return np.asarray(api.load_policy(run_dir)(obs)).tolist()  # type: ignore[no-any-return]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Runs A (longer) and B (after it) with one store."""
    assert train(tmp_path, "A", 6_000, 1)["env_steps"] >= 6_000
    assert train(tmp_path, "B", 2_500, 2)["env_steps"] >= 2_500
    return tmp_path


def test_two_runs_with_one_store_keep_their_own_checkpoints(two: Path) -> None:
    before = {name: summary(two / name) for name in "AB"}
    for name, steps in (("A", 6_000), ("B", 2_500)):
        alone = two / f"alone-{name}"
        seed = before[name]["seed"]
        flags = [word for pair in (f"run.total_env_steps={steps}", *PLAIN) for word in ("--set", pair)]
        words = ("train", "cartpole-ppo", "--mode", "single", "--seed", seed, "--plain", "--run-dir", alone)
        zmqrl(*words, *flags, at=two)
        assert actions(two / name) == actions(alone)
    assert actions(two / "A") != actions(two / "B")
    resume(two / "A", 8_000)
    after = summary(two / "A")
    assert after["env_steps"] >= 8_000 and after["ledger"]["stored"] == after["env_steps"] - before["A"]["env_steps"]
    assert after["resumed_from"]["env_steps"] == before["A"]["env_steps"]
    assert len(places(two / "store")) == 2
    assert not list((two / "store").glob("*.safetensors"))


@pytest.mark.long
def test_each_of_several_seeds_has_its_own_place(tmp_path: Path) -> None:
    train(tmp_path, "seeds", 2_048, 1, "--seeds", 2)
    lineages = [json.loads((tmp_path / f"seeds/seed-{n}/run.json").read_text())["lineage"] for n in (1, 2)]
    assert [path.name for path in places(tmp_path / "store")] == sorted(lineages)
    assert all(fulls(place) for place in places(tmp_path / "store"))
    owners = [json.loads((tmp_path / "store" / lineage / "owner.json").read_text()) for lineage in lineages]
    assert [Path(owner["run_dir"]).name for owner in owners] == ["seed-1", "seed-2"]


@pytest.mark.long
def test_a_lineage_and_its_attempts_are_counted(tmp_path: Path) -> None:
    train(tmp_path, "A", 2_048, 1)
    first = json.loads((tmp_path / "A/run.json").read_text())
    resume(tmp_path / "A", 4_096)
    second = json.loads((tmp_path / "A/run.json").read_text())
    assert first["lineage"] == second["lineage"] and first["run_id"] != second["run_id"]
    assert (first["attempt"], second["attempt"]) == (1, 2)
    owner = json.loads((places(tmp_path / "store")[0] / "owner.json").read_text())
    assert (owner["id"], owner["attempt"], owner["run_dir"]) == (first["lineage"], 2, str(tmp_path / "A"))


def test_a_place_of_another_lineage_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    train(tmp_path, "A", 2_048, 1)
    owner = places(tmp_path / "store")[0] / "owner.json"
    data = json.loads(owner.read_text())
    owner.write_text(json.dumps({**data, "id": "cartpole-ppo-of-another", "run_dir": "/home/another/run"}))
    before = {path: path.read_bytes() for path in (tmp_path / "A").glob("*.json")}
    said = resume(tmp_path / "A", 4_096, code=2)
    assert "cartpole-ppo-of-another" in said and data["id"] in said and "/home/another/run" in said
    assert {path: path.read_bytes() for path in (tmp_path / "A").glob("*.json")} == before


def test_a_copied_run_directory_does_not_continue_after_the_original_did(tmp_path: Path) -> None:
    train(tmp_path, "A", 2_048, 1)
    shutil.copytree(tmp_path / "A", tmp_path / "copy")
    resume(tmp_path / "A", 4_096)
    said = resume(tmp_path / "copy", 4_096, code=2)
    assert str(tmp_path / "A") in said


def as_of_0_1(run_dir: Path, store: Path) -> None:
    """What a run of 0.1 leaves: no lineage, its checkpoints directly in `store.path`, counters with earlier names."""
    data = json.loads((run_dir / "run.json").read_text())
    lineage = data.pop("lineage")
    data.pop("attempt")
    (run_dir / "run.json").write_text(json.dumps(data))
    for path in (store / lineage).glob("*.safetensors"):
        if path.name.startswith("full-"):
            _rename_counters(path)
        path.rename(store / path.name)
    shutil.rmtree(store / lineage)


def _rename_counters(path: Path) -> None:
    arrays, metadata = tensors.parse(path.read_bytes())
    full, written = json.loads(metadata["full"]), path.stat()
    for name_0_1, name in RENAMED_COUNTERS.items():
        full["counters"][name_0_1] = full["counters"].pop(name)
    path.write_bytes(tensors.dump(arrays, {**metadata, "full": json.dumps(full)}))
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))


@pytest.mark.long
def test_a_run_of_0_1_alone_in_its_store_is_resumed_and_gets_a_place(tmp_path: Path) -> None:
    first = train(tmp_path, "A", 2_048, 1)
    as_of_0_1(tmp_path / "A", tmp_path / "store")
    assert "return" in zmqrl("eval", tmp_path / "A", "--episodes", 1, at=tmp_path)
    resume(tmp_path / "A", 4_096)
    assert summary(tmp_path / "A")["resumed_from"]["env_steps"] == first["env_steps"]
    assert not list((tmp_path / "store").glob("*.safetensors"))
    assert [place.name for place in places(tmp_path / "store")] == [first["run_id"]]


def test_a_resume_owns_its_run_directory_before_it_moves_anything(tmp_path: Path) -> None:
    train(tmp_path, "A", 2_048, 1)
    as_of_0_1(tmp_path / "A", tmp_path / "store")
    before = sorted(path.name for path in (tmp_path / "store").iterdir())
    owner = RunOwner.acquire(tmp_path / "A", "another")
    try:
        assert "is in use by run another" in resume(tmp_path / "A", 4_096, code=2)
    finally:
        owner.release()
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == before


@pytest.mark.long
def test_runs_of_0_1_that_share_a_store_are_refused_with_the_command_that_moves_them(two: Path) -> None:
    for name in "AB":
        as_of_0_1(two / name, two / "store")  # B's overwrite A's, as they did
    for name in "AB":
        said = resume(two / name, 9_000, code=2)
        assert re.search(r"mkdir -p \S+ && mv \S+", said), said
    # B's user knows which files are B's: what the command moves is resumed.
    kept = [p for p in (two / "store").glob("*.safetensors") if p.name.startswith("full-")]
    place = two / "store" / summary(two / "B")["run_id"]
    place.mkdir()
    for path in kept:
        path.rename(place / path.name)
    for path in (two / "store").glob("*.safetensors"):
        path.unlink()
    resume(two / "B", 4_000)
