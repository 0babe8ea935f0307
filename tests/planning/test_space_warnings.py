"""Warnings at the start about spaces in which a run trains but hardly learns, and the entry that they name."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from zmqrl.acting.spec import ActingSpec
from zmqrl.config.plan import RunPlan
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.planning.start_warnings import space_warnings
from zmqrl.types import EnvSpec, SpaceSpec

OBS = SpaceSpec("box", (3,), "float32")


def warned(action: SpaceSpec, head: str = "gaussian", observation: SpaceSpec = OBS) -> list[str]:
    return list(space_warnings(EnvSpec("lab:Arm", observation, action), ActingSpec((), head, action, observation)))


@pytest.mark.parametrize(
    ("low", "high", "entry"),
    [
        ((-1.0, -1.0), (1.0, 1.0), None),
        ((-2.0, -0.4), (2.0, 0.4), None),
        ((-1.0, 0.0), (1.0, 1.0), None),
        ((-10.0, 0.0), (10.0, 5.0), None),
        ((-1.0, 0.0), (1.0, 100.0), r"\[0, 100\] (entry 1 of 2)"),
        ((-400.0, -400.0), (400.0, 400.0), r"\[-400, 400\] (entry 0 of 2 and 1 more)"),
        ((-0.01, -1.0), (0.01, 1.0), r"\[-0.01, 0.01\] (entry 0 of 2)"),
        ((-1.0, 2.0), (1.0, 4.0), r"\[2, 4\] (entry 1 of 2)"),
        ((-5.0, -1.0), (-0.5, 1.0), r"\[-5, -0.5\] (entry 0 of 2)"),
    ],
)
def test_bounds_far_from_those_of_the_first_actions(
    low: tuple[float, ...], high: tuple[float, ...], entry: str | None
) -> None:
    action = SpaceSpec("box", (2,), "float32", low=low, high=high)
    found = warned(action)
    assert len(found) == (entry is not None)
    for warning in found:
        assert re.match(r"env.id: action bounds " + (entry or "").replace("(", r"\(").replace(")", r"\)"), warning)
        assert "RescaleAction" in warning and "\n" not in warning
    assert warned(action, "squashed_gaussian") == []


def test_an_action_that_cannot_change() -> None:
    (found,) = warned(SpaceSpec("box", (2,), "float32", low=(-1.0, 1.0), high=(1.0, 1.0)))
    assert found.startswith("env.id: action bounds [1, 1] (entry 1 of 2): an action that cannot change")
    assert "RescaleAction" not in found, "it divides by the width"


def test_actions_without_a_bound_on_each_side_are_left_alone() -> None:
    assert warned(SpaceSpec("box", (1,), "float32", low=(5.0,), high=(float("inf"),))) == []
    assert warned(SpaceSpec("box", (1,), "float32")) == []
    assert warned(SpaceSpec("discrete", (), "int64", n=200_000), "categorical") == []


@pytest.mark.parametrize(
    ("observation", "values"),
    [
        (SpaceSpec("discrete", (), "int64", n=1_000_000), "1,000,000 values"),
        (SpaceSpec("multi_discrete", (2,), "int64", nvec=(70_000, 80_000)), "150,000 values"),
        (SpaceSpec("discrete", (), "int64", n=5_000), None),
    ],
)
def test_observations_that_are_large_as_one_hot(observation: SpaceSpec, values: str | None) -> None:
    found = warned(SpaceSpec("discrete", (), "int64", n=2), "categorical", observation)
    assert [values in warning for warning in found] == [True] * (values is not None)  # type: ignore[operator]


def planned(tmp_path: Path, *flags: str) -> RunPlan:
    overrides = ["env.id=tests.envs.value_envs:Acts", "env.kwargs={bounds: far}", "env.max_episode_steps=9", *flags]
    loaded = load("pendulum-ppo", overrides=overrides, mode="sync", workers=1)
    return checked_plan(loaded.config, tmp_path / "run", time.time(), sources=loaded.sources)


def test_the_start_of_a_run_warns_and_the_named_wrapper_fixes_it(tmp_path: Path) -> None:
    (warning,) = planned(tmp_path).warnings
    entry = re.search(r"add (\{.*\}) to env.wrappers", warning)
    assert entry is not None, warning
    plan = planned(tmp_path, f"env.wrappers=[{entry[1]}]")
    assert plan.warnings == () and (plan.env.action.low, plan.env.action.high) == ((-1.0, -1.0), (1.0, 1.0))
