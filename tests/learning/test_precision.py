"""Updates in bfloat16 are near those in float32, with every kind of layer; policies learn from pixels with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tests.algorithms.driver import Driver, MatchTheObs
from tests.learning.reports import Reports
from zmqrl.algorithms.base import Algorithm, OnPolicyLearner, Progress
from zmqrl.algorithms.policy_gradient.plan import MemorySection
from zmqrl.algorithms.start.make import kind_of
from zmqrl.config.codec import replace
from zmqrl.config.sections import NetworkSection
from zmqrl.learning import precision
from zmqrl.learning.net_learner import NetLearner
from zmqrl.networks.forward import forward
from zmqrl.testing.algorithm import CONTINUOUS, DISCRETE, PIXELS
from zmqrl.testing.expect import is_same
from zmqrl.testing.experience import SEED, Learner, acted, context_of, learn
from zmqrl.types import Array, EnvSpec, SpaceSpec, Weights

CNN = NetworkSection("cnn", (16,), "relu", (8,), (3,), (2,), layer_norm=True)
MODULE = NetworkSection("tests.networks.nets:Convolution")
ONE_UPDATE: Mapping[str, Any] = {"epochs": 1, "minibatch_size": 10_000}
CASES: Mapping[str, tuple[str, Mapping[str, Any], NetworkSection]] = {
    "towers apart": ("ppo", ONE_UPDATE, CNN),
    "one torso": ("ppo", {**ONE_UPDATE, "shared": True}, CNN),
    "memory": ("ppo", {**ONE_UPDATE, "memory": MemorySection("gru", 8, 8)}, CNN),
    "targets": ("dqn", {"batch_size": 64, "dueling": True, "noisy": True}, CNN),
    "cosines": ("iqn", {"batch_size": 64, "quantiles": 8}, CNN),
    "sequences": ("r2d2", {"batch_size": 16, "burn_in": 2, "length": 6, "stride": 4, "lstm_size": 8}, CNN),
    "actions": ("sac", {"batch_size": 64, "warmup_env_steps": 0}, CNN),
    "module": ("dqn", {"batch_size": 64}, MODULE),
    "module as torso": ("ppo", {**ONE_UPDATE, "shared": True}, MODULE),
}
NEAR, ALIKE = 0.05, 0.999
"""Largest difference of a gradient, as a share of its largest entry, and least cosine between gradients."""


def made(case: str) -> Algorithm:
    kind, fields, section = CASES[case]
    of = kind_of(kind)
    return of(of.Config(**fields), section, EnvSpec("toy", PIXELS, CONTINUOUS if kind == "sac" else DISCRETE), 16, 2)


def learner_of(algorithm: Algorithm, numbers: str, executor: str = "eager") -> Learner:
    return algorithm.learner(replace(context_of(algorithm), precision=numbers, executor=executor))


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_near_that_of_float32(case: str) -> None:
    algorithm, found = made(case), []
    slots = acted(algorithm, SEED)
    for numbers in ("float32", "bfloat16"):
        learner = learner_of(algorithm, numbers)
        learn(algorithm, learner, slots, updates=1)
        found.append(learner.state())
        assert {array.dtype for array in learner.weights().values()} == {np.dtype(np.float32)}
    means = [name for name, array in found[0].items() if name.endswith(".mean") and array.any()]
    assert means
    for name in means:
        exact, reduced = (state[name] for state in found)
        assert not np.array_equal(exact, reduced) or exact.size == 1, f"{name}: computed in float32"
        assert np.abs(exact - reduced).max() <= NEAR * np.abs(exact).max(), name
        assert exact @ reduced >= ALIKE * np.linalg.norm(exact) * np.linalg.norm(reduced), name


def test_outputs_are_linear_in_the_features_without_rounding_to_bfloat16() -> None:
    """With three digits two actions of nearly equal value would have the same one."""
    learner = learner_of(made("targets"), "bfloat16")
    assert isinstance(learner, NetLearner)
    drawn = np.random.default_rng(SEED).integers(0, 256, (64, *PIXELS.shape))
    outputs = learner.net("q", torch.tensor(drawn, dtype=torch.uint8))
    assert outputs.dtype is torch.float32
    assert not torch.equal(outputs, outputs.bfloat16().float())


def test_a_recorded_update_has_the_bits_of_the_eager_one() -> None:
    algorithm, found = made("one torso"), []
    slots = acted(algorithm, SEED)
    for executor in ("eager", "traced"):
        learner = learner_of(algorithm, "bfloat16", executor)
        learn(algorithm, learner, slots)
        found.append(learner.weights())
    is_same(*found, "weights")


class Stripes(MatchTheObs):
    """The symbol is the row of an image that is white."""

    def observe(self) -> Array:
        image = np.zeros((self.envs, 1, 6, 6), np.uint8)
        image[np.arange(self.envs), 0, 2 * self.symbol] = 255
        return image


class TorchDriver(Driver):
    """Acts with the layers of torch in float32, as workers do."""

    def act(self, obs: Array, weights: Weights, epsilon: float) -> tuple[Array, Array]:
        tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
        logits = forward(self.algorithm.acting().layers, tensors, torch.from_numpy(obs)).log_softmax(1)
        drawn = (logits.exp().cumsum(1).numpy() < self._rng.random((len(obs), 1))).sum(1).clip(max=2)
        return drawn, logits.numpy()[np.arange(len(obs)), drawn]


def test_ppo_learns_from_pixels_and_debug_compares_no_ratio() -> None:
    kind = kind_of("ppo")
    config = kind.Config(shared=True, learning_rate=5e-3, gamma=0.0, minibatch_size=64, epochs=4)
    section, space = replace(CNN, channels=(16,), kernels=(2,), layer_norm=False), SpaceSpec("box", (1, 6, 6), "uint8")
    algorithm = kind(config, section, EnvSpec("toy", space, DISCRETE), 16, 8)
    learner, driver = learner_of(algorithm, "bfloat16"), TorchDriver(algorithm, Stripes(8))
    assert isinstance(learner, OnPolicyLearner)
    share = 0.0
    for _ in range(30):
        version, batch = driver.version, driver.segment(learner.weights())
        share = float(batch.columns["reward"].sum() / batch.columns["valid"].sum())
        learner.learn(batch, Progress(SEED, 0, 0, 10_000, debug=True, version=version))
    assert share > 0.9, "a policy at random has a third"


@pytest.mark.parametrize(("flags", "reported"), [("fpu avx512_bf16 sse", 0), ("fpu avx2 bf16x", 1)])
def test_a_processor_without_the_instructions_is_reported(
    flags: str, reported: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_flags", lambda: f"x86_64 {flags}")
    algorithm, reports = made("targets"), Reports()
    for numbers in ("float32", "bfloat16"):
        algorithm.learner(replace(context_of(algorithm), precision=numbers, executor="eager", report=reports))
    what = "learner.precision: bfloat16: the learner's device (cpu) has no instructions for it"
    assert [cause for cause, _ in reports] == [what] * reported
