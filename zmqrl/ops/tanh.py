"""tanh on the CPU by numpy: what workers act with has the bits of what the learner computes.

torch's tanh on a CPU is that of MKL, which depends on the vendor of the CPU: 42 us for 256 x 64 numbers on an AMD EPYC,
7 us on an Intel Xeon, and its bits depend on the position of a number in the array. numpy's takes 7 to 10 us on both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

PLAIN = (Tensor, Parameter)


def tanh(x: Tensor) -> Tensor:
    """Elementwise tanh, which autograd can differentiate; `torch.tanh` where numpy cannot see the numbers."""
    if not _has_memory(x):
        return torch.tanh(x)
    if x.requires_grad and torch.is_grad_enabled():
        result: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
        return result
    return _by_numpy(x)


def _has_memory(x: Tensor) -> bool:
    """Whether `x` is a plain float32 tensor on the CPU that is not traced or transformed."""
    return (
        type(x) in PLAIN
        and x.is_cpu
        and x.dtype is torch.float32
        and x.layout is torch.strided
        and torch._C._len_torch_dispatch_stack() == 0  # make_fx, fake tensors
        and torch._ops._len_torch_dispatch_stack_pre_dispatch() == 0  # type: ignore[no-untyped-call]
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and forward_ad._current_level < 0
    )


def _by_numpy(x: Tensor) -> Tensor:
    y = torch.empty_like(x, requires_grad=False)  # memory that torch has aligned: kernels pick their path by alignment
    np.tanh((x.detach() if x.requires_grad else x).numpy(), y.numpy())
    return y


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _by_numpy(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        by_x: Tensor = grad * (1 - y * y)
        return by_x
