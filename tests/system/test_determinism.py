"""single and sync give the same bits for any number of workers, and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.system.system_plans import ACROBOT, CARTPOLE, DQN, NORMALISED, PENDULUM, PPO, PRIORITISED, system_plan
from tests.system.system_runs import PlanRun
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection

Begin = Callable[[RunPlan], PlanRun]
KINDS = {
    "ppo": (PPO, CARTPOLE),
    "ppo-normalised": (NORMALISED, ACROBOT),
    "ppo-gaussian": ({**PPO, "normalise_reward": True}, PENDULUM),
    "dqn": (DQN, CARTPOLE),
    "dqn-prioritised": (PRIORITISED, CARTPOLE),
}


@pytest.mark.parametrize(("algorithm", "env"), KINDS.values(), ids=KINDS)
def test_same_bits_for_any_number_of_workers(
    tmp_path: Path, begin: Begin, algorithm: Mapping[str, Any], env: EnvSection
) -> None:
    ways: Mapping[str, Any] = {"single": ("single", 1), "one": ("sync", 1), "two": ("sync", 2), "four": ("sync", 4)}
    runs = {  # all at once: they disturb each other's clocks
        name: begin(system_plan(tmp_path / name, mode, workers, algorithm, env))
        for name, (mode, workers) in {**ways, "again": ("sync", 2)}.items()
    }
    found = {}
    for name, summary in ((name, run.done()) for name, run in runs.items()):
        assert summary["updates"] > 10
        assert summary["policy_lag"]["max"] == 0
        assert summary["ledger"]["balanced"], summary["ledger"]
        assert summary["ledger"]["stored"] == summary["env_steps"]
        found[name] = (summary["weights_sha256"], summary["env_steps"], summary["train_return_mean_100"])
    assert len(set(found.values())) == 1, found


def test_another_seed_gives_other_bits(tmp_path: Path, begin: Begin) -> None:
    summaries = [begin(system_plan(tmp_path / str(s), "single", seed=s)).done() for s in (1, 2)]
    assert summaries[0]["weights_sha256"] != summaries[1]["weights_sha256"]


@pytest.mark.parametrize("kind", ["ppo", "ppo-normalised", "ppo-gaussian"])
def test_first_minibatch_ratio_is_one_on_every_update(tmp_path: Path, begin: Begin, kind: str) -> None:
    algorithm, env = KINDS[kind]
    begin(system_plan(tmp_path / "run", "sync", 2, algorithm, env, steps=6000, debug=True)).done()
