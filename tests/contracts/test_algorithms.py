"""What every algorithm found in `zmqrl.algorithms` promises its callers."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

import zmqrl.algorithms
from zmqrl.algorithms.base import Algorithm, OffPolicyLearner, OnPolicyLearner, Progress
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.sections import FORBID_UNKNOWN, NetworkSection, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.networks.initial import initial_weights, parameter_shapes
from zmqrl.replay.base import SegmentBatch, SegmentMeta
from zmqrl.replay.build import build_replay
from zmqrl.types import MODES, Array, EnvSpec, SegmentId, SlotRef, SpaceSpec, Version, Weights

STEPS, ENVS, SEGMENTS = 16, 2, 4
DISCRETE = SpaceSpec("discrete", (), "int64", 3)
CONTINUOUS = SpaceSpec("box", (2,), "float32", 0, (-1.0, -1.0), (1.0, 1.0))
VECTOR = SpaceSpec("box", (3,), "float32")
PIXELS = SpaceSpec("box", (2, 8, 8), "uint8")
MLP, CNN = NetworkSection(hidden=(8,)), NetworkSection("cnn", (8,), "relu", (4,), (3,), (1,))


def found() -> list[type[Algorithm]]:
    kinds: list[type[Algorithm]] = []
    for module in pkgutil.iter_modules(zmqrl.algorithms.__path__, "zmqrl.algorithms."):
        names = vars(importlib.import_module(module.name)).values()
        own = [v for v in names if getattr(v, "__module__", None) == module.name and isinstance(v, type)]
        kinds += [v for v in own if issubclass(v, Algorithm) and v is not Algorithm]
    return kinds


def cases() -> list[Algorithm]:
    """Every algorithm with every action space it takes, as MLP and as CNN."""
    made = []
    for kind in found():
        for action in (DISCRETE, CONTINUOUS):
            for network, observation in ((MLP, VECTOR), (CNN, PIXELS)):
                spec = EnvSpec("toy", observation, action)
                try:
                    made.append(kind(kind.Config(), network, spec, STEPS, ENVS))
                except ConfigError:
                    continue
    return made


CASES = cases()
each = pytest.mark.parametrize(
    "algorithm", CASES, ids=lambda a: f"{type(a).__name__}-{a.acting().head}-{a.acting().runtime}"
)


def weights_of(algorithm: Algorithm) -> Weights:
    return {**initial_weights(algorithm.network(), 1), **algorithm.statistics()}


def columns(algorithm: Algorithm, seed: int) -> dict[str, Array]:
    """Slots [SEGMENTS, T, N, ...] of noise with NEXT_STEP autoreset."""
    rng, lead = np.random.default_rng(seed), (SEGMENTS, STEPS, ENVS)
    observation, action = algorithm.env.observation, algorithm.env.action
    obs = rng.normal(size=(SEGMENTS, STEPS + 1, ENVS, *observation.shape)) * 40 + 100
    terminated = rng.random(lead) < 0.1
    valid = np.ones(lead, dtype=bool)
    for t in range(1, STEPS):
        valid[:, t] = ~terminated[:, t - 1]
        terminated[:, t] &= valid[:, t]
    extras = {c.name: rng.normal(-1.0, 0.1, (SEGMENTS, *c.shape)).astype(c.dtype) for c in algorithm.acting().extras}
    return {
        "obs": obs.clip(0, 255).astype(observation.dtype) if observation.dtype == "uint8" else obs.astype("float32"),
        "action": rng.integers(0, 3, lead) if action.kind == "discrete" else rng.normal(size=(*lead, 2)).astype("f"),
        "reward": rng.normal(size=lead).astype(np.float32),
        "terminated": terminated,
        "truncated": np.zeros(lead, dtype=bool),
        "valid": valid,
        **extras,
    }


def metas() -> list[SegmentMeta]:
    return [SegmentMeta(SegmentId(v, 0, 0), Version(0, 0), STEPS * ENVS) for v in range(SEGMENTS)]


def rounds(algorithm: Algorithm, learner: OnPolicyLearner | OffPolicyLearner, seeds: range) -> None:
    from zmqrl.replay.gather import gather

    for seed in seeds:
        slots = columns(algorithm, seed)
        refs = [SlotRef(i, 1) for i in range(SEGMENTS)]
        batch: SegmentBatch = gather(slots, refs, metas())
        progress = Progress(1, 100 * seed, 10 * seed, 10_000)
        if isinstance(learner, OnPolicyLearner):
            learner.learn(batch, progress)
        else:
            replay = build_replay(slots, SEGMENTS * STEPS * ENVS, 1, algorithm.prioritised)
            for ref, meta in zip(refs, metas(), strict=True):
                replay.add(ref, meta)
            learner.observe(batch)
            learner.update(replay, 10, progress)


def test_some_are_found() -> None:
    assert {"PPO", "DQN"} <= {kind.__name__ for kind in found()}
    assert {type(a) for a in CASES} == set(found())


@pytest.mark.parametrize("kind", found())
def test_config_is_a_frozen_section_with_valid_defaults(kind: type[Algorithm]) -> None:
    from pydantic import TypeAdapter, ValidationError

    config = kind.Config()
    assert dataclasses.is_dataclass(config) and type(config).__dataclass_params__.frozen
    assert kind.Config.__pydantic_config__ == FORBID_UNKNOWN
    adapter = TypeAdapter(kind.Config)
    assert adapter.validate_python(to_json(config)) == config == from_json(kind.Config, to_json(config))
    with pytest.raises(ValidationError):
        adapter.validate_python({"no_such_key": 1})


@pytest.mark.parametrize("kind", found())
def test_modes_are_named_and_the_module_holds_one_algorithm(kind: type[Algorithm]) -> None:
    assert kind.modes and kind.modes <= set(MODES)
    assert sum(1 for other in found() if other.__module__ == kind.__module__) == 1


@each
def test_network_and_acting_agree(algorithm: Algorithm) -> None:
    acting, weights = algorithm.acting(), weights_of(algorithm)
    assert acting.layers in dict(algorithm.network().towers).values()
    own = {name for layer in acting.layers for name in weights if layer.name and name.startswith(f"{layer.name}.")}
    assert own and set(acting.arrays) <= set(weights)
    assert acting.runtime == ("torch" if algorithm.network_section.kind == "cnn" else "numpy")
    assert ({"obs_mean", "obs_scale"} <= set(weights)) == acting.normalise_obs
    assert all(extra.shape[:2] == (STEPS, ENVS) for extra in acting.extras)


@each
def test_batches_are_announced_by_on_policy_algorithms_only(algorithm: Algorithm) -> None:
    assert (algorithm.batch_segments is not None) == algorithm.on_policy
    assert algorithm.n_step >= 1
    algorithm.check("sync", 64, ReplaySection())


@each
def test_learner_publishes_what_it_was_given_and_names_its_tensors(algorithm: Algorithm) -> None:
    learner, weights = algorithm.learner(weights_of(algorithm), "cpu"), weights_of(algorithm)
    assert isinstance(learner, OnPolicyLearner if algorithm.on_policy else OffPolicyLearner)
    assert learner.network_names() == tuple(parameter_shapes(algorithm.network()))
    published = learner.weights()
    assert published.keys() == weights.keys()
    for name, array in published.items():
        np.testing.assert_array_equal(array, weights[name])
        assert array.flags.c_contiguous and array.dtype == weights[name].dtype


@each
def test_published_weights_are_copies(algorithm: Algorithm) -> None:
    learner = algorithm.learner(weights_of(algorithm), "cpu")
    before = learner.weights()
    frozen = {name: array.copy() for name, array in before.items()}
    rounds(algorithm, learner, range(2))
    assert all(np.array_equal(before[name], frozen[name]) for name in before)
    assert any(not np.array_equal(learner.weights()[name], frozen[name]) for name in learner.network_names())


@each
def test_state_round_trip_is_bitwise(algorithm: Algorithm) -> None:
    straight, resumed = (algorithm.learner(weights_of(algorithm), "cpu") for _ in range(2))
    rounds(algorithm, straight, range(2))
    resumed.load_state(straight.weights(), straight.state())
    for learner in (straight, resumed):
        rounds(algorithm, learner, range(2, 4))
    for one, other in ((straight.weights(), resumed.weights()), (straight.state(), resumed.state())):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)


@pytest.mark.parametrize("kind", found())
def test_the_launcher_can_use_it_without_torch(kind: type[Algorithm]) -> None:
    code = f"import sys, {kind.__module__}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).strip() == "False"
