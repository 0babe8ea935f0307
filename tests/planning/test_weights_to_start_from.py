"""`run.init_from`: what is taken from another run, and what does not fit is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.raising import raises
from zmqrl.algorithms.base import Algorithm, LearnerContext
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.config.codec import replace
from zmqrl.config.sections import Config
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError, DamagedCheckpoints
from zmqrl.networks.initial import initial_weights
from zmqrl.planning.configure import load_config
from zmqrl.planning.initial_weights import initial_weights_of
from zmqrl.run_files.stored_config import stored_config
from zmqrl.types import Array, Version, Weights

ENV_STEPS = 900


def algorithm_of(preset: str, **sections: object) -> tuple[Config, Algorithm]:
    config = load_config(preset, overrides=sections)
    return config, make_algorithm(config, probe(config.env))


def weights_of(algorithm: Algorithm, seed: int) -> dict[str, Array]:
    return {**initial_weights(algorithm.network(), seed), **algorithm.statistics()}


def run_directory(path: Path, config: Config, weights: Weights) -> DirectoryStore:
    """With a version, a newer version, and nothing that is best."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(stored_config(config)))
    store = DirectoryStore(str(path / "checkpoints"), 8)
    store.save(Version(0, 3), {name: array * 0 for name, array in weights.items()}, {"env_steps": "1"})
    store.save(Version(0, 4), weights, {"env_steps": str(ENV_STEPS)})
    return store


def assert_network(found: Weights, expected: Weights) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("preset", ["cartpole-ppo", "cartpole-dqn"])
def test_every_kind_of_checkpoint_and_the_run_directory_are_taken(tmp_path: Path, preset: str) -> None:
    config, algorithm = algorithm_of(preset)
    weights = weights_of(algorithm, 7)
    store = run_directory(tmp_path / "run", config, weights)
    folder = tmp_path / "run" / "checkpoints"
    arrays = {f"weights/{name}": array for name, array in weights.items()} | {"state/x": np.zeros(3)}
    store.save_full(Full(Version(0, 4), arrays, {"counters": {}}), durable=False)
    sources = [tmp_path / "run", folder / "v0-4.safetensors", folder / "full-0-4.safetensors"]
    for source in sources:
        assert_network(initial_weights_of(str(source), algorithm).weights, weights)
    best = {name: array + 1 for name, array in weights.items()}
    store.save_best(Version(0, 3), tensors.dump(best, {"env_steps": "1"}), 100.0)
    for source in (tmp_path / "run", folder / "best-0-3.safetensors"):
        assert_network(initial_weights_of(str(source), algorithm).weights, best)


def test_a_run_with_a_store_path_is_looked_for_there(tmp_path: Path) -> None:
    config, algorithm = algorithm_of("cartpole-ppo")
    config = replace(config, store=replace(config.store, options={"path": str(tmp_path / "store")}))
    weights = weights_of(algorithm, 7)
    run_directory(tmp_path / "run", config, weights)
    info = {"run_id": "r", "pid": 1, "start_time": 1, "host": "h", "started_at": 0.0, "preset": None}
    (tmp_path / "run" / "run.json").write_text(json.dumps({**info, "lineage": "r-1"}))
    (tmp_path / "store").mkdir()
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "store" / "r-1")
    assert_network(initial_weights_of(str(tmp_path / "run"), algorithm).weights, weights)


@pytest.mark.parametrize(
    ("preset", "sections", "what"),
    [
        ("cartpole-ppo", {"network.hidden": [32, 64]}, "tensor actor.0.weight: expected shape [64, 4], found [32, 4]"),
        ("acrobot-ppo", {"network.hidden": [64, 64]}, "tensor actor.0.weight: expected shape [64, 4], found [64, 6]"),
        (
            "cartpole-dqn",
            {"network.hidden": [64, 64]},
            "tensor actor.0.weight: expected shape [64, 4], found no such tensor",
        ),
        ("cartpole-ppo", {"network.hidden": [64]}, "tensor actor.1.weight: expected shape [64, 64], found [2, 64]"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, preset: str, sections: dict[str, object], what: str) -> None:
    _, algorithm = algorithm_of("cartpole-ppo", **{"network.hidden": [64, 64]})
    other_config, other = algorithm_of(preset, **sections)
    run_directory(tmp_path / "run", other_config, weights_of(other, 7))
    with raises(ConfigError, key=("run", "init_from"), what=what):
        initial_weights_of(str(tmp_path / "run"), algorithm)


def test_a_file_of_a_run_directory_names_the_run(tmp_path: Path) -> None:
    config, algorithm = algorithm_of("cartpole-ppo")
    run_directory(tmp_path / "run", config, weights_of(algorithm, 7))
    fix = f"its run: --init-from {tmp_path / 'run'}"
    with raises(ConfigError, key=("run", "init_from"), what="not a safetensors file", fix=fix):
        initial_weights_of(str(tmp_path / "run" / "config.json"), algorithm)


def test_an_invalid_checkpoint_is_named(tmp_path: Path) -> None:
    _, algorithm = algorithm_of("cartpole-ppo")
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("thesis.txt", "empty", "absent"):
        with raises(ConfigError, key=("run", "init_from"), value=str(tmp_path / name)):
            initial_weights_of(str(tmp_path / name), algorithm)


@pytest.mark.parametrize("full", [False, True])
def test_damaged_checkpoints_are_counted_and_some_named(tmp_path: Path, full: bool) -> None:
    config, algorithm = algorithm_of("cartpole-ppo")
    weights = weights_of(algorithm, 7)
    folder = tmp_path / "run" / "checkpoints"
    store = run_directory(tmp_path / "run", config, weights)
    for n in range(5, 10):
        store.save(Version(0, n), weights, {})
    for path in folder.iterdir():
        path.write_bytes(b"cut")
    if full:
        store.save_full(Full(Version(0, 4), {}, {"counters": {}}), durable=False)
    with pytest.raises(ConfigError) as caught:
        initial_weights_of(str(tmp_path / "run"), algorithm)
    assert isinstance(caught.value.__cause__, DamagedCheckpoints)
    assert caught.value.__cause__.names == tuple(f"v0-{n}.safetensors" for n in range(9, 2, -1))
    message = str(caught.value)
    assert "7 checkpoints, and none" in message and "v0-9.safetensors" in message and "v0-7.safetensors" not in message
    assert (f"--init-from {folder / 'full-0-4.safetensors'}" in message) is full


def normalised(preset: str = "pendulum-ppo", on: bool = True) -> tuple[Config, Algorithm]:
    return algorithm_of(preset, **{"algorithm.normalise_obs": on})


def test_statistics_are_taken_where_both_runs_have_them(tmp_path: Path) -> None:
    config, algorithm = normalised()
    mean, scale = np.array([1.0, -2.0, 3.0]), np.array([2.0, 0.5, 1.0])
    weights = {**weights_of(algorithm, 7), "obs_mean": mean, "obs_scale": scale}
    store = run_directory(tmp_path / "run", config, weights)
    found = initial_weights_of(str(tmp_path / "run"), algorithm).weights
    np.testing.assert_array_equal(found["obs_mean"], mean)
    np.testing.assert_allclose(found["obs_scale"], scale, rtol=1e-12)
    assert found["obs_stats.count"] == [ENV_STEPS]
    assert not set(initial_weights_of(str(tmp_path / "run"), normalised(on=False)[1]).weights) & {
        "obs_mean",
        "obs_scale",
    }
    # FULL has them exactly.
    state = {"obs_stats.count": np.array([50.0]), "obs_stats.mean": mean, "obs_stats.m2": np.array([7.0, 8.0, 9.0])}
    prefixed = {f"weights/{n}": a for n, a in weights.items()} | {f"state/{n}": a for n, a in state.items()}
    store.save_full(Full(Version(0, 4), prefixed, {"counters": {}}), durable=False)
    full = initial_weights_of(str(tmp_path / "run" / "checkpoints" / "full-0-4.safetensors"), algorithm).weights
    assert_network(full, state)


def test_a_learner_continues_with_the_statistics(tmp_path: Path) -> None:
    config, algorithm = normalised()
    weights = {**weights_of(algorithm, 7), "obs_mean": np.arange(3.0), "obs_scale": np.array([2.0, 0.5, 1.0])}
    run_directory(tmp_path / "run", config, weights)
    found = initial_weights_of(str(tmp_path / "run"), algorithm).weights
    published = algorithm.learner(LearnerContext(found)).weights()
    for name in ("obs_mean", "obs_scale"):
        np.testing.assert_array_equal(published[name], found[name])
    fresh = algorithm.learner(LearnerContext(weights_of(algorithm, 7))).weights()
    np.testing.assert_array_equal(fresh["obs_mean"], np.zeros(3))


def test_a_run_without_statistics_gives_its_weights_alone(tmp_path: Path) -> None:
    config, other = normalised(on=False)
    run_directory(tmp_path / "run", config, weights_of(other, 7))
    assert set(initial_weights_of(str(tmp_path / "run"), normalised()[1]).weights) == set(weights_of(other, 7))
