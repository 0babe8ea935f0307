"""What an env returns is checked where it enters, in `reset` and `step`; what it raises is one fault with its place."""

from __future__ import annotations

import re
import signal
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.envs import value_envs
from tests.envs.value_envs import AgentReturns, Quits, Returns
from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import EnvSlotState, VectorEnv, close_env
from zmqrl.envs.frame_stack import FrameStack
from zmqrl.envs.make import make_single, probe
from zmqrl.envs.vector import NativeVectorEnv, make_seeded, make_vector_env
from zmqrl.errors import EnvFault
from zmqrl.types import EnvSpec

HERE = r"\(tests/envs/value_envs\.py:\d+\)"


def section_of(name: str = "Returns", num_envs: int = 2, frame_stack: int = 1, **kwargs: Any) -> EnvSection:
    return EnvSection(id=f"tests.envs.value_envs:{name}", num_envs=num_envs, frame_stack=frame_stack, kwargs=kwargs)


MADE: list[VectorEnv] = []


def made(section: EnvSection) -> VectorEnv:
    MADE.append(make_vector_env(section, probe(section), "sync", 5, 4))
    return MADE[-1]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Envs hold sockets until they are closed, or collected with the traceback of their fault."""
    yield
    while MADE:
        close_env(MADE.pop())


def steps(env: VectorEnv, count: int = 2) -> None:
    env.start()
    for _ in range(count):
        env.step(np.zeros(env.num_envs, np.int64))


@pytest.fixture(autouse=True)
def no_cast_by_numpy() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def fault_of(env: VectorEnv) -> EnvFault:
    with pytest.raises(EnvFault) as caught:
        steps(env, 3)
    assert "reset raised" not in str(caught.value) and "step raised" not in str(caught.value)
    return caught.value


# (space, what it returns, words of the message)
REFUSED = [
    ("uint8", "float32 0.7", "an observation of dtype float32, its space has dtype uint8"),
    ("uint8", "float64 nan", "of dtype float64, its space has dtype uint8"),
    ("uint8", "list of floats", "of dtype float64, its space has dtype uint8"),
    ("uint8", "int64 300", "an observation with 300, its space has dtype uint8 (0 to 255)"),
    ("uint8", "int64 -1", "with -1, its space has dtype uint8 (0 to 255)"),
    ("uint8", "objects", "of dtype object, its space has dtype uint8"),
    ("uint8", "numbers as objects", "of dtype object, its space has dtype uint8"),
    ("uint8", "complex", "of dtype complex128, its space has dtype uint8"),
    ("uint8", "texts", "of dtype <U1, its space has dtype uint8"),
    ("uint8", "dates", "of dtype datetime64[D], its space has dtype uint8"),
    ("uint8", "ragged", "an observation that is not an array: ValueError: setting an array element"),
    ("uint8", "raising", "an observation that is not an array: RuntimeError: the simulator is gone"),
    ("uint8", "none", "an observation of shape (), its space has (3,)"),
    ("int8", "int64 -200", "with -200, its space has dtype int8 (-128 to 127)"),
    ("int8", "uint8 200", "with 200, its space has dtype int8 (-128 to 127)"),
    ("int32", "int64 2**40", "with 1099511627776, its space has dtype int32"),
    ("int32", "float64 5", "of dtype float64, its space has dtype int32"),
    ("uint64", "int64 -1", "with -1, its space has dtype uint64 (0 to 18446744073709551615)"),
    ("bool", "int64 2", "with 2, its space has dtype bool (0 to 1)"),
    ("bool", "float64 5", "of dtype float64, its space has dtype bool"),
    ("image", "float64 image", "of dtype float64, its space has dtype uint8"),
    ("float32", "complex", "of dtype complex128, its space has dtype float32"),
    ("float32", "texts", "of dtype <U1, its space has dtype float32"),
    ("float32", "objects", "of dtype object, its space has dtype float32"),
    ("float32", "float32 nan", "the observation has NaN: [ 0. nan  1.]"),
    ("float32", "float64 nan", "the observation has NaN"),
    ("float64", "float64 nan", "the observation has NaN"),
    ("float64", "float64 1e39", "a number that is not finite in float32"),
    ("float64", "inf", "a number that is not finite in float32"),
    ("discrete", "int 5", "an observation 5, which is outside of its space"),
    ("discrete", "float 1.0", "an observation 1.0, which is not a whole number"),
    ("discrete", "float nan", "an observation nan, which is not a whole number"),
    ("discrete", "none", "an observation None, which is not a whole number"),
    ("several", "several 0, 4", "an observation [0 4], which is outside of its space"),
    ("several", "several floats", "of dtype float64, its space has dtype int64"),
    ("several", "several uint64", "with 18446744073709551615, its space has dtype int64"),
    ("binary", "int64 2", "an observation [0 2 1], which is outside of its space"),
    ("binary", "int64 -1", "an observation [ 0 -1  1], which is outside of its space"),
    ("binary", "float64 5", "of dtype float64, its space has dtype int8"),
    ("dict", "float32 0.7", "part 'inner.image' of an observation of dtype float32, its space has dtype uint8"),
    ("dict", "int64 300", "part 'inner.image' of an observation with 300, its space has dtype uint8 (0 to 255)"),
    ("tuple", "float64 nan", "part '1.1' of an observation of dtype float64, its space has dtype uint8"),
    ("tuple", "int64 -1", "part '1.1' of an observation with -1, its space has dtype uint8"),
]


@pytest.mark.parametrize("call", ["reset", "step"])
@pytest.mark.parametrize(("space", "obs", "words"), REFUSED, ids=lambda value: value)
def test_an_observation_that_its_space_cannot_hold_is_refused(space: str, obs: str, words: str, call: str) -> None:
    fault = fault_of(made(section_of(space=space, obs=obs, call=call)))
    returned = "" if words.startswith("the observation") or "not finite" in words else f"{call} returned "
    assert re.search(f"{returned}.*{re.escape(words)}.*{HERE}$", str(fault)), fault
    assert (fault.detail["slot"], fault.detail["step"]) == (0, 0 if call == "reset" else 2)


@pytest.mark.parametrize("call", ["reset", "step"])
@pytest.mark.parametrize(
    ("space", "obs", "words"), [row for row in REFUSED if row[0] in ("uint8", "int8", "image", "float32", "bool")]
)
def test_a_stack_of_frames_does_not_cast(space: str, obs: str, words: str, call: str) -> None:
    fault = fault_of(made(section_of(space=space, obs=obs, call=call, frame_stack=2)))
    first = words.partition(":")[0].partition(", its space has (")[0]
    assert re.search(f"{re.escape(first)}.*{HERE}$", str(fault)), fault


@pytest.mark.parametrize(
    ("space", "obs", "taken"),
    [
        ("uint8", "int64 5", [5, 5, 5]),
        ("uint8", "int16 5", [5, 5, 5]),
        ("uint8", "big-endian 5", [5, 5, 5]),
        ("uint8", "list", [1, 2, 3]),
        ("uint8", "bools", [1, 0, 1]),
        ("uint8", "uint8 200", [200, 200, 200]),  # outside of its bounds, which are not checked
        ("bool", "bools", [1, 0, 1]),
        ("bool", "uint8 200", None),
        ("int32", "int16 5", [5, 5, 5]),
        ("uint64", "uint64 2**63", [0, 2**63, 1]),
        ("float32", "float64 5", [5, 5, 5]),
        ("float32", "int64 300", [1, 300, 2]),
        ("float32", "bools", [1, 0, 1]),
        ("float64", "float32 0.7", [np.float32(0.7)] * 3),
        ("discrete", "int 2", 3),
        ("several", "several 3, 4", [2, 4]),
        ("binary", "bools", [1, 0, 1]),
    ],
)
@pytest.mark.parametrize("call", ["reset", "step"])
def test_what_an_observation_may_be(space: str, obs: str, taken: Any, call: str) -> None:
    env = made(section_of(space=space, obs=obs, call=call))
    if taken is None:
        fault_of(env)
        return
    found = env.start().copy()
    if call == "step":
        env.step(np.zeros(2, np.int64))
        found = env.step(np.zeros(2, np.int64)).obs
    assert found[0].tolist() == found[1].tolist() == taken


class Alternating(Returns):
    """Observations of three dtypes in turn, the last of which its space cannot hold."""

    def _obs(self, call: str) -> Any:
        return [np.zeros(3, np.uint8), np.ones(3, np.int64), np.full(3, 2, np.int16), np.full(3, 256, np.int16)][
            min(self._t, 3)
        ]


def test_each_change_of_the_dtype_is_checked() -> None:
    section = EnvSection(id=f"{__name__}:Alternating", num_envs=2, kwargs={"space": "uint8"})
    env = made(section)
    assert env.start()[1].tolist() == [0, 0, 0]
    assert [env.step(np.zeros(2, np.int64)).obs[1, 0] for _ in range(2)] == [1, 2]
    with raises(EnvFault, what="step returned an observation with 256, its space has dtype uint8 (0 to 255)"):
        env.step(np.zeros(2, np.int64))


# (reward, words): None: accepted
REWARDS = [
    ("two", "step returned a reward of shape (2,); expected one number"),
    ("empty", "step returned a reward of shape (0,); expected one number"),
    ("list of one", "step returned the reward [1.0]; expected one number"),
    ("tuple", "step returned the reward (1.0,); expected one number"),
    ("none", "step returned the reward None; expected one number"),
    ("complex", "step returned the reward (1+0j); expected one number"),
    ("complex64", "step returned the reward np.complex64(1+0j); expected one number"),
    ("text", "step returned the reward '1.0'; expected one number"),
    ("bytes", "step returned the reward b'1'; expected one number"),
    ("dict", "step returned the reward {'a': 1.0}; expected one number"),
    ("object", "step returned the reward array([None], dtype=object); expected one number"),
    ("duration", "step returned the reward np.timedelta64(1,'s'); expected one number"),
    ("nan", "the reward is nan, not finite in float32"),
    ("array nan", "the reward is nan, not finite in float32"),
    ("raising", "step returned a value that cannot be read: RuntimeError: the simulator is gone"),
    ("huge", "step returned a value that cannot be read: OverflowError: int too large to convert to float"),
    *((name, None) for name in ("float", "int", "bool", "float16", "longdouble", "zero axes", "one axis", "two axes")),
    ("fraction", None),
]


@pytest.mark.parametrize("frame_stack", [1, 2])
@pytest.mark.parametrize(("reward", "words"), REWARDS)
def test_a_reward_is_one_number(reward: str, words: str | None, frame_stack: int) -> None:
    env = made(section_of(reward=reward, frame_stack=frame_stack))
    if words is None:
        env.start()
        assert [env.step(np.zeros(2, np.int64)).reward.tolist() for _ in range(2)] == [[1.0, 1.0]] * 2
        return
    fault = fault_of(env)
    assert re.search(f"{re.escape(words)}.* {HERE}$", str(fault)), fault
    assert fault.detail["step"] == 2


FLAGS = [
    ("list false", "{} [False]; expected True or False"),
    ("list empty", "{} []; expected True or False"),
    ("tuple", "{} (True, False); expected True or False"),
    ("two", "{} of shape (2,); expected True or False"),
    ("three ints", "{} of shape (3,); expected True or False"),
    ("none", "{} None; expected True or False"),
    ("text", "{} 'False'; expected True or False"),
    ("dict", "{} {{'__all__': False}}; expected True or False"),
    ("nan", "{} nan; expected True or False"),
    ("complex", "{} 0j; expected True or False"),
    ("objects", "{} array([None], dtype=object); expected True or False"),
    ("raising", "a value that cannot be read: RuntimeError: the simulator is gone"),
    *((name, False) for name in ("false", "np false", "int 0", "int64 0", "float 0", "array false", "one false")),
    *((name, True) for name in ("true", "np true", "int 1", "one true")),
]


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize(("value", "expected"), FLAGS)
def test_a_flag_is_a_bool_or_one_number(value: str, expected: str | bool, name: str) -> None:
    env = made(section_of(**{name: value}))
    if isinstance(expected, bool):
        env.start()
        for flags in ([False] * 2, [expected] * 2):
            assert getattr(env.step(np.zeros(2, np.int64)), name).tolist() == flags
        return
    fault = fault_of(env)
    assert re.search(f"step returned {re.escape(expected.format(name))} {HERE}$", str(fault)), fault
    assert fault.detail["step"] == 2


@pytest.mark.parametrize("kwargs", [{"obs": "int64 300", "space": "uint8"}, {"terminated": "list false"}])
def test_a_replay_checks_alike(kwargs: dict[str, str]) -> None:
    section = section_of(**kwargs)
    env = made(section)
    with pytest.raises(EnvFault) as caught:
        env.start((EnvSlotState(0, np.zeros(4, np.int64)), EnvSlotState()))
    what, place = caught.value.what, caught.value.place
    assert re.fullmatch(r"step returned .* \(in a replay\)", what) and re.fullmatch(HERE, f"({place})"), caught.value
    assert caught.value.detail["step"] == 2


def test_the_method_of_a_wrapper_that_made_the_value_is_named() -> None:
    fault = fault_of(made(EnvSection(id="tests.envs.value_envs:doubled", num_envs=2)))
    found = re.search(r"the reward \[1\.0\].*value_envs\.py:(\d+)\)$", str(fault))
    assert found is not None, fault
    assert int(found[1]) == value_envs.Doubled.reward.__code__.co_firstlineno


@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_form_of_old_gym_is_named_under_a_stack_too(call: str) -> None:
    section = EnvSection(id=f"tests.envs.gym_envs:Old{call.title()}", num_envs=2, frame_stack=2)
    assert re.search(rf"{call} must return \(obs, .*gym_envs\.py:\d+\)$", str(fault_of(made(section))))


def test_the_bounds_of_a_stack_are_those_of_its_frames() -> None:
    env = FrameStack(Returns("uint8"), 2)
    assert env.reset()[0].dtype == np.uint8 and env.reset()[0].shape == (2, 3)


# A vector env of gymnasium


class VectorReturns(gym.vector.VectorEnv[Any, Any, Any]):
    """Three envs whose step 2 returns `wrong`."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, call: str = "step", **wrong: Any) -> None:
        self._call, self._wrong = call, wrong

    def reset(self, **options: Any) -> Any:
        self._t = 0
        return self._value("reset", "obs", np.zeros((3, 3), np.uint8)), {}

    def step(self, actions: Any) -> Any:
        self._t += 1
        values = {"obs": np.zeros((3, 3), np.uint8), "reward": np.ones(3)}
        values |= {name: np.zeros(3, bool) for name in ("terminated", "truncated")}
        if self._wrong.get("form"):
            return values["obs"], values["reward"], values["terminated"], {}
        return *(self._value("step", name, value) for name, value in values.items()), {}

    def _value(self, call: str, name: str, value: Any) -> Any:
        return self._wrong.get(name, value) if self._call == call and self._t in (0, 2) else value


def native(env: Any) -> NativeVectorEnv:
    spec = probe(section_of(space="uint8"))
    return NativeVectorEnv(EnvSpec("vec", spec.observation, spec.action), env, 3, 5, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"obs": np.full((3, 3), 0.5)}, "step returned an observation of dtype float64, its space has dtype uint8"),
        ({"obs": np.full((3, 3), 256)}, "step returned an observation with 256, its space has dtype uint8 (0 to 255)"),
        ({"obs": np.full((3, 3), np.nan), "call": "reset"}, "reset returned an observation of dtype float64"),
        ({"obs": None}, "step returned an observation of shape (), its space has (3, 3)"),
        ({"reward": np.ones((3, 2))}, "step returned reward of shape (3, 2) and dtype float64; expected numbers of"),
        ({"reward": [1.0, None, 2.0]}, "step returned reward of shape (3,) and dtype object; expected numbers of"),
        ({"reward": ["1", "2", "3"]}, "step returned reward of shape (3,) and dtype <U1"),
        ({"reward": 1.0}, "step returned reward of shape () and dtype float64"),
        ({"reward": np.array([1, np.nan, 2])}, "the reward is nan, not finite in float32"),
        ({"terminated": False}, "step returned terminated of shape () and dtype bool; expected bools of shape (3,)"),
        ({"truncated": np.zeros((3, 1), bool)}, "step returned truncated of shape (3, 1) and dtype bool"),
        ({"truncated": ["", "", ""]}, "step returned truncated of shape (3,) and dtype <U1"),
        ({"terminated": np.full(3, np.nan)}, "step returned terminated of shape (3,) and dtype float64"),
        ({"form": True}, "step must return (obs, reward, terminated, truncated, info); it returned 4 values"),
    ],
)
def test_a_vector_env_is_checked_alike(wrong: dict[str, Any], words: str) -> None:
    fault = fault_of(native(VectorReturns(**wrong)))
    assert re.search(f"{re.escape(words)}.*test_returned_values.py", str(fault)), fault


def test_flags_of_a_vector_env_are_bools() -> None:
    env = native(VectorReturns(terminated=[0, 0, 1]))
    env.start()
    env.step(np.zeros(3, np.int64))
    done = env.step(np.zeros(3, np.int64))
    assert done.terminated.dtype == bool and done.terminated.tolist() == [False, False, True]


# Several agents


@pytest.mark.parametrize(
    ("fault", "words", "step"),
    [
        ("no reward", "step returned no reward of agent 'right'", 3),
        ("no terminated", "step returned no terminated of agent 'right'", 3),
        ("reward", "agent 'right': step returned a reward of shape (2,); expected one number", 3),
        ("list flag", "agent 'right': step returned truncated [False]; expected True or False", 3),
        ("one reward", "step returned reward of type float; expected a dict by agent", 3),
        ("flag for all", "step returned terminated of type bool; expected a dict by agent", 3),
        ("cuts none", "step returned truncated of type NoneType; expected a dict by agent", 3),
        ("dtype", "agent 'right': step returned an observation of dtype complex128", 3),
        ("obs list", "reset returned observation of type list; expected a dict by agent", 0),
        ("obs none", "reset returned observation of type NoneType; expected a dict by agent", 0),
        ("again", "agent 'right' came back; not supported", 3),
        ("new agent", "agent 'fourth' joined; not supported", 3),
        ("exit", "step called sys.exit(3)", 3),
    ],
)
@pytest.mark.parametrize("limit", [None, 4])
def test_each_agent_is_checked(fault: str, words: str, step: int, limit: int | None) -> None:
    section = EnvSection(
        id="tests.envs.value_envs:AgentReturns", num_envs=3, kwargs={"fault": fault}, max_episode_steps=limit
    )
    spec = probe(EnvSection(id="tests.envs.agent_envs:Walkers", num_envs=3))
    found = fault_of(make_seeded(spec, partial(make_single, section), 3, 5, 4))
    assert words in str(found) and found.detail["step"] == step
    assert "not supported" in words or re.search(HERE, str(found))


def test_an_agent_may_be_listed_until_the_step_after_its_end() -> None:
    class Late(AgentReturns):
        def step(self, actions: Any) -> Any:
            returned = super().step({agent: action for agent, action in actions.items() if agent in self.agents})
            if self._t == 2:
                self.agents.append("right")  # it has ended in this step
            if self._t == 3:
                self.agents.remove("right")
            return returned

        def _check(self) -> None: ...

    spec = probe(EnvSection(id="tests.envs.agent_envs:Walkers", num_envs=3))
    env = make_seeded(spec, lambda: Late("again at once"), 3, 5, 4)
    env.start()
    env.step(np.zeros(3, np.int64))
    assert env.step(np.zeros(3, np.int64)).terminated.tolist() == [False, True, False]


# What ends a process


@pytest.fixture
def as_in_a_run() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def quits(where: str, how: str) -> VectorEnv:
    spec = probe(replace(section_of("Quits", 1, where="nowhere"), recovery="state"))
    env = make_seeded(spec, partial(Quits, where, how), 1, 5, 4)
    if where == "set_state":
        env.start((EnvSlotState(state=np.zeros(8, np.uint8), obs=np.zeros(3, np.float32), elapsed=1),))
    steps(env)
    env.states()
    return env


@pytest.mark.usefixtures("as_in_a_run")
@pytest.mark.parametrize("where", ["init", "reset", "step", "get_state", "set_state"])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "called sys.exit(0)"),
        ("text", "called sys.exit('no licence')"),
        ("none", "called sys.exit()"),
        ("interrupt", "raised KeyboardInterrupt"),
        ("cancelled", "raised Cancelled"),
    ],
)
def test_an_env_that_ends_its_process_is_a_fault_with_its_place(where: str, how: str, words: str) -> None:
    with pytest.raises(EnvFault) as caught:
        quits(where, how)
    assert caught.value.what == f"{'the constructor' if where == 'init' else where} {words}"
    file, line = caught.value.place.split(":")
    assert file == "tests/envs/value_envs.py"
    first = Quits._end.__code__.co_firstlineno
    assert first < int(line) < first + 9, "the line of sys.exit"
    assert caught.value.detail["step"] == {"step": 2, "get_state": 2}.get(where, 0)


@pytest.mark.usefixtures("as_in_a_run")
@pytest.mark.parametrize("how", ["exit", "interrupt", "cancelled"])
def test_a_close_that_ends_its_process_has_no_effect(how: str) -> None:
    close_env(Quits("close", how))


@pytest.mark.parametrize("where", ["init", "reset", "step", "get_state", "close"])
def test_ctrl_c_still_interrupts_the_process_of_a_caller(where: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        quits(where, "interrupt").close()
    if where != "close":
        with raises(EnvFault, what=f"{'the constructor' if where == 'init' else where} called sys.exit(0)"):
            quits(where, "exit")
