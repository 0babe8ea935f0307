"""Which envs and wrappers receive numbers, in which order, and what an exception of theirs becomes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.stand_ins.progress_envs import Forwarding, Level, Sum, WindyWalkers, in_processes, side_by_side
from tests.support.raising import raises
from tests.support.running import ROOT
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import AT_RESET, EnvSlotState
from zmqrl.envs.make import probe
from zmqrl.envs.slots import pass_numbers, receivers
from zmqrl.envs.vector import make_vector_env
from zmqrl.envs.vectorised import has_native
from zmqrl.errors import EnvFault
from zmqrl.learning import Progress, value_at
from zmqrl.planning.configure import load
from zmqrl.planning.plan_run import plan_run

HERE = "tests.stand_ins.progress_envs:"


@pytest.mark.parametrize(
    ("section", "receives"),
    [
        (EnvSection(), False),
        (EnvSection(f"{HERE}Level"), True),
        (EnvSection(wrappers=(f"{HERE}Sum", "gymnasium.wrappers:FlattenObservation"), frame_stack=2), True),
        (EnvSection("tests.envs.agent_envs:Walkers", 3, wrappers=(f"{HERE}Forwarding",)), False),
        (EnvSection(f"{HERE}WindyWalkers", 3, wrappers=(f"{HERE}Forwarding",), max_episode_steps=9), True),
        (EnvSection("tests.envs.vector_api_envs:Vec"), False),
        (EnvSection(f"{HERE}side_by_side", 2), True),
        (EnvSection(f"{HERE}in_processes", 2), True),
    ],
)
def test_the_check_before_a_run_finds_the_method_in_every_kind_of_env(section: EnvSection, receives: bool) -> None:
    assert probe(section).receives_numbers is receives


def test_the_env_is_called_before_its_wrappers_and_each_once_with_a_dict_of_its_own() -> None:
    calls: list[tuple[str, dict[str, float]]] = []

    class Noting(gym.Wrapper[Any, Any, Any, Any]):
        def on_progress(self, numbers: dict[str, float]) -> None:
            calls.append(("wrapper", dict(numbers)))
            numbers.clear()

    class Inner(Level):
        def on_progress(self, numbers: dict[str, float]) -> None:
            calls.append(("env", dict(numbers)))
            numbers.clear()

    pass_numbers(Noting(gym.wrappers.TimeLimit(Inner(), 5)), {"level": 2.0})
    assert calls == [("env", {"level": 2.0}), ("wrapper", {"level": 2.0})]


def test_a_wrapper_that_forwards_every_name_is_not_called_for_its_env() -> None:
    assert len(receivers(Forwarding(WindyWalkers()))) == 1


@pytest.mark.parametrize("make", [side_by_side, in_processes])
def test_the_envs_of_a_vector_env_receive_numbers_also_in_processes(make: Callable[[int], Any]) -> None:
    section = EnvSection(f"{HERE}{make.__name__}", 3)
    with closing(make_vector_env(section, probe(section), "async", 1, 0)) as env:
        env.start()
        env.on_progress({"level": 2.0})
        found = env.step(np.zeros(3, np.int64)).reward.tolist()
    assert found == [4.0 if make is side_by_side else 2.0] * 3, "in processes the outermost method alone is called"


def test_a_vector_form_without_the_method_is_not_used_for_an_env_with_it() -> None:
    section = EnvSection()
    env = gym.make("CartPole-v1")
    assert has_native(section, env) and not has_native(section, Sum(env))


REPEATED = EnvSlotState(0, np.zeros(2, np.int64), numbers=((AT_RESET, {"level": 1.0}), (1, {"level": 0.5})))


@pytest.mark.parametrize("states", [None, (REPEATED, REPEATED)], ids=["called", "repeated"])
def test_an_exception_of_the_method_is_the_envs_fault(states: tuple[EnvSlotState, ...] | None) -> None:
    section = EnvSection(f"{HERE}Level", 2, kwargs={"least": 1.0})
    with closing(make_vector_env(section, probe(section), "sync", 1, 0)) as env:
        with raises(EnvFault, what="on_progress raised RuntimeError: no such level") as caught:
            env.start(states)
            env.on_progress({"level": 0.5})
        assert isinstance(caught.value.__cause__, RuntimeError)


def test_the_example_of_the_page_is_accepted_and_its_env_is_easier_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "envs.md").read_text().partition("## Curricula")[2]
    code, keys = (page.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("python", "yaml"))
    (tmp_path / "curricula.py").write_text(code)
    (tmp_path / "hosts.yaml").write_text(keys)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load(hosts_file=tmp_path / "hosts.yaml", overrides=["run.mode=single"]).config
    plan = plan_run(config, tmp_path / "run", 0.0)
    assert plan.env.receives_numbers
    with closing(make_vector_env(config.env, plan.env, "single", 1, 0)) as env:
        now = Progress(1, 25_000, 0, 1)
        env.on_progress({name: value_at(number, now) for name, number in config.env.schedule.items()})
        assert env._env_of(0).unwrapped.gravity == pytest.approx(5.9)  # type: ignore[attr-defined]
