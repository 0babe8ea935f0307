from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.raising import raises
from zmqrl.acting.base import ActingContext, Place, noise_for
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec, ActingState, NoiseSpec
from zmqrl.acting.state import check_acting, noise_of, state_columns, state_of, unpack_state, zero_state
from zmqrl.api.policies import LoadedPolicy
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.networks.kinds.gru import NumpyGru
from zmqrl.networks.kinds.lstm import NumpyLstm
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, ColumnSpec, EnvSpec, SpaceSpec

N, T, INPUTS, H = 5, 20, 3, 7
OBS = SpaceSpec("box", (INPUTS,), "float32")
DISCRETE = SpaceSpec("discrete", (), "int64", n=4)
PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
SPEC = ActingSpec(
    (LayerSpec("gru", "core", INPUTS, H), LayerSpec("relu"), LayerSpec("linear", "out", H, 4)),
    "categorical",
    DISCRETE,
    OBS,
    (ColumnSpec("logits", "float32", (T, N, 4)),),
    state=(ActingState("core", H),),
)


def cell_and_weights() -> tuple[torch.nn.GRUCell, dict[str, Array]]:
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(INPUTS, H)
    weights = {f"core.{part}": getattr(cell, part).detach().numpy().copy() for part in PARTS}
    rng = np.random.default_rng(0)
    weights["out.weight"] = rng.standard_normal((4, H)).astype(np.float32)
    weights["out.bias"] = rng.standard_normal(4).astype(np.float32)
    return cell, weights


def test_a_gru_cell_is_that_of_torch() -> None:
    cell, weights = cell_and_weights()
    ours = NumpyGru("core", INPUTS, H, N)
    ours.load(weights)
    state, rng = np.zeros((N, H), np.float32), np.random.default_rng(1)
    expected = torch.zeros(N, H)
    for scale in (1.0, 3.0, 1000.0, 1.0) * 10:
        x = (scale * rng.standard_normal((N, INPUTS))).astype(np.float32)
        ours.step(x, state)
        expected = cell(torch.from_numpy(x), expected).detach()
        np.testing.assert_allclose(state, expected, atol=1e-6)


def test_an_lstm_cell_is_that_of_torch() -> None:
    """h and c are side by side in the state, which is not the memory of the output."""
    torch.manual_seed(0)
    cell = torch.nn.LSTMCell(INPUTS, H)
    ours = NumpyLstm("core", INPUTS, H, N)
    ours.load({f"core.{part}": getattr(cell, part).detach().numpy().copy() for part in PARTS})
    state, rng = np.zeros((N, 2 * H), np.float32), np.random.default_rng(1)
    h, c = torch.zeros(N, H), torch.zeros(N, H)
    for scale in (1.0, 3.0, 1000.0, 1.0) * 10:
        x = (scale * rng.standard_normal((N, INPUTS))).astype(np.float32)
        out = ours.step(x, state)
        h, c = (one.detach() for one in cell(torch.from_numpy(x), (h, c)))
        np.testing.assert_allclose(state[:, :H], h, atol=1e-6)
        np.testing.assert_allclose(state[:, H:], c, rtol=1e-5, atol=1e-6)
        assert out.tobytes() == state[:, :H].tobytes()
        out.fill(9.0)  # as a layer that works in place


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_a_policy_reads_and_writes_the_state_it_is_given(runtime: str) -> None:
    cell, weights = cell_and_weights()
    policy = make_policy(replace(SPEC, runtime=runtime))  # type: ignore[arg-type]
    policy.load(weights, {})
    rng = np.random.default_rng(1)
    logits = np.zeros((T, N, 4), np.float32)
    noise = noise_for(rng, T, N, 0)
    states = [policy.zero_state(N) for _ in range(2)]
    greedy = policy.zero_state(N)
    expected = [torch.zeros(N, H) for _ in range(2)]
    for t in range(T):
        for place in range(2):  # two vector envs in turn
            obs = rng.standard_normal((N, INPUTS)).astype(np.float32)
            context = ActingContext(noise, {"logits": logits}, Place.of(place, 2, N), states[place])
            policy.act(obs, t, context)
            expected[place] = cell(torch.from_numpy(obs), expected[place]).detach()
            np.testing.assert_allclose(states[place]["core"], expected[place], atol=1e-6)
            out = np.maximum(expected[place].numpy(), 0) @ weights["out.weight"].T + weights["out.bias"]
            np.testing.assert_allclose(logits[t], out, atol=1e-5)
            if place == 0:
                assert policy.act_greedily(obs, greedy).tolist() == out.argmax(1).tolist()
                assert greedy["core"].tobytes() == states[0]["core"].tobytes()


def test_columns_of_state() -> None:
    spec = replace(SPEC, state=(ActingState("core", H), ActingState("head", 1)), state_every=5)
    columns = {column.name: column.shape for column in state_columns(spec, T, N)}
    assert columns == {
        "state.core": (4, N, H),
        "state.head": (4, N, 1),
        "state_end.core": (1, N, H),
        "state_end.head": (1, N, 1),
    }
    assert state_columns(replace(spec, state_every=0), T, N)[0].shape == (1, N, H)
    assert state_columns(replace(spec, state=()), T, N) == ()


def test_states_side_by_side() -> None:
    state = zero_state((ActingState("a", 2), ActingState("b", 3)), N)
    for array in state.values():
        array[:] = np.random.default_rng(0).standard_normal(array.shape)
    packed = np.concatenate(list(state.values()), axis=1)
    again = {name: np.ones_like(array) for name, array in state.items()}
    unpack_state([*packed[:-1], None], again)
    for name, array in state.items():
        assert again[name][:-1].tobytes() == array[:-1].tobytes()
        assert not again[name][-1].any()


def test_a_core_and_its_state_have_one_size() -> None:
    check_acting(SPEC, T)
    with raises(ConfigError, key=("acting",), what="layer 'core' has 7 numbers of state, and it has size 3"):
        check_acting(replace(SPEC, state=(ActingState("core", 3),)), T)
    with raises(ConfigError, key=("acting",), what="layer 'core' has 7 numbers of state, and it is not declared"):
        check_acting(replace(SPEC, state=()), T)


def test_what_layers_need_is_declared_by_two_functions() -> None:
    layers = (
        LayerSpec("lstm", "core", INPUTS, H),
        LayerSpec("tests.networks.own_kinds:Fractions", "taus", H, H),
        LayerSpec("noisy", "out", H, 4),
    )
    assert state_of(layers) == (ActingState("core", 2 * H),)
    assert noise_of(layers) == (NoiseSpec("out", H + 4),), "noise of training alone is not drawn by workers"
    check_acting(replace(SPEC, layers=layers, state=state_of(layers), noise=noise_of(layers)), T)


def test_a_loaded_policy_keeps_its_state_until_reset() -> None:
    _, weights = cell_and_weights()
    policy = make_policy(SPEC)
    policy.load(weights, {})
    loaded = LoadedPolicy(policy, EnvSpec("toy", OBS, DISCRETE))
    rng, state = np.random.default_rng(1), policy.zero_state(N)
    for t in range(6):
        obs = rng.standard_normal((N, INPUTS)).astype(np.float32)
        ended = rng.random(N) < 0.5
        if t == 3:
            loaded.reset()
            state = policy.zero_state(N)
        if t in (2, 5):
            loaded.reset(ended)
            state["core"][ended] = 0.0
        assert loaded(obs).tolist() == policy.act_greedily(obs, state).tolist()
    with pytest.raises(ValueError, match="1 observations after 5"):
        loaded(obs[0])
    loaded.reset()
    assert loaded(obs[0]).shape == ()
