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
    layers = (LayerSpec("linear", "q.0", 3, 4), LayerSpec("gru", CORE, 4, SIZE))
    tensors = {n: torch.tensor(a) for n, a in initial_weights(NetworkSpec((("q", layers),)), 1).items()}
    x, reset = torch.arange(24).reshape(4, 2, 3), torch.zeros(4, 2, dtype=torch.bool)
    state = {CORE: torch.zeros(2, SIZE)}
    found, expected = (unroll(layers, tensors, x.to(kind), state, reset)[0] for kind in (dtype, torch.float32))
    assert torch.equal(found, expected)
