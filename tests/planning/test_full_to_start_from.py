"""`--init-from` a full checkpoint or a version of a learner: its weights come with what they depend on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.raising import raises
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.config.codec import replace
from zmqrl.config.sections import Config
from zmqrl.data_stores.base import Full, prefixed
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load_config
from zmqrl.planning.initial_weights import initial_weights_of
from zmqrl.planning.plan_run import plan_run
from zmqrl.testing.experience import Learner, context_of, train, version_0
from zmqrl.types import Array, Version, Weights

ENV_STEPS = 900
SMALL = {"network.hidden": [8], "env.segment_steps": 16}
NORMALISED = {**SMALL, "algorithm.normalise_obs": True, "algorithm.normalise_reward": True}
OFF_POLICY = {**SMALL, "algorithm.batch_size": 8}
CASES: dict[str, tuple[str, Mapping[str, object], str]] = {
    "written out": ("pendulum-ppo", NORMALISED, "manual"),
    "autograd": ("pendulum-ppo", {**NORMALISED, "algorithm.normalise_value": True}, "eager"),
    "shared": ("pendulum-ppo", {**NORMALISED, "algorithm.shared": True}, "eager"),
    "memory": ("cartpole-memory-ppo_gru", {**NORMALISED, "algorithm.normalise_value": True}, "eager"),
    "sac": ("pendulum-sac", OFF_POLICY, "eager"),
    "td3": ("pendulum-td3", OFF_POLICY, "eager"),
    "dqn": ("cartpole-dqn", OFF_POLICY, "eager"),
}


def config_of(preset: str, sections: Mapping[str, object]) -> tuple[Config, Algorithm]:
    config = load_config(preset, overrides=sections)
    return config, make_algorithm(config, probe(config.env))


def algorithm_of(preset: str, sections: Mapping[str, object]) -> Algorithm:
    return config_of(preset, sections)[1]


def learner_of(algorithm: Algorithm, executor: str, weights: Weights | None = None) -> Learner:
    return algorithm.learner(dataclasses.replace(context_of(algorithm, weights), executor=executor))


def trained(algorithm: Algorithm, executor: str) -> Learner:
    learner = learner_of(algorithm, executor)
    train(algorithm, learner, range(2))
    return learner


def stored(folder: Path, learner: Learner) -> tuple[Path, Path]:
    """The full checkpoint and the published version of `learner`."""
    store = DirectoryStore(str(folder), 8)
    arrays = {**prefixed("weights", learner.weights()), **prefixed("state", learner.state())}
    store.save_full(Full(Version(0, 4), arrays, {"counters": {"env_steps": ENV_STEPS}}), durable=False)
    store.save(Version(0, 4), learner.weights(), {"env_steps": str(ENV_STEPS)})
    return folder / "full-0-4.safetensors", folder / "v0-4.safetensors"


def depended_on(learner: Learner) -> dict[str, Array]:
    """Weights, learner-only tensors and statistics; targets and optimisers start from scratch."""
    kept = {name: array for name, array in learner.state().items() if "stats." in name or "private." in name}
    return learner.weights() | kept | {n: a for n, a in learner.state().items() if n.startswith("value/")}


def assert_same(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_a_full_checkpoint_gives_all_that_the_weights_depend_on(tmp_path: Path, case: str) -> None:
    preset, sections, executor = CASES[case]
    algorithm = algorithm_of(preset, sections)
    source = trained(algorithm, executor)
    full, _ = stored(tmp_path, source)
    initial = initial_weights_of(str(full), algorithm)
    assert initial.warnings == ()
    given = {**version_0(algorithm), **initial.weights}
    assert_same(depended_on(learner_of(algorithm, executor, given)), depended_on(source))


@pytest.mark.parametrize(("before", "after"), [("manual", "eager"), ("eager", "manual")])
def test_also_for_a_learner_of_another_executor(tmp_path: Path, before: str, after: str) -> None:
    algorithm = algorithm_of("pendulum-ppo", NORMALISED)
    full, _ = stored(tmp_path, trained(algorithm, before))
    initial = initial_weights_of(str(full), algorithm)
    learner = learner_of(algorithm, after, {**version_0(algorithm), **initial.weights})
    again, _ = stored(tmp_path / "again", learner)
    assert_same(initial_weights_of(str(again), algorithm).weights, initial.weights)


@pytest.mark.parametrize(
    ("case", "missing"),
    [
        ("written out", "reward statistics"),
        ("autograd", "reward statistics, value statistics"),
        ("sac", "q1, q2, log_temperature"),
        ("td3", "q1, q2"),
    ],
)
def test_what_a_published_version_lacks_is_one_warning(tmp_path: Path, case: str, missing: str) -> None:
    preset, sections, executor = CASES[case]
    config, algorithm = config_of(preset, sections)
    _, version = stored(tmp_path, trained(algorithm, executor))
    (warning,) = initial_weights_of(str(version), algorithm).warnings
    assert f"{version} lacks {missing}, which start" in warning and "full-*" in warning
    config = replace(config, run=replace(config.run, init_from=str(version)))
    assert warning in plan_run(config, tmp_path / "run", time.time()).warnings


def test_a_published_version_of_dqn_lacks_nothing(tmp_path: Path) -> None:
    algorithm = algorithm_of(*CASES["dqn"][:2])
    _, version = stored(tmp_path, trained(algorithm, "eager"))
    assert initial_weights_of(str(version), algorithm).warnings == ()


def test_statistics_that_the_source_does_not_have_are_a_warning(tmp_path: Path) -> None:
    full, _ = stored(tmp_path, trained(algorithm_of("pendulum-ppo", SMALL), "eager"))
    algorithm = algorithm_of("pendulum-ppo", {**NORMALISED, "algorithm.normalise_value": True})
    (warning,) = initial_weights_of(str(full), algorithm).warnings
    assert f"{full} lacks obs statistics, value statistics, which start" in warning


def test_a_fixed_temperature_is_not_that_of_the_source(tmp_path: Path) -> None:
    full, _ = stored(tmp_path, trained(algorithm_of(*CASES["sac"][:2]), "eager"))
    fixed = algorithm_of("pendulum-sac", {**OFF_POLICY, "algorithm.temperature": 0.2})
    initial = initial_weights_of(str(full), fixed)
    assert initial.warnings == () and "log_temperature" not in initial.weights and "q1.0.weight" in initial.weights


def test_learner_only_networks_of_another_shape_are_named(tmp_path: Path) -> None:
    algorithm = algorithm_of(*CASES["td3"][:2])
    learner = trained(algorithm, "eager")
    state = {**learner.state(), "private.q2.0.weight": np.zeros((3, 3))}
    arrays = {**prefixed("weights", learner.weights()), **prefixed("state", state)}
    DirectoryStore(str(tmp_path), 8).save_full(Full(Version(0, 4), arrays, {"counters": {}}), durable=False)
    what = "tensor q2.0.weight: expected shape [8, 4], found [3, 3]"
    with raises(ConfigError, key=("run", "init_from"), what=what):
        initial_weights_of(str(tmp_path / "full-0-4.safetensors"), algorithm)


@pytest.mark.parametrize(("meta", "count"), [({"env_steps": "900"}, 900.0), ({"env_steps": "0"}, 1.0), ({}, 1.0)])
def test_published_statistics_are_never_replaced_by_empty_ones(
    tmp_path: Path, meta: dict[str, str], count: float
) -> None:
    """Also where the env steps are unknown."""
    algorithm = algorithm_of("pendulum-ppo", NORMALISED)
    learner = trained(algorithm, "manual")
    DirectoryStore(str(tmp_path), 8).save(Version(0, 4), learner.weights(), meta)
    found = initial_weights_of(str(tmp_path / "v0-4.safetensors"), algorithm).weights
    assert found["obs_stats.count"] == [count]
    for name in ("obs_mean", "obs_scale"):
        np.testing.assert_allclose(found[name], learner.weights()[name], rtol=1e-9)


def test_a_full_checkpoint_without_the_exact_statistics_gives_those_of_its_env_steps(tmp_path: Path) -> None:
    algorithm = algorithm_of("pendulum-ppo", NORMALISED)
    weights: dict[str, Any] = trained(algorithm, "manual").weights()
    full = Full(Version(0, 4), prefixed("weights", weights), {"counters": {"env_steps": ENV_STEPS}})
    DirectoryStore(str(tmp_path), 8).save_full(full, durable=False)
    found = initial_weights_of(str(tmp_path / "full-0-4.safetensors"), algorithm).weights
    assert found["obs_stats.count"] == [ENV_STEPS]
    np.testing.assert_allclose(found["obs_mean"], weights["obs_mean"], rtol=1e-9)


def test_statistics_of_a_run_at_its_start_are_empty(tmp_path: Path) -> None:
    algorithm = algorithm_of("pendulum-ppo", NORMALISED)
    DirectoryStore(str(tmp_path), 8).save(Version(0, 0), version_0(algorithm), {"env_steps": "0"})
    found = initial_weights_of(str(tmp_path / "v0-0.safetensors"), algorithm).weights
    assert found["obs_stats.count"] == [0.0] and not found["obs_stats.m2"].any()
    np.testing.assert_array_equal(found["obs_scale"], np.ones(3))
