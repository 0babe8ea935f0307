"""single and sync give the same bits for any number of workers, with `run.debug` and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs.references import References
from tests.support.runs.system_plans import CARTPOLE, PPO, TALLY, system_plan
from tests.support.runs.system_runs import SAME, PlanRun
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import NetworkSection
from zmqrl.types import ModeName

Begin = Callable[[RunPlan], PlanRun]
STEPS = 4000


def test_same_bits_with_four_workers(tmp_path: Path, begin: Begin, reference: References) -> None:
    """With `run.debug`, PPO fails where the ratio of the first minibatch of an update is not 1.

    Other kinds are in `test_kind_runs`.
    """
    run = begin(system_plan(tmp_path / "4", "sync", 4, PPO, CARTPOLE, steps=STEPS, debug=True))
    single = reference(system_plan(tmp_path / "single", "single", 1, PPO, CARTPOLE, steps=STEPS))
    for summary in (single, run.done()):
        assert summary["updates"] > 10
        assert summary["policy_lag"]["max"] == 0
        assert summary["ledger"]["balanced"], summary["ledger"]
        assert summary["ledger"]["stored"] == summary["env_steps"]
        assert {name: summary[name] for name in SAME} == {name: single[name] for name in SAME}


@pytest.mark.long
def test_threads_of_updates_are_not_those_of_acting(tmp_path: Path, begin: Begin, reference: References) -> None:
    """The learner of single acts too; with 16 rows and 256 columns two threads of a BLAS give other bits than one."""

    def plan_of(mode: ModeName) -> RunPlan:
        env, network = replace(CARTPOLE, num_envs=16), NetworkSection(hidden=(256, 256))
        plan = system_plan(tmp_path / mode, mode, 1, {**PPO, "epochs": 1}, env, network=network, steps=2000)
        return replace(plan, config=replace(plan.config, learner=replace(plan.config.learner, threads=2)))

    assert begin(plan_of("sync")).done()["weights_sha256"] == reference(plan_of("single"))["weights_sha256"]


@pytest.mark.long
def test_an_env_of_single_does_not_change_the_settings_of_the_learner(
    tmp_path: Path, begin: Begin, reference: References
) -> None:
    env = replace(CARTPOLE, wrappers=("tests.stand_ins.setting_envs:Setting",))
    run = begin(system_plan(tmp_path / "changed", "single", 1, PPO, env, steps=STEPS))
    summary, straight = run.done(), reference(system_plan(tmp_path / "single", "single", 1, PPO, CARTPOLE, steps=STEPS))
    assert {name: summary[name] for name in SAME} == {name: straight[name] for name in SAME}
    assert (
        "torch.set_default_dtype, from torch.float32 to torch.float64"
        in (tmp_path / "changed" / "status.json").read_text()
    )


@pytest.mark.long
def test_another_seed_gives_other_bits(tmp_path: Path, begin: Begin, reference: References) -> None:
    one, two = (system_plan(tmp_path / str(seed), "single", 1, TALLY, seed=seed) for seed in (1, 2))
    assert begin(two).done()["weights_sha256"] != reference(one)["weights_sha256"]
