"""Which vector env a section gets, whose seeds it has, and the faults of a user's env."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.envs.odd_envs import Counting
from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import EnvSlotState, VectorEnv
from zmqrl.envs.make import make_single, probe
from zmqrl.envs.seeded import SeededVectorEnv
from zmqrl.envs.vector import NativeVectorEnv, make_vector_env
from zmqrl.errors import EnvFault
from zmqrl.types import ModeName

KINDS: dict[str, tuple[EnvSection, ModeName, type[VectorEnv]]] = {
    "seeded": (EnvSection(num_envs=3), "sync", SeededVectorEnv),
    "native": (EnvSection(num_envs=3), "async", NativeVectorEnv),
    "seeded-async": (EnvSection(id="tests.envs.odd_envs:Walker", num_envs=3), "async", SeededVectorEnv),
    "box": (EnvSection(id="Pendulum-v1", num_envs=3, kwargs={"max_episode_steps": 7}), "sync", SeededVectorEnv),
}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> tuple[EnvSection, ModeName, type[VectorEnv]]:
    return KINDS[request.param]


def build(kind: tuple[EnvSection, ModeName, type[VectorEnv]], vector_env: int = 0, incarnation: int = 0) -> VectorEnv:
    section, mode, _ = kind
    return make_vector_env(section, probe(section), mode, 5, vector_env, incarnation)


def actions_for(env: VectorEnv, steps: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    if env.spec.action.kind == "discrete":
        return [rng.integers(0, env.spec.action.n, env.num_envs) for _ in range(steps)]
    size = (env.num_envs, *env.spec.action.shape)
    return [rng.uniform(-1, 1, size).astype(np.float32) for _ in range(steps)]


def play(env: VectorEnv, steps: int) -> Iterator[tuple[np.ndarray, ...]]:
    yield (np.array(env.start()),)
    for actions in actions_for(env, steps):
        yield tuple(np.array(part) for part in env.step(actions))


def test_the_kind_is_the_one_meant(kind) -> None:
    env = build(kind)
    assert type(env) is kind[2]
    env.close()
    env.close()


def test_same_name_same_bits_and_other_names_other_bits(kind) -> None:
    def trace(vector_env: int, incarnation: int) -> bytes:
        env = build(kind, vector_env, incarnation)
        whole = b"".join(part.tobytes() for row in play(env, 80) for part in row)
        env.close()
        return whole

    assert trace(1, 2) == trace(1, 2)
    assert trace(1, 2) != trace(0, 2)
    same_bits_in_the_next_life = kind[1] != "async"
    assert (trace(1, 3) == trace(1, 2)) is same_bits_in_the_next_life


FORMS = {
    "reset": "reset must return (obs, info)",
    "step": "step must return (obs, reward, terminated, truncated, info)",
}


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("raise", "step raised RuntimeError: the robot fell over"),
        ("nan", "the observation has NaN: [8.0099e+08        nan 1.0000e+00]"),
        ("shape", "step returned an observation of shape (1,), its space has (3,)"),
        ("reward", "step returned the reward 'much'; expected one number"),
        ("nan_reward", "the reward is nan, not finite in float32"),
        ("short", f"{FORMS['step']}; it returned 2 values"),
    ],
)
def test_a_fault_names_env_slot_seed_episode_and_step(fault: str, what: str) -> None:
    section = EnvSection(id="tests.envs.odd_envs:Breaking", num_envs=2, kwargs={"fault": fault, "at": 3})
    env = make_vector_env(section, probe(section), "sync", 5, 4)
    first = np.array(env.start())
    for _ in range(2):
        env.step(np.zeros(2, np.int64))
    with raises(EnvFault, what=what) as caught:
        env.step(np.zeros(2, np.int64))
    detail = caught.value.detail
    assert detail["env"] == "tests.envs.odd_envs:Breaking"
    assert (detail["vector_env"], detail["slot"], detail["episode"]) == (4, 0, 0)
    assert detail["seed"] == int(first[0, 0])
    assert detail["step"] == 3
    env.close()


def test_a_fault_in_reset() -> None:
    section = EnvSection(id="tests.envs.odd_envs:Breaking", num_envs=2, kwargs={"fault": "reset"})
    env = make_vector_env(section, probe(section), "sync", 5, 0)
    with raises(EnvFault, what="reset raised RuntimeError: no reset today") as caught:
        env.start()
    assert caught.value.detail["step"] == 0
    env.close()


@pytest.mark.parametrize("replayed", [2, 5])
def test_a_replay_counts_steps_as_the_first_time(replayed: int) -> None:
    """The fault is in the step after a replay, or within it."""
    section = EnvSection(id="tests.envs.odd_envs:Breaking", num_envs=1, kwargs={"fault": "raise", "at": 3})
    env = make_vector_env(section, probe(section), "sync", 5, 0)

    def play() -> None:
        env.start((EnvSlotState(0, np.zeros(replayed, np.int64)),))
        env.step(np.zeros(1, np.int64))

    note = " (in a replay)" if replayed > 2 else ""
    with raises(EnvFault, what=f"step raised RuntimeError: the robot fell over{note}") as caught:
        play()
    assert caught.value.detail["step"] == 3
    env.close()


class Flags(Counting):
    """Its flags have no truth value: it is found after the reward was taken."""

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, np.zeros(2, bool), truncated, info


def test_a_fault_of_the_flags_is_of_the_step_that_returned_them() -> None:
    section = EnvSection(id=f"{__name__}:Flags", num_envs=1)
    env = make_vector_env(section, probe(section), "sync", 5, 0)
    env.start()
    with raises(EnvFault, what="step returned terminated of shape (2,); expected True or False") as caught:
        env.step(np.zeros(1, np.int64))
    assert caught.value.detail["step"] == 1
    env.close()


@pytest.mark.parametrize(
    ("name", "kwargs", "call", "returned"),
    [
        ("OldReset", {}, "reset", "an object of type ndarray"),
        ("OldReset", {"returns": "none"}, "reset", "None"),
        ("OldStep", {}, "step", "4 values"),
        ("OldStep", {"returns": "none"}, "step", "None"),
        ("OldStep", {"returns": "obs"}, "step", "an object of type ndarray"),
        ("behind_a_wrapper", {}, "step", "4 values"),
        ("OldParallel", {"old": "reset"}, "reset", "an object of type dict"),
        ("OldParallel", {"old": "step"}, "step", "4 values"),
    ],
)
def test_a_return_of_old_gym_is_answered_with_the_right_form_and_its_place(
    name: str, kwargs: dict[str, str], call: str, returned: str
) -> None:
    section = EnvSection(id=f"tests.envs.gym_envs:{name}", num_envs=2, kwargs=kwargs)
    env = make_vector_env(section, probe(section), "sync", 5, 0)
    if call == "step":
        env.start()
    with raises(EnvFault, what=f"{FORMS[call]}; it returned {returned}") as caught:
        env.start() if call == "reset" else env.step(np.zeros(2, np.int64))
    assert re.fullmatch(r"tests/envs/gym_envs\.py:\d+", caught.value.place)
    env.close()


@pytest.mark.parametrize("name", ["ResetWithoutSeed", "limited"])
def test_a_reset_of_old_gym_is_answered_with_its_arguments(name: str) -> None:
    section = EnvSection(id=f"tests.envs.gym_envs:{name}", num_envs=2)
    env = make_vector_env(section, probe(section), "sync", 5, 0)
    what = "reset must accept seed and options: reset(self, *, seed=None, options=None)"
    with raises(EnvFault, what=what) as caught:
        env.start()
    assert re.fullmatch(r"tests/envs/gym_envs\.py:\d+", caught.value.place)
    env.close()


def test_a_native_env_that_returns_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    env = build(KINDS["native"])
    env.start()
    inner = env._env  # type: ignore[attr-defined]
    inner.state[0, 1] = np.nan
    with pytest.raises(EnvFault) as caught:
        env.step(np.zeros(3, np.int64))
    assert caught.value.what.startswith("the observation has NaN: ")
    assert (caught.value.detail["slot"], caught.value.detail["step"]) == (1, 1)
    env.close()


@pytest.mark.parametrize("start", [-1, 254])
def test_the_native_form_adds_the_offset_of_a_discrete_space(start: int) -> None:
    """The env refuses an action outside its space."""
    section = EnvSection(id="tests.envs.odd_envs:Offset", num_envs=3, kwargs={"start": start})
    inner = gym.vector.SyncVectorEnv([partial(make_single, section)] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    env = NativeVectorEnv(probe(section), inner, 3, 5, 0, 0)
    env.start()
    for dtype in (np.int64, np.uint8):
        env.step(np.array([0, 1, 2], dtype))
    env.close()


def test_wrong_number_of_envs_is_refused_by_the_native_form() -> None:
    section, mode, _ = KINDS["native"]
    spec = probe(section)
    env = make_vector_env(section, replace(spec, observation=replace(spec.observation, shape=(5,))), mode, 5, 0)
    with raises(EnvFault, what="reset returned an observation of shape (3, 4), its space has (3, 5)"):
        env.start()
    env.close()
