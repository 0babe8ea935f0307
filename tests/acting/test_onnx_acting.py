"""Acting with ONNX Runtime computes what numpy and torch acting do, for every kind of layer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest

from tests.export.parity import perturbed
from tests.support.marks import long
from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.acting.base import ActingContext, Place, Policy, noise_for
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.previous import PreviousStep
from zmqrl.acting.spec import ActingSpec, ActingState
from zmqrl.acting.state import noise_of, state_of
from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.export.acting_graph import with_graph
from zmqrl.networks.build import tower
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.input import network_input
from zmqrl.networks.kinds.base import known_kinds
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.random_streams import stream
from zmqrl.spaces import SpaceSpec, composite
from zmqrl.testing.observations import observations
from zmqrl.types import Array, Weights

pytestmark = [pytest.mark.xdist_group("exports"), pytest.mark.whole]
T, OUT, TOLERANCE = 4, 3, 1e-5
VECTOR = SpaceSpec("box", (6,), "float32")
IMAGE = SpaceSpec("box", (9, 8, 3), "uint8", low=(0.0,), high=(255.0,))
PARTS = composite(
    [
        ("image", SpaceSpec("box", (2, 9, 9), "float32"), ("image",)),
        ("vector", VECTOR, ("vector",)),
        ("goal", SpaceSpec("discrete", (), "int64", n=4), ("goal",)),
    ]
)
MLP, CNN = (
    NetworkSection(hidden=(8, 7)),
    NetworkSection(kind="cnn", hidden=(8,), channels=(4, 5), kernels=(3, 2), strides=(2, 1)),
)
Case = tuple[SpaceSpec, NetworkSection, dict[str, Any]]
TOWERS: dict[str, Case] = {
    "tanh": (VECTOR, MLP, {}),
    "relu, dueling": (VECTOR, replace(MLP, activation="relu"), {"dueling": True}),
    "gelu, normed, noisy": (VECTOR, replace(MLP, activation="gelu", layer_norm=True), {"noisy": True}),
    "silu, image": (IMAGE, replace(MLP, activation="silu"), {}),
    "convolutions, normed": (IMAGE, replace(CNN, layer_norm=True), {"noisy": True, "dueling": True}),
    "dueling over atoms": (VECTOR, MLP, {"dueling": True, "outputs": 6, "atoms": 3}),
    "noisy dueling over atoms": (VECTOR, MLP, {"noisy": True, "dueling": True, "outputs": 6, "atoms": 2}),
    "parts": (PARTS, MLP, {}),
    "own activation": (VECTOR, replace(MLP, activation="tests.export.modules:Cube"), {}),
    "own module, batch norm": (VECTOR, NetworkSection("tests.networks.nets:Residual"), {}),
    "own module, constants": (VECTOR, NetworkSection("tests.networks.nets:Constant"), {}),
    "own module with state": (VECTOR, NetworkSection("tests.networks.nets:Remembers"), {}),
    "own module, parts": (PARTS, NetworkSection("tests.networks.nets:ImageAndVector"), {}),
}
CORES: dict[str, tuple[LayerSpec, ...]] = {
    "lstm": (LayerSpec("lstm", "core", 6, 5), LayerSpec("relu"), LayerSpec("linear", "out", 5, OUT)),
    "gru": (LayerSpec("gru", "core", 6, 5), LayerSpec("relu"), LayerSpec("linear", "out", 5, OUT)),
    "implicit quantiles": (
        LayerSpec("relu"),
        LayerSpec("cosine", "c", 6, 6, options=(("cosines", 5), ("fractions", 3))),
        LayerSpec("linear", "out", 6, OUT),
    ),
    "expectation": (LayerSpec("linear", "out", 6, 4 * OUT), LayerSpec("expectation", "", 4 * OUT, OUT)),
    "noise of training alone": (
        LayerSpec("tests.networks.own_kinds:Fractions", "f", 6, 6),
        LayerSpec("linear", "out", 6, OUT),
    ),
    "previous": (
        LayerSpec("concat", inputs=6, outputs=8),
        LayerSpec("gru", "core", 8, 5),
        LayerSpec("linear", "o", 5, OUT),
    ),
    "own recurrent layer": (LayerSpec("tests.export.modules:Leaky", "core", 6, 5), LayerSpec("linear", "o", 5, OUT)),
}
NORMALISED = {"parts", "tanh", "own module, parts"}


def case(name: str) -> tuple[ActingSpec, Weights]:
    space, section, options = TOWERS.get(name, (VECTOR, MLP, {}))
    options = {"outputs": OUT, **options}
    layers = CORES[name] if name in CORES else tower("p", section, space, output_gain=1.0, **options)
    described = network_input(space, section)
    spec = ActingSpec(
        layers,
        "zmqrl.testing.network:OutputsHead",
        SpaceSpec("box", (1,), "float32"),
        space,
        normalise_obs=name in NORMALISED,
        input=described,
        noise=noise_of(layers),
        state=state_of(layers),
        previous=name == "previous",
    )
    return spec, version(spec, 1)


def version(spec: ActingSpec, seed: int) -> Weights:
    size = network_input(spec.observation).statistics_size
    statistics = {"obs_mean": np.linspace(-1, 1, size), "obs_scale": np.linspace(0.5, 2, size)}
    return perturbed({**initial_weights(NetworkSpec((("p", spec.layers),)), seed), **statistics}, seed)


def acted(policy: Policy, spec: ActingSpec, rows: int) -> list[Array]:
    """Outputs and states of a segment, and of a greedy step."""
    drawn = stream(1, "acting", index=rows)
    context = ActingContext(noise_for(drawn, T, rows, 1, spec.noise), {}, Place.of(0, 1, rows), policy.zero_state(rows))
    found = []
    for t in range(T):
        if spec.previous:  # an action of one number
            PreviousStep(spec.action, rows).write(context.state, drawn.normal(size=(rows, 1)), drawn.normal(size=rows))
        found.append(np.array(policy.act(observations(spec.observation, drawn, (rows,)), t, context)))
        found += [state.copy() for state in context.state.values()]
    found.append(np.array(policy.act_greedily(observations(spec.observation, drawn, (rows,)), context.state)))
    return found


def onnx_policy(spec: ActingSpec) -> Policy:
    return make_policy(from_json(ActingSpec, to_json(with_graph(spec))))


def loaded(spec: ActingSpec, weights: Weights, runtime: Literal["numpy", "torch"]) -> Policy:
    policy = make_policy(replace(spec, runtime=runtime))
    policy.load(weights, {})
    return policy


@pytest.mark.parametrize("name", [long(name) if name == "own activation" else name for name in (*TOWERS, *CORES)])
def test_outputs_and_states_are_those_of_numpy_and_torch(name: str) -> None:
    spec, weights = case(name)
    policy = onnx_policy(spec)
    policy.load(weights, {})
    runtimes: list[Literal["numpy", "torch"]] = ["torch"] if spec.runtime == "torch" else ["numpy", "torch"]
    for runtime in runtimes:
        other = loaded(spec, weights, runtime)
        for rows in (5, 1, 5):
            for one, expected in zip(acted(policy, spec, rows), acted(other, spec, rows), strict=True):
                assert np.ptp(expected) > TOLERANCE, "the network has an effect"
                np.testing.assert_allclose(one, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_every_kind_of_a_network_that_acts_is_covered() -> None:
    layers = [layer for name in (*TOWERS, *CORES) for layer in case(name)[0].layers]
    assert {layer.kind for layer in layers if ":" not in layer.kind} == set(known_kinds())


@pytest.mark.parametrize(("name", "sessions"), [("own module, batch norm", 1), ("gru", 1), ("convolutions, normed", 2)])
def test_a_version_needs_no_new_session_unless_it_has_convolutions(
    name: str, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    session = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *a, **k: made.append(1) or session(*a, **k))
    spec, first = case(name)
    policy, second = onnx_policy(spec), version(spec, 2)
    for weights in (first, second):
        policy.load(weights, {})
        expected = acted(loaded(spec, weights, "torch"), spec, 2)
        for one, other in zip(acted(policy, spec, 2), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
    assert len(made) == sessions


def test_the_state_of_a_head_is_left_to_the_head() -> None:
    spec, weights = case("tanh")
    policy = onnx_policy(replace(spec, state=(ActingState("head", 2),)))
    policy.load(weights, {})
    state = policy.zero_state(3)
    state["head"][:] = 4.0
    policy.act_greedily(np.zeros((3, 6), np.float32), state)
    assert (state["head"] == 4.0).all()


def test_a_worker_needs_neither_torch_nor_onnx_nor_the_module(tmp_path: Path) -> None:
    spec, weights = case("own module, parts")
    np.savez(tmp_path / "weights.npz", **weights)
    (tmp_path / "spec.json").write_text(json.dumps(to_json(with_graph(spec))))
    code = (
        "import json, sys, numpy as np; from zmqrl.acting.numpy_policy import make_policy\n"
        "from zmqrl.acting.spec import ActingSpec; from zmqrl.config.codec import from_json\n"
        f"policy = make_policy(from_json(ActingSpec, json.load(open({str(tmp_path / 'spec.json')!r}))))\n"
        f"policy.load(dict(np.load({str(tmp_path / 'weights.npz')!r})), {{}})\n"
        f"policy.act_greedily(np.zeros((2, *{spec.observation.shape}), {spec.observation.dtype!r}))\n"
        "assert not {'torch', 'onnx', 'tests.networks.nets'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr


def test_without_onnxruntime_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = with_graph(case("tanh")[0])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with raises(ConfigError, key=("network", "runtime"), value="onnx", what="the package onnxruntime is missing"):
        make_policy(spec)
