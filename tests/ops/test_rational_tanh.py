"""The quotient that is compiled for tanh has its values, its slope by the gradient of torch.tanh, and is recorded."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from zmqrl.ops.tanh import rational_tanh

TABLE = {torch.ops.aten.tanh.default: rational_tanh}


def test_it_is_tanh() -> None:
    x = torch.cat((torch.linspace(-12, 12, 100_001), torch.tensor([0.0, 1e-30, -1e-30, 1e30, torch.inf, -torch.inf])))
    exact = x.double().tanh()
    assert float((rational_tanh(x) - exact).abs().max()) < 4e-7
    near = x.abs() < 0.1
    assert float(((rational_tanh(x) - exact) / exact.where(exact != 0, 1))[near].abs().max()) < 4e-7
    assert rational_tanh(torch.tensor([torch.nan])).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_recorded_with_the_gradient_of_tanh(dtype: torch.dtype) -> None:
    """Other numbers than float32 keep the operation."""

    def value_and_gradient(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            y = torch.tanh(leaf := x.detach().requires_grad_())
            return y.detach(), torch.autograd.grad(y.sum(), leaf)[0]

    x = torch.linspace(-9, 9, 1001, dtype=dtype)
    graph = make_fx(value_and_gradient, TABLE, "symbolic")(x)
    assert ("aten.tanh.default" in graph.code) == (dtype is torch.float64)
    for found, expected in zip(graph(x), value_and_gradient(x), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
