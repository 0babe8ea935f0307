"""Composite and discrete spaces through probe, vector env, records and the exit-2 messages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.envs import space_envs
from tests.support.raising import compare, raises
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import random_actions
from zmqrl.envs.make import make_single, probe
from zmqrl.envs.packing import BadObservation, packed_batch
from zmqrl.envs.vector import make_vector_env
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.random_streams import episode_seed
from zmqrl.spaces import SpaceSpec, forbids_all, nth_allowed, unpack
from zmqrl.types import EnvSpec

NAMES = ("Mixed", "Pair", "Numbered", "Several", "HalfBounded", "Bits", "MaskedSeveral")
INF = np.inf


def section(name: str, num_envs: int = 3, **kwargs: Any) -> EnvSection:
    return EnvSection(id=f"tests.envs.space_envs:{name}", num_envs=num_envs, kwargs=kwargs)


def test_what_is_known_of_a_dict() -> None:
    spec = probe(section("Mixed"))
    parts = {
        part.name: (part.space.kind, part.space.dtype, part.space.shape, part.offset) for part in spec.observation.parts
    }
    assert parts == {
        "action_mask": ("box", "int8", (4,), 0),
        "image": ("box", "uint8", (3, 5, 5), 8),
        "inner.0": ("discrete", "int64", (), 88),
        "inner.1": ("box", "float64", (2,), 96),
        "vector": ("box", "float32", (3,), 112),
    }
    assert (spec.observation.dtype, spec.observation.shape) == ("uint8", (128,))
    assert not spec.native_vector


def test_what_is_known_of_the_others() -> None:
    pair, numbered, several, bits = (probe(section(name)) for name in ("Pair", "Numbered", "Several", "Bits"))
    assert (pair.observation.dtype, pair.observation.shape) == ("float32", (4,))
    assert [part.name for part in pair.observation.parts] == ["0", "1.b"]
    assert (pair.action.nvec, pair.action.starts, pair.action.shape) == ((2, 3, 4, 2), (0, -1, 5, 0), (4,))
    assert (pair.action.env_dtype, pair.action.env_shape) == ("int32", (2, 2))
    assert (numbered.observation.kind, numbered.observation.n, numbered.observation.start) == ("discrete", 6, 5)
    assert (numbered.action.nvec, numbered.action.env_dtype) == ((2, 2, 2), "int8")
    assert (several.observation.nvec, several.observation.shape) == ((3, 5, 2), (3,))
    assert (bits.observation.kind, bits.observation.low, bits.observation.high) == ("box", (0.0,), (1.0,))


def test_what_is_known_of_bounds() -> None:
    half, both = (probe(section(name)) for name in ("HalfBounded", "Several"))
    assert (half.action.low, half.action.high) == ((-INF, 0, -INF, -1), (INF, INF, 2.5, 1))
    assert (half.observation.low, half.observation.high) == ((), ())
    assert both.action.is_bounded and not half.action.is_bounded and not half.observation.is_bounded
    assert from_json(EnvSpec, json.loads(json.dumps(to_json(half)))) == half


@pytest.mark.parametrize("name", NAMES)
def test_the_same_trajectory_as_the_env_itself(name: str) -> None:
    env = make_vector_env(section(name, 1), spec := probe(section(name, 1)), "sync", 1, 0)
    single = make_single(section(name))
    rng = np.random.default_rng(2)
    expected, obs = single.reset(seed=episode_seed(1, 0, 0, 0))[0], np.array(env.start())
    for _ in range(30):
        _same(expected, unpack(obs[0], spec.observation), single.observation_space)
        actions = random_actions(spec, 1, rng, obs)
        assert single.action_space.contains(_one(spec.action.for_env(actions)[0]))
        expected, reward, terminated, truncated, _ = single.step(_one(spec.action.for_env(actions)[0]))
        result = env.step(actions)
        obs = np.array(result.obs)
        assert (result.reward[0], result.terminated[0], result.truncated[0]) == (reward, terminated, truncated)
        if terminated or truncated:
            break


def _one(action: Any) -> Any:
    return int(action) if np.ndim(action) == 0 else action


def _same(expected: Any, parts: dict[str, np.ndarray], space: Any, prefix: str = "") -> None:
    """Written without the package: every leaf of `expected` by its dotted name."""
    if isinstance(expected, (dict, tuple)):
        items = expected.items() if isinstance(expected, dict) else enumerate(expected)
        for key, value in items:
            inner = space[key]
            _same(value, parts, inner, f"{prefix}.{key}" if prefix else str(key))
        return
    start = getattr(space, "start", 0)
    assert np.array_equal(
        parts[prefix],
        np.asarray(expected).reshape(parts[prefix].shape) - np.reshape(start, -1 if np.ndim(start) else ()),
    )


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        ("Mixed", "nan", "part 'inner.1' of the observation has NaN: "),
        ("Mixed", "missing", "an observation without part 'vector' (found: dict)"),
        ("Mixed", "shape", "part 'image' of an observation of shape (3, 5, 3), its space has (3, 5, 5)"),
        ("Mixed", "range", "part 'inner.0' of an observation 2, which is outside of its space"),
        ("Mixed", "dtype", "part 'image' of an observation of dtype float64, its space has dtype uint8"),
        ("Mixed", "mask", "the action_mask of the observation forbids every action"),
        ("Mixed", "array", "an observation without part 'action_mask' (found: ndarray)"),
    ],
)
def test_a_bad_part_is_the_envs_fault(name: str, fault: str, words: str) -> None:
    chosen = section(name, 2, fault=fault)
    env = make_vector_env(chosen, spec := probe(chosen), "sync", 5, 4)
    obs, rng = np.array(env.start()), np.random.default_rng(0)
    obs = np.array(env.step(random_actions(spec, 2, rng, obs)).obs)
    with pytest.raises(EnvFault) as caught:
        env.step(random_actions(spec, 2, rng, obs))
    assert caught.value.what.removeprefix("step returned ").startswith(words) and "\n" not in caught.value.what
    assert caught.value.detail["slot"] == 0


def test_a_number_outside_of_a_discrete_space_is_the_envs_fault() -> None:
    chosen = section("Numbered", 2, outside=True)
    env = make_vector_env(chosen, spec := probe(chosen), "sync", 5, 4)
    env.start()
    env.step(random_actions(spec, 2, np.random.default_rng(0)))
    with raises(EnvFault, what="step returned an observation 11, which is outside of its space"):
        env.step(random_actions(spec, 2, np.random.default_rng(0)))


def test_an_empty_mask_is_allowed_after_the_end_of_an_episode() -> None:
    """Mixed returns one with every final observation; the next step resets, whatever the action."""
    env = make_vector_env(section("Mixed", 4), spec := probe(section("Mixed", 4)), "sync", 1, 0)
    obs, rng, ends = np.array(env.start()), np.random.default_rng(0), 0
    for _ in range(60):
        result = env.step(random_actions(spec, 4, rng, obs))
        obs = np.array(result.obs)
        ended = result.terminated | result.truncated
        ends += int(ended.sum())
        mask = unpack(obs, spec.observation)["action_mask"]
        assert (forbids_all(mask, (4,)) == ended).all()
    assert ends > 4


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        ("text", "discrete", ["observations are Text(1, 4", "MultiBinary, and Dict and Tuple of these"]),
        ("inner text", "discrete", ["part 'a.b' of the observations is Text(1, 4"]),
        ("sequence", "discrete", ["observations are Sequence("]),
        ("twice", "discrete", ["two parts named 'a.b'"]),
        ("empty", "discrete", ["Dict()", "no parts"]),
        ("box", "int box", ["has actions Box(0, 9", "Discrete, MultiDiscrete, MultiBinary and Box of floats"]),
        ("box", "text", ["has actions Text(1, 4"]),
        ("mask of 3", "discrete", ["action_mask of its observations is int8 [3]; it must be bool, int8 or uint8 [4]"]),
        ("float mask", "discrete", ["the action_mask of its observations is float32 [4]"]),
        ("mask of 3", "box", ["has an observation part action_mask, but its actions are not discrete"]),
    ],
)  # fmt: skip
def test_one_message_for_a_space_that_is_not_supported(observation: str, action: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        probe(section("Of", observation=observation, action=action))
    compare(caught.value, key=("env", "id"), value="'tests.envs.space_envs:Of'")
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_batches_and_single_observations_are_packed_alike() -> None:
    spec = probe(section("Mixed"))
    env = make_single(section("Mixed"))
    ones = [env.reset(seed=seed)[0] for seed in range(4)]
    batch: dict[str, Any] = {key: np.stack([one[key] for one in ones]) for key in ("image", "action_mask", "vector")}
    batch["inner"] = tuple(np.stack([one["inner"][place] for one in ones]) for place in range(2))
    rows, single = packed_batch(spec.observation, batch)
    assert not single
    for row, one in zip(rows, ones, strict=True):
        packed, single = packed_batch(spec.observation, one)
        assert single and packed[0].tobytes() == row.tobytes()
    with pytest.raises(BadObservation, match=r"part 'inner\.0' of an observation"):
        packed_batch(spec.observation, batch | {"inner": (batch["inner"][0] + 5, batch["inner"][1])})


def test_random_actions_are_allowed_and_of_equal_probability() -> None:
    mask = np.array([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0]])
    uniform = np.random.default_rng(0).random((2, 30_000))
    drawn = np.stack([nth_allowed(np.tile(row, (30_000, 1)), u) for row, u in zip(mask, uniform, strict=True)])
    counts = np.bincount(drawn[0], minlength=5) / 30_000
    np.testing.assert_allclose(counts, mask[0] / 3, atol=0.01)
    assert (drawn[1] == 0).all()


def test_random_actions_of_a_box_are_those_of_gymnasium() -> None:
    space, count = space_envs.HalfBounded.action_space, 4_000
    spec = probe(section("HalfBounded"))
    drawn = random_actions(spec, count, np.random.default_rng(1))
    assert drawn.shape == (count, 2, 2) and drawn.dtype == np.float32
    assert all(space.contains(one) for one in drawn)
    space.seed(2)
    expected = np.stack([space.sample() for _ in range(count)])
    for moment in (np.mean, np.std):
        np.testing.assert_allclose(moment(drawn, axis=0), moment(expected, axis=0), atol=0.1)


@pytest.mark.parametrize("largest", [np.finfo(np.float64).max, np.finfo(np.float32).max])
def test_random_actions_within_the_largest_bounds_are_finite(largest: float) -> None:
    action = SpaceSpec("box", (2,), "float64", low=(-float(largest), -1.0), high=(float(largest), 1.0))
    drawn = random_actions(EnvSpec("e", action, action), 50, np.random.default_rng(0))
    assert np.isfinite(drawn).all() and np.abs(drawn[:, 1]).max() <= 1


@pytest.mark.parametrize("bounded", [False, True])
def test_random_actions_of_a_box_whose_entries_are_alike_are_one_draw(bounded: bool) -> None:
    sides = {"low": (-1.0, 0.0), "high": (1.0, 5.0)} if bounded else {}
    action = SpaceSpec("box", (2, 1), "float32", **sides)
    found = random_actions(EnvSpec("e", action, action), 3, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    whole = rng.uniform([[-1.0], [0.0]], [[1.0], [5.0]], (3, 2, 1)) if bounded else rng.normal(size=(3, 2, 1))
    assert np.array_equal(found, whole.astype(np.float32))


def test_the_module_has_an_env_of_every_supported_space() -> None:
    classes = {type(getattr(space_envs, name)().observation_space).__name__ for name in NAMES}
    assert classes == {"Box", "Dict", "Tuple", "Discrete", "MultiDiscrete", "MultiBinary"}
