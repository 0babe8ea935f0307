"""A new run with the weights of another: the same bits whatever dies before its first FULL."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.runs.command_runs import PLAIN, summary, zmqrl
from tests.support.runs.system_plans import ACROBOT, NORMALISED, system_plan
from tests.support.runs.system_runs import PlanRun, assert_same, newest_n
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores import tensors
from zmqrl.types import Array

Begin = Callable[[RunPlan], PlanRun]
ATTEMPTS = 5
"""A loaded machine may let a run write its second FULL before the test looks."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a normalised run on Acrobot."""
    run = PlanRun(system_plan(tmp_path_factory.mktemp("source") / "run", "single", 1, NORMALISED, ACROBOT, steps=2_000))
    run.done()
    return run.run_dir


def plan_of(run_dir: Path, source: Path) -> RunPlan:
    return system_plan(run_dir, "sync", 2, NORMALISED, ACROBOT, steps=3_000, init_from=str(source))


def newest(folder: Path) -> Path:
    return max(folder.glob("v0-*"), key=lambda path: int(path.stem.rpartition("-")[2]))


class Undisturbed(NamedTuple):
    version_0: Mapping[str, Array]
    summary: Mapping[str, Any]


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    run = PlanRun(plan_of(tmp_path_factory.mktemp("undisturbed") / "run", source))
    run.wait_for_updates(0)
    version_0 = tensors.parse((run.run_dir / "checkpoints" / "v0-0.safetensors").read_bytes())[0]
    return Undisturbed(version_0, run.done())


@pytest.mark.long
def test_version_0_is_the_newest_of_the_other_run(source: Path, undisturbed: Undisturbed) -> None:
    for name, array in tensors.parse(newest(source / "checkpoints").read_bytes())[0].items():
        np.testing.assert_allclose(undisturbed.version_0[name], array, rtol=1e-9, err_msg=name)


@pytest.fixture
def young(tmp_path: Path, begin: Begin, source: Path) -> PlanRun:
    """A run that has no FULL but its first, whose learner is stopped, and whose source is gone: it has its own copy."""
    for attempt in range(ATTEMPTS):
        copy = tmp_path / f"source-{attempt}"
        shutil.copytree(source, copy)
        run = begin(plan_of(tmp_path / f"run-{attempt}", copy))
        run.wait_for_updates(0)
        os.kill(run.processes()["learner-0"].pid, signal.SIGSTOP)
        if newest_n(Path(run.plan.store_path), "full") <= 0:
            shutil.rmtree(copy)
            return run
        run.cut_short()
    pytest.fail(f"{ATTEMPTS} runs had their second full checkpoint before they were looked at")


@pytest.mark.long
def test_a_learner_killed_before_its_second_full_begins_with_the_same_weights(
    young: PlanRun, undisturbed: Undisturbed
) -> None:
    young.kill("learner-0")
    assert_same(young.done(), undisturbed.summary)
    assert young.summary()["restarts"] == 1


@pytest.mark.long
def test_a_run_resumed_before_its_second_full_begins_with_the_same_weights(
    young: PlanRun, undisturbed: Undisturbed, begin: Begin
) -> None:
    young.cut_short()
    again = begin(replace(young.plan, run_id=f"{young.plan.run_id}-b", resume=True))
    assert_same(again.done(), undisturbed.summary)


def test_the_command_refuses_another_network_and_writes_nothing(tmp_path: Path, source: Path) -> None:
    said = zmqrl("train", "cartpole-ppo", "--init-from", source, "--run-dir", tmp_path / "run", at=tmp_path, code=2)
    assert "init_from" in said and "expected shape" in said and "found" in said
    assert not (tmp_path / "run").exists()


def test_the_command_starts_from_a_run_and_from_a_file_of_it(tmp_path: Path) -> None:
    sets = [word for pair in ("run.total_env_steps=2048", *PLAIN) for word in ("--set", pair)]
    words = ("train", "cartpole-ppo", "--mode", "single", "--plain", *sets)
    zmqrl(*words, "--run-dir", tmp_path / "first", at=tmp_path)
    last = newest(tmp_path / "first" / "checkpoints")
    for name, given in (("run", "first"), ("file", last)):
        zmqrl(*words, "--init-from", given, "--run-dir", tmp_path / name, at=tmp_path)
    shas = [summary(tmp_path / name)["weights_sha256"] for name in ("run", "file", "first")]
    assert shas[0] == shas[1] != shas[2]
    first = tmp_path / "first"
    said = zmqrl("train", "--resume", tmp_path / "run", "--set", f"run.init_from={last}", at=first, code=2)
    assert "run.init_from" in said
