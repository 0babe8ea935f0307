"""The refusal of a resume says each thing once, in a few lines."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.data_stores.make import make_store
from zmqrl.data_stores.no_full import no_full
from zmqrl.errors import StoreError
from zmqrl.planning.configure import load_config
from zmqrl.planning.plan_run import plan_run
from zmqrl.types import Version


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    return plan_run(load_config("cartpole-ppo", mode="single"), tmp_path / "run", time.time())


@pytest.mark.parametrize("weights", [0, 1])
def test_each_problem_is_reported_once(plan: RunPlan, weights: int) -> None:
    folder = Path(plan.store_path)
    folder.mkdir(parents=True)
    for n in range(40):
        (folder / f"full-0-{n}.safetensors").write_bytes(b"cut")
    store = make_store(plan)
    with pytest.raises(StoreError):
        store.newest_full()
    if weights:
        DirectoryStore(str(folder), 8).save(Version(0, 3), {}, {})
    first, *ways = str(no_full(plan, store.passed_over(), ["its records name 900 env steps"])).splitlines()
    assert first.count(str(folder)) == 1
    assert first.count(".safetensors") == 3 and "and 37 more" in first and "900" in first
    assert len(ways) == 1 + weights
    assert ways[0].count("--from-scratch") == 1 and str(folder) not in ways[0]
    assert all(f"--init-from {folder / 'v0-3.safetensors'}" in line for line in ways[1:])


def test_both_files_to_start_from_are_in_one_command(plan: RunPlan) -> None:
    store = DirectoryStore(plan.store_path, 8)
    saved = store.save(Version(0, 3), {}, {})
    store.save_best(Version(0, 2), Path(plan.store_path, saved.key).read_bytes(), 1.0)
    _, again, new = str(no_full(plan)).splitlines()
    assert "--init-from" not in again
    assert new.count("--init-from") == 1 and "v0-3" in new and "best-0-2" in new
