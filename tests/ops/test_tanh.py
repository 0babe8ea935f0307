from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from zmqrl.ops.tanh import tanh

X = torch.randn(64, 33, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("x", [X, X[:, 1:7], X.t(), X[0, :0], X[:1].expand(4, 33)], ids=lambda x: str(list(x.shape)))
def test_has_numpys_bits_in_memory_of_its_own(x: Tensor) -> None:
    before = x.clone()
    for y in (tanh(x), tanh(x.clone().requires_grad_()).detach()):
        assert y.numpy().tobytes() == np.tanh(x.numpy()).astype(np.float32).tobytes()
        assert y.shape == x.shape
    assert torch.equal(x, before)


def test_bits_do_not_depend_on_the_position() -> None:
    alone = torch.stack([tanh(row) for row in X])
    assert torch.equal(tanh(X), alone)


def test_gradient() -> None:
    ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
    slope = torch.rand(X.shape, generator=torch.Generator().manual_seed(1))
    tanh(ours).backward(slope)
    torch.tanh(theirs).backward(slope)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-6)


def test_second_derivative() -> None:
    x = X[0, :5].clone().requires_grad_()
    (first,) = torch.autograd.grad(tanh(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    y = torch.tanh(x.detach())
    torch.testing.assert_close(second, -2 * y * (1 - y * y), atol=1e-6, rtol=1e-5)


def test_without_a_graph() -> None:
    x = X.clone().requires_grad_()
    with torch.no_grad():
        assert not tanh(x).requires_grad
    with torch.inference_mode():
        assert torch.equal(tanh(X.clone()), tanh(X))


class _Net(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return tanh(x)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("early", [False, True])
def test_a_trace_has_the_operation(mode: str, early: bool) -> None:
    graph = make_fx(tanh, tracing_mode=mode, pre_dispatch=early)(X).graph
    assert "aten.tanh" in str(graph)


def test_export_and_fake_tensors_have_the_operation() -> None:
    assert "aten.tanh" in str(torch.export.export(_Net(), (X,), strict=False).graph)
    with FakeTensorMode():
        assert isinstance(tanh(torch.empty(3)), FakeTensor)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # by the import of functorch
def test_transforms_and_tangents() -> None:
    torch.testing.assert_close(torch.func.vmap(tanh)(X), torch.tanh(X))
    torch.testing.assert_close(torch.func.grad(lambda x: tanh(x).sum())(X), 1 - torch.tanh(X) ** 2)
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(tanh(forward_ad.make_dual(X, X))).tangent is not None


def test_other_types_are_torchs() -> None:
    assert torch.equal(tanh(X.double()), torch.tanh(X.double()))
