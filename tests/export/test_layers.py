"""Exports of every layer kind, head and kind of space act as the policies of the workers do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.export.parity import ROWS, OnnxPolicy, numpy_policy, observations, perturbed
from tests.support.raising import raises
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec, ActingState, previous_size
from zmqrl.acting.state import noise_of, state_of
from zmqrl.api.policies import LoadedPolicy
from zmqrl.config.codec import replace
from zmqrl.config.sections import NetworkSection
from zmqrl.envs.spaces import action_spec, observation_spec
from zmqrl.errors import ConfigError
from zmqrl.export.card import CardSource, Form
from zmqrl.export.write import export
from zmqrl.networks.build import tower
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.input import network_input
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.types import EnvSpec, Version, Weights

pytestmark = [pytest.mark.xdist_group("exports"), pytest.mark.whole]
SOURCE = CardSource("Env-v0", "ppo", 1, "run", Version(0, 1), None, None, 1)
FLAT = spaces.Box(-5, 5, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
PARTS = spaces.Dict(
    {
        "position": spaces.Box(-5, 5, (2, 2), np.float64),
        "goal": spaces.Discrete(4, start=2),
        "flags": spaces.MultiBinary(3),
        "inner": spaces.Dict({"digits": spaces.MultiDiscrete([3, 2], start=[1, -1]), "image": IMAGE}),
        "action_mask": spaces.Box(0, 1, (5,), np.int8),
    }
)
FIVE = spaces.Discrete(5, start=-1)
BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([1, 3], np.float32))
HALF = spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 0.1], np.float32))
MLP, CNN = (
    NetworkSection(hidden=(8,)),
    NetworkSection(kind="cnn", hidden=(8,), channels=(4,), kernels=(3,), strides=(2,)),
)
NORMALISED: dict[str, Any] = {"normalise_obs": True, "obs_clip": 1.5}
LOG_STD: dict[str, Any] = {"arrays": ("log_std",)}
QUANTILES: dict[str, Any] = {"options": {"quantiles": 3.0}}

CASES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any], NetworkSection, str, int, dict[str, Any]]] = {
    "parts with a mask": (PARTS, FIVE, MLP, "categorical", 5, NORMALISED),
    "image": (IMAGE, FIVE, replace(CNN, layer_norm=True, activation="gelu"), "epsilon_greedy", 5, {}),
    "normalised image": (spaces.Box(-5, 5, (12, 10, 3), np.float32), FIVE, CNN, "categorical", 5, NORMALISED),
    "image for an mlp": (IMAGE, FIVE, replace(MLP, activation="silu", layer_norm=True), "categorical", 5, {}),
    "unscaled image": (IMAGE, FIVE, replace(CNN, scale_images=False), "categorical", 5, {}),
    "discrete": (FIVE, FIVE, replace(MLP, activation="relu"), "categorical", 5, {}),
    "entries": (FLAT, spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 5]]), MLP, "multi_categorical", 11, {}),
    "bits": (FLAT, spaces.MultiBinary(3), MLP, "multi_categorical", 6, NORMALISED),
    "noisy dueling over quantiles": (FLAT, FIVE, MLP, "zmqrl.acting.quantile:QuantileGreedy", 15, QUANTILES),
    "quantiles": (FLAT, FIVE, MLP, "zmqrl.acting.quantile:QuantileGreedy", 15, QUANTILES),
    "bounded": (FLAT, BOX, MLP, "gaussian", 2, {**NORMALISED, **LOG_STD}),
    "partly bounded": (FLAT, HALF, MLP, "gaussian", 2, LOG_STD),
    "unbounded": (FLAT, spaces.Box(-np.inf, np.inf, (2, 1), np.float64), MLP, "gaussian", 2, LOG_STD),
    "deviation of the state": (FLAT, BOX, MLP, "gaussian", 4, {}),
    "unbounded, deviation of the state": (FLAT, spaces.Box(-np.inf, np.inf, (2,), np.float32), MLP, "gaussian", 4, {}),
    "squashed": (FLAT, BOX, MLP, "squashed_gaussian", 4, {}),
    "deterministic": (FLAT, BOX, MLP, "deterministic_noise", 2, {}),
}


def _policy(name: str) -> tuple[ActingSpec, Weights, LoadedPolicy]:
    observed, acted, section, head, outputs, further = CASES[name]
    observation, action = observation_spec("e", observed), action_spec("e", acted)
    more: Any = {
        "discrete": {"dueling": True},
        "quantiles": {"noisy": True},
        "noisy dueling over quantiles": {"noisy": True, "dueling": True, "atoms": 3},
    }.get(name, {})
    return _acting(
        observation, action, tower("p", section, observation, outputs, output_gain=1.0, **more), section, head, further
    )


def _acting(
    observation: Any, action: Any, layers: Any, section: NetworkSection, head: str, further: dict[str, Any]
) -> tuple[ActingSpec, Weights, LoadedPolicy]:
    described = network_input(observation, section)
    spec = ActingSpec(layers, head, action, observation, input=described, **further)
    size = described.statistics_size
    weights = {
        **perturbed(initial_weights(NetworkSpec((("p", layers),)), 3), 4),
        "obs_mean": np.linspace(-1, 1, size),
        "obs_scale": np.linspace(0.5, 2, size),
        "log_std": np.zeros(2, np.float32),
    }
    policy = make_policy(spec)
    policy.load(weights, {"epsilon": 0.0, "noise": 0.0})
    return spec, weights, LoadedPolicy(policy, EnvSpec("e", observation, action))


def _check(folder: Path, form: Form, spec: ActingSpec, weights: Weights, expected: LoadedPolicy) -> None:
    export(folder, form, spec, weights, SOURCE)
    policy = OnnxPolicy(folder) if form == "onnx" else numpy_policy(folder)
    generator = np.random.default_rng(5)
    seen = set()
    for _ in range(4):
        obs, reward = observations(spec.observation, ROWS, generator), generator.normal(size=ROWS).astype(np.float32)
        actions, found = expected(obs, reward), policy(obs, reward)
        assert (found.shape, found.dtype) == (actions.shape, actions.dtype)
        np.testing.assert_allclose(found, actions, rtol=1e-4, atol=1e-5)
        seen |= {action.tobytes() for action in actions}
    assert len(seen) > 1, "the policy acts the same everywhere"


@pytest.mark.parametrize("form", ["onnx", "numpy"])
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, form: Form, tmp_path: Path) -> None:
    _check(tmp_path, form, *_policy(name))


RETURNS: dict[str, tuple[LayerSpec, ...]] = {
    "atoms": (LayerSpec("linear", "o", 3, 20), LayerSpec("expectation", "", 20, 5, options=(("low", -3.0),))),
    "implicit quantiles": (
        LayerSpec("cosine", "c", 3, 3, options=(("cosines", 5), ("fractions", 3))),
        LayerSpec("dueling", "o", 3, 5),
    ),
}


@pytest.mark.parametrize("form", ["onnx", "numpy"])
@pytest.mark.parametrize("name", RETURNS)
def test_distributions_of_returns(name: str, form: Form, tmp_path: Path) -> None:
    observation, action = observation_spec("e", FLAT), action_spec("e", FIVE)
    _check(tmp_path, form, *_acting(observation, action, RETURNS[name], MLP, "epsilon_greedy", {}))


@pytest.mark.parametrize("parts", [False, True])
def test_a_module_is_exported_to_onnx_alone(parts: bool, tmp_path: Path) -> None:
    observation = observation_spec("e", PARTS if parts else FLAT)
    section = NetworkSection(kind=f"tests.export.modules:{'Several' if parts else 'Body'}", kwargs={"width": 6})
    layers = tower("p", section, observation, 5, output_gain=1.0)
    case = _acting(observation, action_spec("e", FIVE), layers, section, "categorical", NORMALISED)
    with raises(ConfigError, key=("--to",), value="numpy", fix="use --to onnx"):
        export(tmp_path / "numpy", "numpy", case[0], case[1], SOURCE)
    assert not (tmp_path / "numpy").exists()
    _check(tmp_path / "onnx", "onnx", *case)


def test_an_activation_of_the_users_is_exported_to_onnx_alone(tmp_path: Path) -> None:
    section = NetworkSection(hidden=(8, 6), activation="tests.export.modules:Cube")
    observation = observation_spec("e", FLAT)
    layers = tower("p", section, observation, 5, output_gain=1.0)
    case = _acting(observation, action_spec("e", FIVE), layers, section, "categorical", {})
    with raises(ConfigError, key=("--to",), value="numpy", fix="use --to onnx"):
        export(tmp_path / "numpy", "numpy", case[0], case[1], SOURCE)
    _check(tmp_path / "onnx", "onnx", *case)


def test_a_recurrent_layer_of_the_users_is_exported_to_onnx_alone(tmp_path: Path) -> None:
    layers = (LayerSpec("tests.export.modules:Leaky", "core", 3, 6), LayerSpec("linear", "out", 6, 5))
    further = {"state": (ActingState("core", 6),), "noise": noise_of(layers)}
    _check(
        tmp_path,
        "onnx",
        *_acting(observation_spec("e", FLAT), action_spec("e", FIVE), layers, MLP, "categorical", further),
    )


@pytest.mark.parametrize("form", ["onnx", "numpy"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_recurrent_layer_keeps_its_state(kind: str, form: Form, tmp_path: Path) -> None:
    layers = (LayerSpec(kind, "core", 3, 6), LayerSpec("linear", "out", 6, 5))
    case = _acting(
        observation_spec("e", FLAT), action_spec("e", FIVE), layers, MLP, "categorical", {"state": state_of(layers)}
    )
    _check(tmp_path, form, *case)


@pytest.mark.parametrize("form", ["onnx", "numpy"])
@pytest.mark.parametrize(
    ("acted", "head", "outputs"),
    [
        (FIVE, "categorical", 5),
        (spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 5]]), "multi_categorical", 11),
        (BOX, "squashed_gaussian", 4),
        (spaces.Box(-np.inf, np.inf, (2, 1), np.float64), "gaussian", 4),
    ],
)
def test_the_previous_action_and_reward(
    acted: spaces.Space[Any], head: str, outputs: int, form: Form, tmp_path: Path
) -> None:
    """The policy of a file remembers its action; a reward where an episode begins has no effect, even if it is NaN."""
    observation, action = observation_spec("e", FLAT), action_spec("e", acted)
    size = previous_size(action)
    layers = (
        LayerSpec("concat", inputs=3, outputs=3 + size),
        LayerSpec("gru", "core", 3 + size, 6),
        LayerSpec("linear", "out", 6, outputs),
    )
    state: dict[str, Any] = {"state": state_of(layers), "previous": True, **NORMALISED}
    spec, weights, expected = _acting(observation, action, layers, MLP, head, state)
    _check(tmp_path / "a", form, spec, weights, expected)
    policy = OnnxPolicy(tmp_path / "a") if form == "onnx" else numpy_policy(tmp_path / "a")
    expected.reset()
    generator = np.random.default_rng(6)
    effect = 0.0
    for step in range(5):
        obs, reward = observations(observation, ROWS, generator), 3 * generator.normal(size=ROWS).astype(np.float32)
        if step == 0:
            reward[...] = np.nan
        if step == 3:
            ended = np.array([True, False, False, True, False])
            reward[ended] = np.nan
            for one in (expected, policy):
                one.reset(ended)
        np.testing.assert_allclose(policy(obs, reward), expected(obs, reward), rtol=1e-4, atol=1e-5)
        held = expected._state["core"].copy()
        assert np.isfinite(held).all()
        for name, array in policy.state.items():
            np.testing.assert_allclose(array, expected._state[name], rtol=1e-4, atol=1e-5)
        effect = max(effect, float(np.abs(held).max()))
    assert effect > 0.1
    with pytest.raises(ValueError):
        expected(obs)
    expected.reset()
    assert expected(obs).shape[0] == ROWS, "without a reward where all episodes begin"


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, weights, _ = _policy("bounded")
    with raises(ConfigError, key=(), what="head 'my_lab:Head' cannot be exported"):
        export(tmp_path / "a", "numpy", replace(spec, head="my_lab:Head"), weights, SOURCE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with raises(ConfigError, value=str(tmp_path / "full"), what="is not empty"):
        export(tmp_path / "full", "numpy", spec, weights, SOURCE)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with raises(
        ConfigError,
        key=(),
        what="--to onnx needs the package onnx, which is missing",
        fix="run in the checkout of zmqrl: pip install '.[onnx]'",
    ):
        export(tmp_path / "a", "onnx", spec, weights, SOURCE)
    assert not (tmp_path / "a").exists()
