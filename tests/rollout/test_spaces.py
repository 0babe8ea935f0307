"""Collecting in envs with masks and multi-discrete actions: the env asserts that each action is allowed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.space_envs import HalfBounded
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.networks.input import network_input
from zmqrl.networks.spec import LayerSpec
from zmqrl.rollout.collector import Collector
from zmqrl.spaces import unpack
from zmqrl.types import ColumnSpec

N, T = 3, 40


@pytest.mark.parametrize(
    ("env", "head"),
    [
        ("MaskedBandit", "categorical"),
        ("MaskedBandit", "epsilon_greedy"),
        ("Mixed", "categorical"),
        ("Mixed", "epsilon_greedy"),
        ("MaskedSeveral", "multi_categorical"),
        ("Pair", "multi_categorical"),
        ("Numbered", "multi_categorical"),
    ],
)
def test_every_action_is_allowed(env: str, head: str) -> None:
    section = EnvSection(id=f"tests.envs.space_envs:{env}", num_envs=N)
    spec = probe(section)
    choices = sum(spec.action.choices)
    log_prob = () if head == "epsilon_greedy" else (ColumnSpec("log_prob", "float32", (T, N)),)
    inputs = network_input(spec.observation).size
    acting = ActingSpec((LayerSpec("linear", "p", inputs, choices),), head, spec.action, spec.observation, log_prob)
    policy, rng = make_policy(acting), np.random.default_rng(0)
    policy.load(
        {"p.weight": rng.normal(size=(choices, inputs)).astype(np.float32), "p.bias": np.zeros(choices)},
        {"epsilon": 0.5},
    )
    columns = {
        "obs": np.zeros((T + 1, N, *spec.observation.shape), spec.observation.dtype),
        "action": np.full((T, N, *spec.action.shape), -1, spec.action.dtype),
        "reward": np.zeros((T, N), np.float32),
        **{name: np.zeros((T, N), bool) for name in ("terminated", "truncated", "valid")},
        **{column.name: np.zeros(column.shape, column.dtype) for column in log_prob},
    }
    collector = Collector(make_vector_env(section, spec, "sync", 1, 0), policy, acting, 1, 0)
    collector.start()
    for index in range(3):
        collector.collect(columns, index, lambda _: None, lambda: False)
        valid = columns["valid"]
        assert not valid.all(), "episodes ended"
        values = columns["action"].reshape(T, N, -1)
        assert (values >= 0).all() and (values < np.array(spec.action.choices)).all()
        if spec.observation.action_mask is not None and head != "multi_categorical":
            mask = unpack(columns["obs"][:-1], spec.observation)["action_mask"]
            assert np.take_along_axis(mask, values, -1)[valid].all()
        assert all(np.isfinite(columns[column.name]).all() for column in log_prob)
    collector.close()


def test_each_side_of_a_box_that_has_a_bound_is_clipped() -> None:
    section = EnvSection(id="tests.envs.space_envs:HalfBounded", num_envs=N)
    spec = probe(section)
    acting = ActingSpec(
        (LayerSpec("linear", "p", 2, 4),), "gaussian", spec.action, spec.observation, arrays=("log_std",)
    )
    policy = make_policy(acting)
    policy.load(
        {"p.weight": np.zeros((4, 2), np.float32), "p.bias": np.zeros(4), "log_std": np.full(4, 2.0, np.float32)}, {}
    )
    columns = {
        "obs": np.zeros((T + 1, N, 2), np.float32),
        "action": np.zeros((T, N, 2, 2), np.float32),
        "reward": np.zeros((T, N), np.float32),
        **{name: np.zeros((T, N), bool) for name in ("terminated", "truncated", "valid")},
    }
    collector = Collector(make_vector_env(section, spec, "sync", 1, 0), policy, acting, 1, 0)
    collector.start()
    assert collector.collect(columns, 0, lambda _: None, lambda: False)
    stored = columns["action"]
    assert (stored[..., 0, 1] < 0).any() and (stored[..., 1, 0] > 2.5).any(), "they are stored as they were drawn"
    expected = np.clip(stored, HalfBounded.action_space.low, HalfBounded.action_space.high)
    assert np.array_equal(collector.clipped(stored), expected)
