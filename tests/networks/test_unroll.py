"""Sequences of a network with recurrent state."""

from __future__ import annotations

import pytest
import torch

from zmqrl.networks.forward import unroll
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.spec import LayerSpec, NetworkSpec

CORE, SIZE = "q.gru", 5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_whole_numbers_are_unrolled_as_floats(dtype: torch.dtype) -> None:
    layers, tensors = network(3)
    x, reset = torch.arange(24).reshape(4, 2, 3), torch.zeros(4, 2, dtype=torch.bool)
    state = {CORE: torch.zeros(2, SIZE)}
    found, expected = (unroll(layers, tensors, x.to(kind), state, reset)[0] for kind in (dtype, torch.float32))
    assert torch.equal(found, expected)


def test_zero_rows_leave_the_state_as_it_is() -> None:
    """As a burn-in of no rows."""
    layers, tensors = network(3)
    state = {CORE: torch.full((2, SIZE), 0.5)}
    found, after = unroll(layers, tensors, torch.zeros(0, 2, 3), state, torch.zeros(0, 2, dtype=torch.bool))
    assert found.shape == (0, 2, 7)
    assert torch.equal(after[CORE], state[CORE])


def test_a_second_input_is_appended_row_by_row() -> None:
    joined, tensors = network(3 + 2)
    layers = (LayerSpec("flatten"), LayerSpec("concat", inputs=3, outputs=3 + 2), *joined)
    obs, action = torch.rand(4, 2, 3, 1), torch.rand(4, 2, 2)
    state, reset = {CORE: torch.rand(2, SIZE)}, torch.rand(4, 2) < 0.3
    found, after = unroll(layers, tensors, obs, state, reset, action)
    expected, ended = unroll(joined, tensors, torch.cat((obs.squeeze(3), action), 2), state, reset)
    assert torch.equal(found, expected) and torch.equal(after[CORE], ended[CORE])


def test_an_lstm_is_unrolled_as_torchs_cell_with_its_gradients() -> None:
    """Outputs, last state, and gradients by input, first state and arrays, with episodes that begin inside."""
    torch.manual_seed(0)
    cell, length, batch, parts = torch.nn.LSTMCell(3, SIZE), 6, 4, ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    x, slope = torch.randn(length, batch, 3), torch.randn(length, batch, SIZE)
    state, reset = torch.randn(batch, 2 * SIZE), torch.rand(length, batch) < 0.3
    assert reset.any() and not reset.all()
    found, expected = [], []
    for ours in (True, False):
        given, start = x.clone().requires_grad_(), state.clone().requires_grad_()
        arrays = {f"q.core.{part}": getattr(cell, part).detach().clone().requires_grad_() for part in parts}
        if ours:
            out, after = unroll((LayerSpec("lstm", "q.core", 3, SIZE),), arrays, given, {"q.core": start}, reset)
            last = after["q.core"]
        else:
            rows, last = [], start
            for t in range(length):
                h, c = (last * ~reset[t].unsqueeze(1)).chunk(2, 1)
                h, c = torch.lstm_cell(given[t], (h, c), *arrays.values())
                rows.append(h)
                last = torch.cat((h, c), 1)
            out = torch.stack(rows)
        grads = torch.autograd.grad((out * slope).sum() + last.square().sum(), (given, start, *arrays.values()))
        (found if ours else expected).extend((out, last, *grads))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def network(inputs: int) -> tuple[tuple[LayerSpec, ...], dict[str, torch.Tensor]]:
    """A linear layer on both sides of the recurrent one, with their first values."""
    first, last = LayerSpec("linear", "q.0", inputs, 4), LayerSpec("linear", "q.1", SIZE, 7)
    layers = (first, LayerSpec("gru", CORE, 4, SIZE), last)
    return layers, {n: torch.tensor(a) for n, a in initial_weights(NetworkSpec((("q", layers),)), 1).items()}
