"""Whether an update keeps to one device, without a GPU: on fake tensors, which have a shape and a device, no memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from zmqrl.algorithms.base import Algorithm
from zmqrl.loading import Tensor, torch
from zmqrl.plugins import described
from zmqrl.testing.algorithm import AlgorithmMaker
from zmqrl.testing.experience import SEED, acted, context_of, learn
from zmqrl.types import Array

DEVICE = "meta"
"""Not the CPU, and there without a driver. A build of torch for CPUs alone cannot index a fake tensor on `cuda`."""


def updates_run_on_one_device(make: AlgorithmMaker) -> None:
    """Every tensor of an update is on `context.device`, and goes to the CPU before numpy reads it.

    Raises:
        RuntimeError: Tensors of two devices meet in an operation, or numpy reads one that is not on the CPU.
        AssertionError: The shape of a tensor depends on values of another one, as of `torch.unique`. An index that is a
            boolean tensor is taken as true everywhere.
    """
    algorithm = make()
    from torch._subclasses.fake_tensor import DynamicOutputShapeException

    for executor in set(algorithm.executors) - {"compiled"}:
        try:
            _learn_on(algorithm, executor)
        except DynamicOutputShapeException as error:
            raise AssertionError(
                f"{described(error)}: the shape of a tensor depends on the values of another: this check has no values;"
                " compute it in numpy, before self.tensor(...)"
            ) from error


def _learn_on(algorithm: Algorithm, executor: str) -> None:
    slots = acted(algorithm, SEED)
    with _fake_tensors():
        learner = algorithm.learner(dataclasses.replace(context_of(algorithm), device=DEVICE, executor=executor))
        learn(algorithm, learner, slots, updates=2)


def _integers(index: Tensor | None) -> list[Tensor | None]:
    """A boolean index as those that select everything."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    return [index.new_zeros((index.numel(),), dtype=torch.int64)] * index.dim()


@contextmanager
def _fake_tensors() -> Iterator[None]:
    """Where numpy or Python read the values of a fake tensor they find zeros; one that selects has all true."""
    from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Selecting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            try:
                return func(*args, **(kwargs or {}))
            except DynamicOutputShapeException:
                aten, x = torch.ops.aten, args[0]
                if func is aten.nonzero.default:
                    return x.new_zeros((x.numel(), x.dim()), dtype=torch.int64)
                if func is aten.masked_select.default:
                    return (x * args[1]).flatten()
                if func is not aten.index.Tensor:
                    raise
                return func(x, [each for index in args[1] for each in _integers(index)])

    def numpy(tensor: Tensor) -> Array:
        if tensor.device.type != "cpu":
            raise RuntimeError(f"numpy reads a tensor on {tensor.device}: call cpu() first")
        dtype: Any = str(tensor.dtype).removeprefix("torch.")
        return np.zeros(tuple(tensor.shape), dtype)

    values: dict[str, Any] = {
        "numpy": numpy,
        "__float__": lambda _: 0.0,
        "__int__": lambda _: 0,
        "__bool__": lambda _: False,
    }
    with mock.patch.multiple(FakeTensor, None, True, **values), FakeTensorMode(allow_non_fake_inputs=True), Selecting():  # type: ignore[no-untyped-call]
        yield
