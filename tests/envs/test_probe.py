from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import pytest

from tests.support.raising import raises
from tests.support.yardstick import loop_s
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import probe
from zmqrl.envs.vectorised import make_native
from zmqrl.errors import ConfigError
from zmqrl.types import StateSpec

MOST_LOOPS = 1500
"""Of the yardstick, for a message."""
WIDTH = 3
RESCALE = "gymnasium.wrappers:RescaleAction"


class NotAnEnv:
    """It has no method of an env."""


"""Not an env."""


class WithoutSpaces(gym.Env[Any, Any]):
    """Its spaces are not set."""


class Unopened(gym.Wrapper[Any, Any, Any, Any]):
    """Its `close` closes what no one has opened."""

    def close(self) -> None:
        self.viewer.close()


class Around:
    """It has an env, and is not a wrapper."""

    def __init__(self, env: Any) -> None:
        self.env = env


def no_env() -> None:
    """A factory without a return."""


def no_wrapper(env: Any) -> None:
    del env


def test_what_is_known_of_cartpole() -> None:
    spec = probe(EnvSection())
    assert (spec.action.kind, spec.action.n, spec.observation.shape) == ("discrete", 2, (4,))
    assert spec.observation.low == ()
    assert (spec.reward_threshold, spec.native_vector) == (475.0, True)


def test_an_env_whose_close_fails_is_an_env() -> None:
    assert probe(EnvSection(wrappers=("tests.envs.test_probe:Unopened",))).action.n == 2


def test_wrappers_kwargs_without_a_vector_form_and_own_classes_are_not_native() -> None:
    assert not probe(EnvSection(wrappers=("gymnasium.wrappers:FlattenObservation",))).native_vector
    assert not probe(EnvSection(id="tests.envs.odd_envs:Walker")).native_vector


def test_bounds_of_a_box() -> None:
    action = probe(EnvSection(id="Pendulum-v1")).action
    assert (action.low, action.high, action.dtype) == ((-2.0,), (2.0,), "float32")


def test_an_id_that_a_module_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(EnvSection(id="gymnasium.envs:CartPole-v1")).action.n == 2


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (EnvSection(id="CartPol-v1"), ["env.id", "'CartPol-v1'", "'CartPole-v1'"]),
        (EnvSection(id="CartPole-v9"), ["env.id", "'CartPole-v1'"]),
        (EnvSection(kwargs={"gravty": 1}), ["env.kwargs", "gravty"]),
        (EnvSection(id="ALE/Pong-v5"), ["pip install '.[atari]'"]),
        (EnvSection(id="minatar.gym:BaseEnv"), ["pip install '.[minatar]'"]),
        (EnvSection(id="HalfCheetah-v5"), ["pip install '.[mujoco]'"]),
        (
            EnvSection(id="no_such_envs:Walker"),
            [
                "env.id: 'no_such_envs:Walker': module 'no_such_envs' was not found; run the",
                "the command in the directory that contains no_such_envs.py, or set PYTHONPATH",
            ],
        ),
        (
            EnvSection(id="no_such_lab.envs:Walk-v0"),
            ["install it, run the command in the directory that contains no_such_lab/,"],
        ),
        (EnvSection(id=f"{__name__}:NotAnEnv"), ["NotAnEnv': class NotAnEnv is neither a class of envs or"]),
        (EnvSection(id=f"{__name__}:no_env"), ["env.id: ", "makes NoneType, which is neither a gymnasium.Env nor a"]),
        (EnvSection(id=f"{__name__}:WIDTH"), ["WIDTH': an object of type int is neither a class of envs"]),
        (EnvSection(id="tests.envs.odd_envs.Walker"), ["did you mean 'tests.envs.odd_envs:Walker'?"]),
        (EnvSection(id="grid.Goal2D"), ["env.id: 'grid.Goal2D': a class", "did you mean 'grid:Goal2D'?"]),
        (EnvSection(id="grid.py:Goal2D"), ["did you mean 'grid:Goal2D'?"]),
        (EnvSection(id="./tests/envs/odd_envs.py:Walker"), ["did you mean 'tests.envs.odd_envs:Walker'?"]),
        (EnvSection(id="gymnasium.nope:Walk"), ["'gymnasium.nope' was not found; 'gymnasium' was found, and"]),
        (
            EnvSection(wrappers=("gymnasium.wrappers:ClipRewar",)),
            ["env.wrappers: ", "module 'gymnasium.wrappers' has no 'ClipRewar'; did you mean 'ClipReward'?"],
        ),
        (EnvSection(wrappers=("ClipReward",)), ["env.wrappers: 'ClipReward'", "module:Wrapper"]),
        (
            EnvSection(wrappers=(f"{__name__}:NotAnEnv",)),
            ["env.wrappers: ", "class NotAnEnv is neither a class of envs or wrappers"],
        ),
        (
            EnvSection(wrappers=(f"{__name__}:Around",)),
            ["env.wrappers: ", "class Around is neither a class of envs or"],
        ),
        (
            EnvSection(wrappers=(f"{__name__}:WIDTH",)),
            ["env.wrappers: ", "type int is neither a class of envs or wrappers"],
        ),
        (EnvSection(wrappers=(f"{__name__}:no_wrapper",)), ["env.wrappers: ", "NoneType, which is not an env"]),
        (EnvSection(id=f"{__name__}:WithoutSpaces"), ["env.id: ", "WithoutSpaces has no observation_space"]),
        (EnvSection(id="CartPole-v1,"), ["env.id: 'CartPole-v1,' is not an env id", "'CartPole-v1'?"]),
        (EnvSection(id="Cart Pole-v1"), ["env.id: 'Cart Pole-v1' is not an env id", "'CartPole-v1'?"]),
        (EnvSection(id="CartPole/v1/x"), ["env.id: 'CartPole/v1/x' is not an env id"]),
        (EnvSection(id=":CartPole"), ["env.id: ':CartPole' is not an env id"]),
        (EnvSection(id="tests.envs:"), ["env.id: 'tests.envs:' is not an env id", "module:Class"]),
        (EnvSection(id="tests.envs:Base:x"), ["env.id: 'tests.envs:Base:x' is not an env id", "module:Class"]),
        (EnvSection(id="LunarLander-v2"), ["env.id: 'LunarLander-v2' is deprecated", "'LunarLander-v3'"]),
        (EnvSection(id="json"), ["env.id: 'json'", "write json:NAME"]),
        (EnvSection(id="tests.envs.odd_envs"), ["write tests.envs.odd_envs:NAME"]),
        (EnvSection(id="tests/envs/odd_envs.py"), ["write tests.envs.odd_envs:NAME"]),
        (EnvSection(id="tests.envs.odd_envs:Walkr"), ["has no 'Walkr'; did you mean 'Walker'?"]),
        (EnvSection(id="Breakout-v5"), ["env.id: ", "`ALE/NAME-v5`"]),
        (EnvSection(id="Foo-v1"), ["env.id: no env is registered as 'Foo-v1'; write "]),
        (EnvSection(wrappers=("nope:Nope",)), ["env.wrappers: 'nope:Nope': module 'nope' was not found; run the"]),
        (
            EnvSection(wrappers=({"gymnasium.wrappers:FrameStackObservation": {"frames": 2}},)),
            ["env.wrappers: 'gymnasium.wrappers:FrameStackObservation': the arguments {'frames': 2} are not accepted"],
        ),
        (
            EnvSection(wrappers=("gymnasium.wrappers:FrameStackObservation",)),
            ["env.wrappers: 'gymnasium.wrappers:FrameStackObservation': arguments are missing", "stack_size"],
        ),
        (
            EnvSection(wrappers=({"gymnasium.wrappers:TimeAwareObservation": {}, "a:B": {}},)),
            ["env.wrappers: {'gymnasium.wrappers:TimeAwareObservation': {}, 'a:B': {}}: each entry must be"],
        ),
        (
            EnvSection(wrappers=({RESCALE: {"min_action": 0, "max_action": 1}, "a:Other": {}},)),
            ["env.wrappers: {", "...: each entry must be one wrapper"],
        ),
        (
            EnvSection(id="FrozenLake-v1", kwargs={"map_name": "9x9"}),
            ["env.id: 'FrozenLake-v1' cannot be created with env.kwargs {'map_name': '9x9'}: KeyError: '9x9'"],
        ),
        (
            EnvSection(wrappers=({"gymnasium.wrappers:FrameStackObservation": {"stack_size": -1}},)),
            ["env.wrappers: 'gymnasium.wrappers:FrameStackObservation' {'stack_size': -1} cannot be applied"],
        ),
        (EnvSection(id="tests.envs.odd_envs:Breaking"), ["env.id", "fault"]),
        (EnvSection(id=""), ["env.id"]),
    ],
)
def test_one_message_with_key_value_and_way_out(
    section: EnvSection, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    begun = time.process_time()
    with pytest.raises(ConfigError) as caught:
        probe(section)
    assert time.process_time() - begun < MOST_LOOPS * loop_s()
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


FACTORIES = "tests.envs.faulty_factories"


@pytest.mark.parametrize(
    ("section", "begin", "place"),
    [
        (
            EnvSection(id=f"{FACTORIES}:unregistered"),
            f"env.id: '{FACTORIES}:unregistered' cannot be created: NameNotFound: ",
            "faulty_factories.py:11, in unregistered); import the package that registers it in that file",
        ),
        (
            EnvSection(id=f"{FACTORIES}:wrong_call"),
            f"env.id: '{FACTORIES}:wrong_call' cannot be created: TypeError: CartPoleEnv.__init__() got an unexpected ",
            "faulty_factories.py:15, in wrong_call)",
        ),
        (
            EnvSection(id=f"{FACTORIES}:fails", kwargs={"size": 2}),
            f"env.id: '{FACTORIES}:fails' cannot be created with env.kwargs {{'size': 2}}: TypeError: can only concat",
            "faulty_factories.py:19, in fails)",
        ),
        (
            EnvSection(id=f"{FACTORIES}:fails", kwargs={"length": 2}),
            f"env.kwargs: {{'length': 2}} are not accepted by '{FACTORIES}:fails': fails() got an unexpected",
            "",
        ),
        (
            EnvSection(kwargs={"sutton_barto_reward": True}, wrappers=({f"{FACTORIES}:Fails": {"size": 3}},)),
            f"env.wrappers: '{FACTORIES}:Fails' {{'size': 3}} cannot be applied: KeyError: 3 (",
            "faulty_factories.py:25, in __init__)",
        ),
        (
            EnvSection(wrappers=(f"{FACTORIES}:lacks_a_package",)),
            f"env.wrappers: '{FACTORIES}:lacks_a_package' needs 'no_such_package', which is missing; install the",
            "",
        ),
        (
            EnvSection(wrappers=("gymnasium.wrappers:RescaleAction",)),
            "env.wrappers: 'gymnasium.wrappers:RescaleAction': arguments are missing: ",
            "",
        ),
        (
            EnvSection(wrappers=({"gymnasium.wrappers:RescaleAction": {"min_action": 0, "max_action": 1}},)),
            "env.wrappers: 'gymnasium.wrappers:RescaleAction' {'min_action': 0, 'max_action': 1} cannot be applied: Ty",
            ", in __init__)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_of_a_factory_or_wrapper_names_the_right_key_and_the_line(
    section: EnvSection, begin: str, place: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        probe(section)
    assert str(caught.value).startswith(begin)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_id_without_a_version_is_the_newest_version() -> None:
    assert probe(EnvSection(id="CartPole")) == replace(probe(EnvSection(id="CartPole-v1")), id="CartPole")
    assert make_native(EnvSection(id="gymnasium:Pendulum"), 2) is None


def test_wrappers_take_arguments() -> None:
    stacked = {"gymnasium.wrappers:FrameStackObservation": {"stack_size": 3}}
    spec = probe(EnvSection(wrappers=(stacked, "gymnasium.wrappers:FlattenObservation")))
    assert spec.observation.shape == (12,)


def test_the_state_of_an_env_is_looked_for_when_a_key_asks_and_its_form_is_checked() -> None:
    def stateful(**keys: Any) -> EnvSection:
        return EnvSection(**{"id": "tests.envs.odd_envs:Stateful", "recovery": "state", **keys})

    assert probe(stateful(recovery="exact")).state is None
    assert probe(stateful()).state == StateSpec("<f8", (3,))
    assert probe(stateful(kwargs={"form": "bytes"})).state == StateSpec("bytes", (24,))
    assert probe(stateful(max_episode_steps=9)).state is not None, "counting steps hides nothing"
    with raises(ConfigError, key=("env", "recovery"), value="'state'", what="get_state of Stateful returned dict"):
        probe(stateful(kwargs={"form": "dict"}))
    with raises(
        ConfigError, key=("env", "recovery"), value="'state'", what="Walker does not have both get_state and set_state"
    ):
        probe(stateful(id="tests.envs.odd_envs:Walker"))
    with raises(ConfigError, key=("env", "recovery"), value="'state'"):
        probe(stateful(id="tests.envs.agent_envs:Walkers"))
