from __future__ import annotations

import subprocess
import sys

import numpy as np

from tests.support.waiting import WAIT_S
from zmqrl.networks.drawing import orthogonal
from zmqrl.networks.initial import initial_weights, parameter_shapes
from zmqrl.networks.spec import LayerSpec, NetworkSpec

SPEC = NetworkSpec(
    (
        (
            "a",
            (
                LayerSpec("linear", "a.0", 4, 8, gain=2.0),
                LayerSpec("tanh"),
                LayerSpec("linear", "a.1", 8, 3, gain=0.01),
            ),
        ),
        ("b", (LayerSpec("conv", "b.0", 2, 16, 3, 1, gain=0.0), LayerSpec("dueling", "b.1", 9, 5, gain=0.0))),
    ),
    (("log_std", (3,), -0.5),),
)


def test_names_and_shapes() -> None:
    weights = initial_weights(SPEC, 1)
    assert {name: value.shape for name, value in weights.items()} == parameter_shapes(SPEC)
    assert list(weights) == list(parameter_shapes(SPEC))
    assert all(value.dtype == np.float32 and value.flags.c_contiguous for value in weights.values())
    np.testing.assert_array_equal(weights["log_std"], np.full(3, -0.5, dtype=np.float32))


def test_orthogonal_with_gain_and_bias_zero() -> None:
    weights = initial_weights(SPEC, 1)
    tall, wide = weights["a.0.weight"], weights["a.1.weight"]
    np.testing.assert_allclose(tall.T @ tall, 4.0 * np.eye(4), atol=1e-5)
    np.testing.assert_allclose(wide @ wide.T, 1e-4 * np.eye(3), atol=1e-9)
    assert not weights["a.0.bias"].any()


def test_orthogonal_has_no_preferred_sign() -> None:
    firsts = [orthogonal(np.random.default_rng(seed), (4, 4), 1.0)[0, 0] for seed in range(30)]
    assert 5 < sum(first > 0 for first in firsts) < 25


def test_gain_zero_is_uniform_within_the_fan_in() -> None:
    weights = initial_weights(SPEC, 1)
    for name, bound in (("b.0.weight", 18**-0.5), ("b.1.value.weight", 1 / 3)):
        assert 0.8 * bound < np.abs(weights[name]).max() <= bound


def test_seeds_and_layers_have_streams_of_their_own() -> None:
    one, again, other = initial_weights(SPEC, 1), initial_weights(SPEC, 1), initial_weights(SPEC, 2)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["a.0.weight"], other["a.0.weight"])


def test_needs_no_torch() -> None:
    code = (
        "import sys, zmqrl.networks.initial, zmqrl.algorithms.ppo, zmqrl.algorithms.dqn; print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=WAIT_S).strip() == "False"
