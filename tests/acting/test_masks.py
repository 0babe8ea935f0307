"""Heads under masks, and the head of multi-discrete actions, against slow references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.raising import raises
from zmqrl.acting.base import ActingContext, ActingNoise, Place, noise_for
from zmqrl.acting.heads import FORBIDDEN, Head
from zmqrl.acting.make_head import make_head
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError
from zmqrl.networks.input import network_input
from zmqrl.networks.spec import LayerSpec
from zmqrl.spaces import SpaceSpec, composite, view
from zmqrl.testing.observations import observations
from zmqrl.types import ColumnSpec

N, T = 64, 2


def masked(entries: int) -> SpaceSpec:
    mask = SpaceSpec("box", (entries,), "int8")
    return composite([("action_mask", mask, ("action_mask",)), ("x", SpaceSpec("box", (3,), "float32"), ("x",))])


def action_space(nvec: tuple[int, ...], head: str) -> SpaceSpec:
    if head != "multi_categorical":
        return SpaceSpec("discrete", (), "int64", n=nvec[0])
    return SpaceSpec("multi_discrete", (len(nvec),), "int64", nvec=nvec)


def extras(entries: int) -> tuple[ColumnSpec, ...]:
    return (ColumnSpec("log_prob", "float32", (T, N)), ColumnSpec("logits", "float32", (T, N, entries)))


def head_of(head: str, nvec: tuple[int, ...]) -> Head:
    columns = () if head == "epsilon_greedy" else extras(sum(nvec))
    return make_head(ActingSpec((), head, action_space(nvec, head), masked(sum(nvec)), columns), N)


def context(noise: ActingNoise, extras: dict[str, np.ndarray] | None = None) -> ActingContext:
    return ActingContext(noise, extras or {}, Place.of(0, 1, noise.uniform.shape[1]))


def random_mask(rng: np.random.Generator, nvec: tuple[int, ...]) -> np.ndarray:
    """At least one value of each entry is allowed."""
    parts = []
    for n in nvec:
        part = rng.random((N, n)) < 0.4
        part[np.arange(N), rng.integers(0, n, N)] = True
        parts.append(part)
    return np.concatenate(parts, 1).astype(np.int8)


def slow_choice(logits: list[float], allowed: list[int], uniform: float) -> tuple[int, float]:
    """The inverse CDF of the softmax over the allowed values alone, and the log-probability of what it gives."""
    kept = [n for n, is_allowed in enumerate(allowed) if is_allowed]
    weights = [np.exp(logits[n] - max(logits[m] for m in kept)) for n in kept]
    total = sum(weights)
    place, below = 0, weights[0] / total
    while uniform >= below and place < len(kept) - 1:
        place += 1
        below += weights[place] / total
    return kept[place], float(np.log(weights[place] / total))


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["categorical", "multi_categorical"]),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_samples_and_log_probs_are_those_of_the_masked_distribution(head: str, sizes: list[int], seed: int) -> None:
    nvec = tuple(sizes if head == "multi_categorical" else sizes[:1])
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(N, sum(nvec))) * 3).astype(np.float32)
    mask = random_mask(rng, nvec)
    noise = noise_for(rng, T, N, 0, entries=len(nvec))
    made = head_of(head, nvec)
    filled = {column.name: np.full(column.shape, np.nan, np.float32) for column in extras(sum(nvec))}
    made.mask(mask)
    actions = made.act(logits, 1, context(noise, filled)).reshape(N, len(nvec))
    greedy = made.act_greedily(logits).reshape(N, len(nvec))
    for row in range(N):
        begin, log_prob = 0, 0.0
        for entry, n in enumerate(nvec):
            inner, allowed = logits[row, begin : begin + n].tolist(), mask[row, begin : begin + n].tolist()
            chosen, its = slow_choice(inner, allowed, float(noise.uniform[1, row, entry]))
            assert actions[row, entry] == chosen
            assert greedy[row, entry] == max((m for m in range(n) if allowed[m]), key=lambda m: inner[m])
            begin, log_prob = begin + n, log_prob + its
        np.testing.assert_allclose(filled["log_prob"][1, row], log_prob, atol=1e-4)
    assert np.array_equal(filled["logits"][1], np.where(mask != 0, logits, FORBIDDEN))
    assert np.isnan(filled["log_prob"][0]).all()


def test_no_rounding_takes_a_masked_action() -> None:
    """The last uniform number before 1, and logits that leave the allowed actions no probability in float32."""
    made = head_of("categorical", (5,))
    mask = np.tile(np.array([1, 1, 0, 1, 0], np.int8), (N, 1))
    made.mask(mask)
    noise = noise_for(np.random.default_rng(0), T, N, 0)
    noise.uniform[:] = 1.0 - 2.0**-53
    filled = {column.name: np.zeros(column.shape, np.float32) for column in extras(5)}
    for logits in (
        np.random.default_rng(1).normal(size=(N, 5)),
        np.tile([-200.0, -200.0, 500.0, -900.0, 500.0], (N, 1)),
    ):
        actions = made.act(logits.astype(np.float32), 0, context(noise, filled))
        assert mask[np.arange(N), actions].all()
        assert np.isfinite(filled["log_prob"]).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_epsilon_greedy_takes_allowed_actions_alone(epsilon: float) -> None:
    rng = np.random.default_rng(3)
    made, mask = head_of("epsilon_greedy", (6,)), random_mask(rng, (6,))
    made.load({}, {"epsilon": epsilon})
    made.mask(mask)
    q, noise = rng.normal(size=(N, 6)).astype(np.float32), noise_for(rng, T, N, 0)
    actions = made.act(q, 0, context(noise))
    for row in range(N):
        kept = np.flatnonzero(mask[row])
        first, second = noise.uniform[0, row]
        expected = kept[int(second * len(kept))] if first < epsilon else max(kept, key=lambda n: q[row, n])
        assert actions[row] == expected


def test_an_epsilon_schedule_takes_allowed_actions() -> None:
    rng, (base, alpha) = np.random.default_rng(4), (0.9, 7.0)
    options = {"ladder": alpha}
    spec = ActingSpec((), "epsilon_greedy", action_space((6,), "epsilon_greedy"), masked(6), options=options)
    made, mask = make_head(spec, N), random_mask(rng, (6,))
    made.load({}, {"epsilon": base})
    made.mask(mask)
    q, noise = rng.normal(size=(N, 6)).astype(np.float32), noise_for(rng, T, N, 0)
    actions = made.act(q, 0, context(noise))
    for row in range(N):
        kept = np.flatnonzero(mask[row])
        first, second = noise.uniform[0, row]
        explores = first < base ** (1 + alpha * row / (N - 1))
        assert actions[row] == (kept[int(second * len(kept))] if explores else max(kept, key=lambda n: q[row, n]))


@pytest.mark.parametrize("head", ["categorical", "multi_categorical", "epsilon_greedy"])
def test_a_row_that_allows_nothing_is_of_an_ended_episode_and_stays_finite(head: str) -> None:
    made = head_of(head, (4,))
    made.load({}, {"epsilon": 0.5})
    made.mask(np.zeros((N, 4), np.int8))
    filled = {column.name: np.zeros(column.shape, np.float32) for column in extras(4)}
    noise = noise_for(np.random.default_rng(0), T, N, 0)
    actions = made.act(np.ones((N, 4), np.float32), 0, context(noise, filled))
    assert ((actions >= 0) & (actions < 4)).all()
    assert all(np.isfinite(column).all() for column in filled.values())


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_a_policy_hands_the_mask_of_its_observations_to_the_head(runtime: str) -> None:
    space = masked(4)
    assert network_input(space).size == 3
    action = SpaceSpec("discrete", (), "int64", n=4)
    spec = ActingSpec((LayerSpec("linear", "p", 3, 4),), "categorical", action, space, runtime=runtime)  # type: ignore[arg-type]
    policy, rng = make_policy(spec), np.random.default_rng(0)
    weights = {"p.weight": rng.normal(size=(4, 3)).astype(np.float32), "p.bias": np.zeros(4, np.float32)}
    policy.load(weights, {})
    obs = observations(space, rng, (N,))
    parts = {part.name: view(obs, space, part) for part in space.parts}
    mask = parts["action_mask"]
    q = np.where(mask != 0, parts["x"] @ weights["p.weight"].T, -np.inf)
    assert policy.act_greedily(obs).tolist() == q.argmax(1).tolist()
    noise = noise_for(rng, T, N, 0)
    for t in range(T):
        assert mask[np.arange(N), policy.act(obs, t, context(noise))].all()


def test_a_head_without_mask_support_is_refused() -> None:
    box = SpaceSpec("box", (2,), "float32")
    with raises(ConfigError, key=(), what="head 'gaussian' does not apply the action_mask of the observations"):
        make_head(ActingSpec((), "gaussian", box, masked(2)), 1)


def test_frequencies_of_a_multi_discrete_action_without_a_mask() -> None:
    rows = 40_000
    space = SpaceSpec("multi_discrete", (3,), "int64", nvec=(2, 3, 2))
    made = make_head(ActingSpec((), "multi_categorical", space, SpaceSpec("box", (1,), "float32")), rows)
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.5, 0.0, 0.0], np.float32)
    noise = noise_for(np.random.default_rng(0), 1, rows, 0, entries=3)
    actions = made.act(np.tile(logits, (rows, 1)), 0, context(noise))
    for entry, (begin, end) in enumerate(((0, 2), (2, 5), (5, 7))):
        p = np.exp(logits[begin:end]) / np.exp(logits[begin:end]).sum()
        np.testing.assert_allclose(np.bincount(actions[:, entry], minlength=end - begin) / rows, p, atol=0.01)
    assert abs(np.corrcoef(actions[:, 0], actions[:, 2])[0, 1]) < 0.02, "entries are drawn independently"
