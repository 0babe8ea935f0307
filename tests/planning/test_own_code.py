"""What the calling script defines or registers is refused, with the line that works."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from tests.envs.odd_envs import Counting
from tests.support.raising import raises
from zmqrl.algorithms.ppo import PPO
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load_config
from zmqrl.planning.own_code import check_own_code, path_of, with_paths
from zmqrl.supervision import check_process

pytestmark = pytest.mark.usefixtures("check_processes")


class Walk(Counting):
    pass


class Mine(PPO):
    pass


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if this module were the script that was started."""
    main = sys.modules["__main__"]
    before = dict(gym.registry)
    for cls in (Walk, Mine):
        monkeypatch.setattr(cls, "__module__", "__main__")
        monkeypatch.setattr(main, cls.__name__, cls, raising=False)
    yield
    for name in set(gym.registry) - set(before):
        del gym.registry[name]


def refusal(**overrides: Any) -> str:
    given = with_paths({key.replace("__", "."): value for key, value in overrides.items()})
    with pytest.raises(ConfigError) as caught:
        check_own_code(load_config("cartpole-ppo", overrides=given))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("script")
def test_a_class_of_the_script_is_refused() -> None:
    for named in (Walk, "__main__:Walk"):
        message = refusal(env__id=named)
        assert message.startswith("env.id: '__main__:Walk' is defined in the calling script or notebook")
        assert message.endswith("move the class to my_envs.py and use env.id=my_envs:Walk")
    assert refusal(env__wrappers=[{Walk: {"size": 1}}]).endswith("use env.wrappers=[my_envs:Walk]")
    assert refusal(algorithm__kind=Mine).endswith(
        "move the class to my_algorithm.py and use algorithm.kind=my_algorithm:Mine"
    )


COUNTING = "tests.envs.odd_envs:Counting"
MAKES = "each process makes its own envs: give"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"env": gym.make("CartPole-v1")}, f'env: an object of type TimeLimit; {MAKES} env={{"id": "CartPole-v1"}}'),
        ({"env.id": gym.make("Blackjack-v1")}, 'env={"id": "Blackjack-v1"}'),
        ({"env": {"id": Counting()}}, f'env.id: an object of type Counting; {MAKES} env={{"id": "{COUNTING}"}}'),
        ({"code": {"sync": [Path("a")]}}, "code.sync: an object of type PosixPath; a value is a number, a text, a "),
    ],
)
def test_an_object_is_refused_with_what_to_give(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_paths(overrides)
    assert message in str(caught.value)


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    ("entry_point", "fix"),
    [
        (Walk, "move the class to my_envs.py and use env.id=my_envs:Walk"),
        ("__main__:Walk", "move the class to my_envs.py and use env.id=my_envs:Walk"),
        (lambda: Walk(), "move the class to my_envs.py and use env.id=my_envs:Name"),
        (Counting, "use env.id=tests.envs.odd_envs:Counting, env.max_episode_steps=9"),
        ("tests.envs.odd_envs:Counting", "use env.id=tests.envs.odd_envs:Counting, env.max_episode_steps=9"),
    ],
)
def test_an_id_that_the_script_alone_registers_is_refused(entry_point: Any, fix: str) -> None:
    gym.register("Own-v0", entry_point=entry_point, max_episode_steps=9)
    for named in ("Own-v0", "Own"):
        message = refusal(env__id=named)
        assert message.startswith(f"env.id: {named!r} is registered only by the calling script or notebook")
        assert message.endswith(fix)


@pytest.mark.usefixtures("script")
def test_an_id_of_the_script_for_an_env_of_gymnasium_is_refused() -> None:
    entry_point = "gymnasium.envs.classic_control:CartPoleEnv"
    gym.register("MyCart-v0", entry_point=entry_point, max_episode_steps=9, kwargs={"sutton_barto_reward": True})
    message = refusal(env__id="MyCart-v0")
    assert message.startswith("env.id: 'MyCart-v0' is registered only by the calling script or notebook")
    setting = f"use env.id={entry_point}, env.kwargs={{'sutton_barto_reward': True}}, env.max_episode_steps=9"
    assert message.endswith(setting)


def test_the_package_that_registers_an_id_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: None
) -> None:
    package = tmp_path / "bird_lab"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import gymnasium\ngymnasium.register('Bird-v0', entry_point='tests.envs.odd_envs:Counting')\n"
        "gymnasium.register('Nest-v0', entry_point='bird_lab.nest:Nest')\n"
    )
    (package / "nest.py").write_text("from tests.envs.odd_envs import Counting as Nest\n")
    monkeypatch.syspath_prepend(tmp_path)
    check_process.end()  # the next one finds the package
    __import__("bird_lab")
    assert refusal(env__id="Nest-v0").endswith("; use env.id=bird_lab:Nest-v0")
    check_process.end()
    check_own_code(load_config("cartpole-ppo", overrides={"env.id": "bird_lab:Nest-v0"}))


def test_what_other_processes_can_import_is_accepted() -> None:
    assert path_of(Counting) == "tests.envs.odd_envs:Counting"
    with check_process.none_left():
        for named in ("CartPole-v1", "CartPole", "NotThere-v1", "CartPole-v1,", "", "tests.envs.odd_envs:Counting"):
            check_own_code(load_config("cartpole-ppo", overrides={"env.id": named}))


def test_what_has_no_name_in_its_module_is_refused() -> None:
    class Inner:
        pass

    for value in (Inner, lambda: None, types.SimpleNamespace().__class__.__call__):
        with raises(ConfigError, fix="move it to the top level of a module"):
            path_of(value)
