"""tanh in place of torch's: on the CPU by numpy, and in machine code as a quotient of polynomials.

numpy: what workers act with has the bits of what the learner computes. torch's tanh on a CPU is that of MKL, which
depends on the vendor of the CPU: 42 us for 256 x 64 numbers on an AMD EPYC, 7 us on an Intel Xeon, and its bits depend
on the position of a number in the array. numpy's takes 7 to 10 us on both.
Quotient: AOTInductor calls a function of SLEEF for each vector, which takes 12 us for these numbers; the quotient is
compiled into the loop around it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

PLAIN = (Tensor, Parameter)
LIMIT = 7.90531110763549805
"""tanh of more is 1 in float32."""
NUMERATOR = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
"""Coefficients of x, x^3, ..., the highest power first. Figures: Eigen, `generic_fast_tanh_float`."""
DENOMINATOR = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
"""Coefficients of 1, x^2, ..., likewise."""


def tanh(x: Tensor) -> Tensor:
    """Elementwise tanh, which autograd can differentiate; `torch.tanh` where numpy cannot see the numbers."""
    if not _has_memory(x):
        return torch.tanh(x)
    if x.requires_grad and torch.is_grad_enabled():
        result: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
        return result
    return _by_numpy(x)


def rational_tanh(x: Tensor) -> Tensor:
    """Elementwise, within 4e-7 of tanh; `NotImplemented` for what is not float32."""
    if x.dtype is not torch.float32:
        return NotImplemented  # type: ignore[no-any-return]
    x = x.clamp(-LIMIT, LIMIT)
    square = x * x
    quotient: Tensor = x * _polynomial(square, NUMERATOR) / _polynomial(square, DENOMINATOR)
    return quotient


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


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = x * value + coefficient
    return value
