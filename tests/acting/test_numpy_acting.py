from __future__ import annotations

import math
import subprocess
import sys
from typing import Literal

import mpmath
import numpy as np
import pytest
import torch

from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.acting.base import ActingContext, Place, noise_for
from zmqrl.acting.make_head import make_head
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.networks.spec import LayerSpec
from zmqrl.ops.policies import mean_and_log_std
from zmqrl.types import ColumnSpec, SpaceSpec

N, T = 8, 4
OBS = SpaceSpec("box", (3,), "float32")
DISCRETE = SpaceSpec("discrete", (), "int64", n=5)
BOX = SpaceSpec("box", (2,), "float32", low=(-2.0, -1.0), high=(2.0, 1.0))
HALF = SpaceSpec("box", (2,), "float32", low=(-math.inf, 0.5), high=(-0.5, math.inf))
LOG_PROB = (ColumnSpec("log_prob", "float32", (T, N)),)
RNG = np.random.default_rng(0)


def layers(outputs: int, *, last: str = "linear") -> tuple[LayerSpec, ...]:
    return (
        LayerSpec("linear", "p.0", 3, 16),
        LayerSpec("tanh"),
        LayerSpec("linear", "p.1", 16, 16),
        LayerSpec("relu"),
        LayerSpec(last, "p.2", 16, outputs),
    )


def weights(outputs: int) -> dict[str, np.ndarray]:
    def draw(*shape: int) -> np.ndarray:
        return RNG.standard_normal(shape).astype(np.float32)

    return {
        "p.0.weight": draw(16, 3),
        "p.0.bias": draw(16),
        "p.1.weight": draw(16, 16),
        "p.1.bias": draw(16),
        "p.2.weight": draw(outputs, 16),
        "p.2.bias": draw(outputs),
        "p.2.value.weight": draw(1, 16),
        "p.2.value.bias": draw(1),
        "p.2.advantage.weight": draw(outputs, 16),
        "p.2.advantage.bias": draw(outputs),
        "log_std": draw(outputs),
        "obs_mean": RNG.standard_normal(3),
        "obs_scale": RNG.random(3) + 0.5,
    }


def body(w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    hidden = np.tanh(x.astype(np.float64) @ w["p.0.weight"].T + w["p.0.bias"])
    return np.maximum(hidden @ w["p.1.weight"].T + w["p.1.bias"], 0)


def outputs_of(w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return body(w, x) @ w["p.2.weight"].T + w["p.2.bias"]


def run(spec: ActingSpec, w: dict[str, np.ndarray], obs: np.ndarray, **schedule: float):
    policy = make_policy(spec)
    policy.load(w, schedule)
    noise = noise_for(np.random.default_rng(7), T, len(obs), 2 if spec.action.kind == "box" else 0)
    extras = {column.name: np.full((T, len(obs), *column.shape[2:]), np.nan, np.float32) for column in spec.extras}
    context = ActingContext(noise, extras, Place.of(0, 1, len(obs)))
    return policy.act(obs, 1, context), noise, extras, policy


def test_categorical_by_inverse_cdf_and_its_log_prob() -> None:
    w, obs = weights(5), RNG.standard_normal((N, 3)).astype(np.float32)
    actions, noise, extras, policy = run(ActingSpec(layers(5), "categorical", DISCRETE, OBS, LOG_PROB), w, obs)
    logits = outputs_of(w, obs)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    drawn = zip(p, noise.uniform[1, :, 0], strict=True)
    expected = [int(np.searchsorted(np.cumsum(row), u, side="right")) for row, u in drawn]
    assert actions.tolist() == expected
    assert actions.dtype == np.int64
    np.testing.assert_allclose(extras["log_prob"][1], np.log(p[np.arange(N), actions]), atol=1e-5)
    assert np.isnan(extras["log_prob"][[0, 2, 3]]).all()
    assert policy.act_greedily(obs).tolist() == logits.argmax(1).tolist()


def test_categorical_frequencies() -> None:
    spec = ActingSpec((LayerSpec("linear", "p", 3, 5),), "categorical", DISCRETE, OBS)
    policy = make_policy(spec)
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.5], np.float32)
    policy.load({"p.weight": np.zeros((5, 3), np.float32), "p.bias": logits}, {})
    noise = noise_for(np.random.default_rng(0), 1, 40_000, 0)
    counts = (
        np.bincount(policy.act(np.zeros((40_000, 3)), 0, ActingContext(noise, {}, Place.of(0, 1, 40_000))), minlength=5)
        / 40_000
    )
    np.testing.assert_allclose(counts, np.exp(logits) / np.exp(logits).sum(), atol=0.01)


def test_epsilon_greedy_and_dueling() -> None:
    w, obs = weights(5), RNG.standard_normal((N, 3)).astype(np.float32)
    spec = ActingSpec(layers(5, last="dueling"), "epsilon_greedy", DISCRETE, OBS)
    hidden = body(w, obs)
    advantage = hidden @ w["p.2.advantage.weight"].T + w["p.2.advantage.bias"]
    best = advantage.argmax(1)
    assert run(spec, w, obs, epsilon=0.0)[0].tolist() == best.tolist()
    actions, noise, _, _ = run(spec, w, obs, epsilon=0.5)
    random = np.floor(noise.uniform[1, :, 1] * 5).astype(int)
    assert actions.tolist() == np.where(noise.uniform[1, :, 0] < 0.5, random, best).tolist()


def test_gaussian_is_stored_unclipped_and_greedy_is_clipped() -> None:
    w, obs = weights(2), RNG.standard_normal((N, 3)).astype(np.float32)
    spec = ActingSpec(layers(2), "gaussian", BOX, OBS, LOG_PROB, arrays=("log_std",))
    actions, noise, extras, policy = run(spec, w, obs)
    mean, std = outputs_of(w, obs), np.exp(w["log_std"])
    np.testing.assert_allclose(actions, mean + std * noise.normal[1], rtol=1e-4, atol=1e-5)
    assert actions.dtype == np.float32
    z = (actions - mean) / std
    expected = (-0.5 * z * z - w["log_std"] - 0.5 * math.log(2 * math.pi)).sum(1)
    np.testing.assert_allclose(extras["log_prob"][1], expected, atol=1e-4)
    greedy = policy.act_greedily(obs)
    np.testing.assert_allclose(greedy, np.clip(mean, BOX.low, BOX.high), rtol=1e-4, atol=1e-5)


def test_a_gaussian_with_a_deviation_of_the_state() -> None:
    """As V-MPO and MPO draw actions: log-stds are outputs, between -20 and 2."""
    w, obs = weights(4), RNG.standard_normal((N, 3)).astype(np.float32)
    w["p.2.weight"][2] *= 0.1  # the density of float32 actions with a small deviation has few digits
    w["p.2.weight"][3], w["p.2.bias"][2:] = 0.0, (-0.5, 2.5)
    actions, noise, extras, policy = run(ActingSpec(layers(4), "gaussian", BOX, OBS, LOG_PROB), w, obs)
    outputs = torch.from_numpy(outputs_of(w, obs)).double()
    mean, log_std = mean_and_log_std(outputs)
    assert (outputs[:, 3] == 2.5).all() and (log_std[:, 1] == 2).all()
    expected = mean + log_std.exp() * torch.from_numpy(noise.normal[1])
    np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-5)
    assert actions.dtype == np.float32 and np.abs(actions).max() > max(BOX.high), "not clipped"
    log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.from_numpy(actions)).sum(1)
    np.testing.assert_allclose(extras["log_prob"][1], log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(policy.act_greedily(obs), np.clip(mean.numpy(), BOX.low, BOX.high), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("with_array", [False, True])
def test_the_log_density_of_a_squashed_gaussian_is_that_of_its_definition(with_array: bool) -> None:
    """log N(u) - log(1 - tanh(u)^2) with 60 digits, of the u that was drawn, also where float32 has tanh(u) = 1."""
    w, obs = weights(2 if with_array else 4), RNG.standard_normal((N, 3)).astype(np.float32)
    w["p.2.bias"][:2] = (7.0, -20.0)
    spec = ActingSpec(layers(len(w["p.2.bias"])), "squashed_gaussian", BOX, OBS, LOG_PROB)
    _, noise, extras, _ = run(replace(spec, arrays=("log_std",) if with_array else ()), w, obs)
    outputs = outputs_of(w, obs)
    for row in range(N):
        total = mpmath.mpf(0)
        for i in range(2):
            log_std = float(w["log_std"][i] if with_array else np.clip(outputs[row, 2 + i], -20, 2))
            normal = mpmath.mpf(float(np.float32(noise.normal[1, row, i])))
            u = mpmath.mpf(float(outputs[row, i])) + mpmath.exp(log_std) * normal
            with mpmath.workdps(60):
                density = -normal * normal / 2 - log_std - mpmath.log(2 * mpmath.pi) / 2
                total += density - mpmath.log(1 - mpmath.tanh(u) ** 2)
        assert extras["log_prob"][1, row] == pytest.approx(float(total), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("head", ["gaussian", "squashed_gaussian"])
@pytest.mark.parametrize(("outputs", "arrays"), [(2, ()), (4, ("log_std",)), (3, ())])
def test_outputs_of_a_normal_head_are_counted(head: str, outputs: int, arrays: tuple[str, ...]) -> None:
    read = "2 outputs (means, with the array log_std)" if arrays else "4 outputs (means and log-stds)"
    with raises(ConfigError, key=(), what=f"head {head!r} reads {read}, and the last layer has {outputs}"):
        make_head(ActingSpec(layers(outputs), head, BOX, OBS, arrays=arrays), 1)


def test_greedy_actions_are_clipped_on_the_sides_that_have_a_bound() -> None:
    w, obs = weights(2), RNG.standard_normal((N, 3)).astype(np.float32)
    _, _, _, policy = run(ActingSpec(layers(2), "gaussian", HALF, OBS, arrays=("log_std",)), w, obs)
    expected = np.clip(outputs_of(w, obs), [-np.inf, 0.5], [-0.5, np.inf])
    np.testing.assert_allclose(policy.act_greedily(obs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["squashed_gaussian", "deterministic_noise"])
@pytest.mark.parametrize("action", [HALF, OBS])
def test_bounded_heads_need_a_bound_on_every_side(head: str, action: SpaceSpec) -> None:
    with raises(ConfigError, what=f"head '{head}' needs an action space that is bounded on every side"):
        make_policy(ActingSpec(layers(2), head, action, OBS)).act_greedily(np.zeros((N, 3), np.float32))


@pytest.mark.parametrize("head", ["squashed_gaussian", "deterministic_noise"])
@pytest.mark.parametrize(("low", "high"), [(-3e38, 3e38), (-1e300, 1e300), (2.0, 2.0), (0.0, 1e-60)])
def test_bounded_heads_need_bounds_that_float32_can_scale_to(head: str, low: float, high: float) -> None:
    action = SpaceSpec("box", (2,), "float64", low=(-1.0, low), high=(1.0, high))
    with pytest.raises(ConfigError, match=f"head '{head}' scales actions to their bounds: entry 1 of 2 has the bounds"):
        make_policy(ActingSpec(layers(4), head, action, OBS)).act_greedily(np.zeros((N, 3), np.float32))


@pytest.mark.parametrize(("low", "high"), [(-8e37, 8e37), (0.0, 1e-30), (-1e-3, 5.0)])
def test_bounds_that_float32_can_scale_to(low: float, high: float) -> None:
    action = SpaceSpec("box", (2,), "float64", low=(-1.0, low), high=(1.0, high))
    policy = make_policy(ActingSpec(layers(4), "squashed_gaussian", action, OBS))
    policy.load(weights(4), {})
    assert np.isfinite(policy.act_greedily(np.ones((N, 3), np.float32))).all()


@pytest.mark.parametrize(("head", "outputs"), [("squashed_gaussian", 4), ("deterministic_noise", 2)])
def test_bounded_heads_stay_within_the_bounds(head: str, outputs: int) -> None:
    w, obs = weights(outputs), 5 * RNG.standard_normal((N, 3)).astype(np.float32)
    actions, _, _, policy = run(ActingSpec(layers(outputs), head, BOX, OBS), w, obs, noise=0.3)
    for some in (actions, policy.act_greedily(obs)):
        assert (some >= np.array(BOX.low)).all()
        assert (some <= np.array(BOX.high)).all()


def test_observations_are_normalised_with_the_versions_statistics() -> None:
    w, obs = weights(5), 30 * RNG.standard_normal((N, 3))
    spec = ActingSpec(layers(5), "categorical", DISCRETE, OBS, normalise_obs=True, obs_clip=2.0)
    seen = np.clip((obs - w["obs_mean"]) * w["obs_scale"], -2, 2).astype(np.float32)
    policy = make_policy(spec)
    policy.load(w, {})
    assert policy.act_greedily(obs).tolist() == outputs_of(w, seen).argmax(1).tolist()


def test_pixels_are_scaled() -> None:
    w = weights(5)
    spec = ActingSpec((LayerSpec("scale", inputs=255), *layers(5)), "categorical", DISCRETE, OBS)
    obs = RNG.integers(0, 256, (N, 3)).astype(np.uint8)
    policy = make_policy(spec)
    policy.load(w, {})
    assert policy.act_greedily(obs).tolist() == outputs_of(w, obs / 255).argmax(1).tolist()
    assert obs.dtype == np.uint8


def test_new_weights_and_another_batch_size() -> None:
    spec = ActingSpec(layers(5), "categorical", DISCRETE, OBS)
    policy = make_policy(spec)
    for rows in (8, 3, 8):
        w, obs = weights(5), RNG.standard_normal((rows, 3)).astype(np.float32)
        policy.load(w, {})
        assert policy.act_greedily(obs).tolist() == outputs_of(w, obs).argmax(1).tolist()


def test_an_unknown_head_or_extra_is_refused() -> None:
    obs = np.zeros((N, 3), np.float32)
    with raises(ConfigError, key=(), what="head 'softmix' is unknown and cannot be loaded: No module named 'softmix'"):
        run(ActingSpec(layers(5), "softmix", DISCRETE, OBS), weights(5), obs)
    with raises(ConfigError, key=(), what="head 'epsilon_greedy' cannot fill extras ['log_prob'], only []"):
        run(ActingSpec(layers(5), "epsilon_greedy", DISCRETE, OBS, LOG_PROB), weights(5), obs, epsilon=0.0)
    with raises(ConfigError, key=(), what="layer 'c' of kind 'conv' needs runtime torch"):
        make_policy(ActingSpec((LayerSpec("conv", "c"),), "categorical", DISCRETE, OBS, runtime="numpy"))


def test_the_runtime_is_torch_only_if_a_layer_needs_it() -> None:
    convolution = (LayerSpec("conv", "c"), *layers(5))
    found = [ActingSpec(chain, "categorical", DISCRETE, OBS).runtime for chain in (layers(5), convolution)]
    assert found == ["numpy", "torch"]


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_an_unknown_layer_kind_is_refused(runtime: Literal["numpy", "torch"]) -> None:
    spec = ActingSpec((*layers(5)[:2], LayerSpec("norm")), "categorical", DISCRETE, OBS, runtime=runtime)
    with raises(ConfigError, key=(), what="layer kind 'norm' is unknown"):
        run(spec, weights(5), np.zeros((N, 3), np.float32))


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_an_unknown_option_is_refused(runtime: Literal["numpy", "torch"]) -> None:
    layer = LayerSpec("linear", "p.0", 3, 5, options=(("rank", 2.0),))
    with raises(ConfigError, key=(), what="layer 'p.0': kind 'linear' has no option 'rank' (known: none)"):
        make_policy(ActingSpec((layer,), "categorical", DISCRETE, OBS, runtime=runtime))


def test_an_own_head_by_dotted_path() -> None:
    spec = ActingSpec(layers(5), "zmqrl.acting.heads:Categorical", DISCRETE, OBS)
    assert len(run(spec, weights(5), np.zeros((N, 3), np.float32))[0]) == N


def test_torch_and_numpy_agree() -> None:
    w, obs = weights(5), RNG.standard_normal((N, 3)).astype(np.float32)
    found = []
    for runtime in ("numpy", "torch"):
        spec = ActingSpec(layers(5, last="dueling"), "categorical", DISCRETE, OBS, LOG_PROB, runtime=runtime)  # type: ignore[arg-type]
        actions, _, extras, _ = run(spec, w, obs)
        found.append((actions.tolist(), extras["log_prob"][1]))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)


def test_torch_runs_convolutions() -> None:
    space = SpaceSpec("box", (2, 6, 6), "uint8")
    body = (
        LayerSpec("scale", inputs=255),
        LayerSpec("conv", "c.0", 2, 3, kernel=3, stride=2),
        LayerSpec("relu"),
        LayerSpec("flatten"),
        LayerSpec("linear", "c.1", 12, 5),
    )
    w = {
        "c.0.weight": RNG.standard_normal((3, 2, 3, 3)).astype(np.float32),
        "c.0.bias": np.zeros(3, np.float32),
        "c.1.weight": RNG.standard_normal((5, 12)).astype(np.float32),
        "c.1.bias": np.zeros(5, np.float32),
    }
    obs = RNG.integers(0, 256, (N, 2, 6, 6)).astype(np.uint8)
    x = obs / 255
    conv = np.array(
        [
            [
                [
                    [(x[n, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] * w["c.0.weight"][o]).sum() for j in (0, 1)]
                    for i in (0, 1)
                ]
                for o in range(3)
            ]
            for n in range(N)
        ]
    )
    logits = np.maximum(conv, 0).reshape(N, -1) @ w["c.1.weight"].T
    policy = make_policy(ActingSpec(body, "categorical", DISCRETE, space, runtime="torch"))
    policy.load(w, {})
    assert policy.act_greedily(obs).tolist() == logits.argmax(1).tolist()


def test_numpy_acting_imports_no_torch_and_no_pydantic() -> None:
    code = "import sys, zmqrl.acting.numpy_policy as l; assert not {'torch', 'pydantic'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT_S).returncode == 0


def test_a_gpu_that_torch_cannot_use_is_refused_and_with_auto_the_processor_acts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec = ActingSpec((LayerSpec("linear", "0", 3, 5),), "categorical", DISCRETE, OBS, runtime="torch")
    with raises(ConfigError, key=("worker_device",), value="cuda"):
        make_policy(spec, "cuda")
    policy = make_policy(spec, "auto")
    policy.load({"0.weight": np.eye(5, 3, dtype=np.float32), "0.bias": np.zeros(5, np.float32)}, {})
    assert policy.act_greedily(np.array([[0.0, 1.0, 0.0]], np.float32)).tolist() == [1]
