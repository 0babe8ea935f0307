"""One update of A2C, REINFORCE, IMPALA and APPO: loss and gradient of the papers' equations, in numpy and float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest

from tests.algorithms.driver import DISCRETE, env_spec
from tests.oracles import brute_force
from zmqrl.algorithms.a2c import A2C
from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner, Progress
from zmqrl.algorithms.impala import IMPALA
from zmqrl.algorithms.policy_gradient.memory import CriticState
from zmqrl.algorithms.policy_gradient.plan import MemorySection
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.algorithms.reinforce import REINFORCE
from zmqrl.config.sections import NetworkSection, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.loading import torch
from zmqrl.networks.initial import initial_weights
from zmqrl.replay.base import SegmentBatch, SegmentMeta
from zmqrl.testing.experience import acted, context_of
from zmqrl.types import ACTING_STATE, Array, SegmentId, Version

Arrays: TypeAlias = Mapping[str, Array]
Loss: TypeAlias = Callable[[Arrays, Arrays, Arrays], float]
STEPS, ENVS, OBS, ACTIONS, GAMMA, LAMBDA = 12, 2, 3, 3, 0.9, 0.8
RHO, C, CLIP, VF, ENT = 1.1, 0.9, 0.2, 0.5, 0.01
STEEP, SLOPE = 1e3, 1e-6
"""Epsilon and learning rate, with which a first step is nearly the gradient; step of central differences."""
SEGMENT = SegmentId(0, 0, 0)


def segment() -> dict[str, Array]:
    """Of both envs one episode is terminated and one truncated; the last one does not end."""
    random = np.random.default_rng(3)
    terminated, truncated, valid = (np.zeros((STEPS, ENVS), bool) for _ in range(3))
    terminated[3, 0] = truncated[8, 0] = truncated[2, 1] = terminated[7, 1] = True
    valid[:] = True
    valid[1:] = ~(terminated | truncated)[:-1]
    return {
        "obs": random.normal(size=(STEPS + 1, ENVS, OBS)).astype(np.float32),
        "action": random.integers(0, ACTIONS, (STEPS, ENVS)),
        "reward": (random.normal(size=(STEPS, ENVS)) * valid).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
        "log_prob": np.log(random.uniform(0.15, 0.6, (STEPS, ENVS))).astype(np.float32),
    }


def log_probs(w: Arrays, s: Arrays) -> tuple[Array, Array]:
    """Of the actions, and entropies, `[T, E]`."""
    logits = s["obs"][:-1] @ w["actor.0.weight"].T + w["actor.0.bias"]
    log_p = logits - np.log(np.exp(logits).sum(2, keepdims=True))
    return np.take_along_axis(log_p, s["action"][..., None], 2)[..., 0], -(np.exp(log_p) * log_p).sum(2)


def values(w: Arrays, s: Arrays) -> Array:
    return (s["obs"] @ w["critic.0.weight"].T + w["critic.0.bias"])[..., 0]


def fixed_of(w: Arrays, s: Arrays) -> dict[str, Array]:
    """What is constant in the gradient: ratios to the acting policy, and values."""
    value = {"value": values(w, s)} if "critic.0.bias" in w else {}
    return {**s, "ratio": np.exp(log_probs(w, s)[0] - s["log_prob"]), **value}


def with_critic(w: Arrays, s: Arrays, gain: Array, entropy: Array, target: Array) -> float:
    error = (values(w, s)[:-1] - target) ** 2
    return float((-gain + VF * error - ENT * entropy)[s["valid"]].mean())


def a2c(w: Arrays, s: Arrays, fixed: Arrays) -> float:
    advantage = brute_force.gae(fixed, GAMMA, LAMBDA)
    log_prob, entropy = log_probs(w, s)
    gain = np.minimum(1, fixed["ratio"]) * log_prob * advantage
    return with_critic(w, s, gain, entropy, advantage + fixed["value"][:-1])


def impala(w: Arrays, s: Arrays, fixed: Arrays) -> float:
    target, advantage = brute_force.vtrace(fixed, GAMMA, LAMBDA, RHO, C)
    log_prob, entropy = log_probs(w, s)
    return with_critic(w, s, np.minimum(RHO, fixed["ratio"]) * log_prob * advantage, entropy, target)


def appo(w: Arrays, s: Arrays, fixed: Arrays) -> float:
    target, advantage = brute_force.vtrace(fixed, GAMMA, LAMBDA, RHO, C)
    log_prob, entropy = log_probs(w, s)
    ratio = np.exp(log_prob - s["log_prob"])
    gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    return with_critic(w, s, gain, entropy, target)


def reinforce(w: Arrays, s: Arrays, fixed: Arrays) -> float:
    """Rewards to the end of the episode, less their mean and over their deviation; rows without an end do not count."""
    log_prob, entropy = log_probs(w, s)
    returns, counts = np.zeros((STEPS, ENVS)), np.zeros((STEPS, ENVS), bool)
    for t, e in np.argwhere(s["valid"]):
        ends = [u for u in range(t, STEPS) if (s["terminated"] | s["truncated"])[u, e]]
        if ends:
            counts[t, e] = True
            returns[t, e] = sum(GAMMA ** (u - t) * s["reward"][u, e] for u in range(t, ends[0] + 1))
    advantage = (returns - returns[counts].mean()) / returns[counts].std(ddof=1)
    gain = np.minimum(1, fixed["ratio"]) * log_prob * advantage
    return float((-gain - ENT * entropy)[counts].mean())


COMMON = {"gamma": GAMMA, "ent_coef": ENT, "learning_rate": STEEP, "max_grad_norm": 1e9}
CRITIC = {**COMMON, "vf_coef": VF, "rmsprop_epsilon": STEEP}
VTRACE = {**CRITIC, "vtrace_lambda": LAMBDA, "rho_clip": RHO, "c_clip": C}
CASES: Mapping[str, tuple[type[Algorithm], Mapping[str, Any], Loss, float]] = {
    "a2c": (A2C, {**CRITIC, "gae_lambda": LAMBDA}, a2c, 0.1),
    "impala": (IMPALA, VTRACE, impala, 0.1),
    "appo": (IMPALA, {**VTRACE, "clip": CLIP}, appo, 0.1),
    "reinforce": (REINFORCE, {**COMMON, "adam_epsilon": STEEP}, reinforce, 1.0),
}
"""Kind, options, loss, and the share of |g| / epsilon that a first step falls short by: of RMSProp sqrt(1 - alpha)."""


def batch_of(columns: Arrays) -> SegmentBatch:
    return SegmentBatch(dict(columns), (SegmentMeta(SEGMENT, Version(0, 0), int(columns["valid"].sum())),))


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_the_gradient_of_the_paper(case: str) -> None:
    kind, options, loss, share = CASES[case]
    algorithm = kind(kind.Config(**options), NetworkSection(hidden=()), env_spec(DISCRETE, OBS), STEPS, ENVS)
    random = np.random.default_rng(5)
    first = initial_weights(algorithm.network(), 1)
    weights = {name: random.normal(0, 0.5, array.shape).astype(np.float32) for name, array in first.items()}
    learner, given = algorithm.learner(LearnerContext(weights)), segment()
    assert isinstance(learner, OnPolicyLearner)
    result = learner.learn(batch_of(given), Progress(1, 0, 0, 1))
    assert result.updates == 1
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    fixed = fixed_of(wide, given)
    for name, array in learner.weights().items():
        slope = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            ends = []
            for by in (SLOPE, -SLOPE):
                moved = wide[name].copy()
                moved[index] += by
                ends.append(loss({**wide, name: moved}, given, fixed))
            slope[index] = (ends[0] - ends[1]) / (2 * SLOPE)
        assert np.abs(slope).max() > 1e-3
        step = slope / (1.0 + share * np.abs(slope) / STEEP)
        np.testing.assert_allclose(weights[name] - array, step, rtol=1e-3, atol=2e-5, err_msg=name)


def ppo(**options: Any) -> PPO:
    config = PPOConfig(epochs=1, minibatch_size=32, memory=MemorySection("lstm", 4, 4), **options)
    return PPO(config, NetworkSection(hidden=(5,)), env_spec(DISCRETE, OBS), 16, 2)


def batches(algorithm: PPO) -> tuple[SegmentBatch, SegmentBatch]:
    """Two segments of one vector env, one after the other, in which no episode ends."""
    columns = {name: slots[0] for name, slots in acted(algorithm, 1).items()}
    flags = {"terminated": False, "truncated": False, "valid": True}
    columns |= {name: np.full_like(columns[name], value) for name, value in flags.items()}
    metas = [SegmentMeta(SegmentId(0, 0, n), Version(0, n), int(columns["valid"].sum())) for n in range(2)]
    one, other = (SegmentBatch(dict(columns), (meta,)) for meta in metas)
    return one, other


@torch.no_grad()
def test_a_critic_with_memory_of_its_own_continues_where_the_last_segment_of_the_vector_env_ended() -> None:
    algorithm = ppo()
    learner: Any = algorithm.learner(context_of(algorithm))
    one, other = batches(algorithm)
    one.columns["obs"] *= np.float32(0.01)
    obs = learner.observations(one.columns["obs"])
    first, states = learner.values(obs, one)
    assert states["state.critic"].shape == (4, 2, 8) and not states["state.critic"][0].any()
    core, reset = algorithm.core("critic"), learner.tensor(np.zeros((17, 2), bool))
    expected, _ = learner.net.unroll("critic", obs, {core: learner.tensor(np.zeros((2, 8), np.float32))}, reset)
    np.testing.assert_allclose(first, expected.squeeze(2), rtol=1e-5, atol=1e-6)
    key = ACTING_STATE + algorithm.core("actor")
    other.columns[key] = one.columns[key].copy()
    other.columns[key][0] = [[1.0] * 8, [0.0] * 8]  # an episode of the second env begins
    second, _ = learner.values(obs, other)
    after = learner.net.unroll("critic", obs[:16], {core: learner.tensor(np.zeros((2, 8), np.float32))}, reset[:16])[1]
    continued, _ = learner.net.unroll("critic", obs, after, reset)
    np.testing.assert_allclose(second[:, 0], continued[:, 0, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(second[:, 1], expected[:, 1, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("memory", "minibatch", "key"),
    [
        (MemorySection(sequence=5), 64, ("algorithm", "memory", "sequence")),
        (MemorySection(sequence=16), 8, ("algorithm", "minibatch_size")),
    ],
)
def test_sequences_that_do_not_fit_are_refused(memory: MemorySection, minibatch: int, key: tuple[str, ...]) -> None:
    config = PPOConfig(memory=memory, minibatch_size=minibatch)
    algorithm = PPO(config, NetworkSection(), env_spec(DISCRETE, OBS), 16, 8)
    with pytest.raises(ConfigError) as caught:
        algorithm.check("sync", 4, ReplaySection())
    assert caught.value.key == key


def test_the_state_of_a_critic_is_restored() -> None:
    state, begins = CriticState(), np.array([False, True])
    state.keep(3, np.ones((2, 4), np.float32))
    other = CriticState()
    other.load_state(state.state())
    assert other.before(3, begins, 4).tolist() == [[1.0] * 4, [0.0] * 4]
    assert not other.before(2, begins, 4).any()
