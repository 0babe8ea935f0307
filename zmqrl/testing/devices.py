"""Whether an update keeps to one device, without a GPU: on fake tensors, which have a shape and a device, no memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from zmqrl.algorithms.base import Algorithm
from zmqrl.loading import Tensor
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
        AssertionError: The shape of a tensor depends on values of another one, as where one is indexed with a boolean.
    """
    algorithm = make()
    from torch._subclasses.fake_tensor import DynamicOutputShapeException

    for executor in set(algorithm.executors) - {"compiled"}:
        try:
            _learn_on(algorithm, executor)
        except DynamicOutputShapeException as error:
            raise AssertionError(
                f"{described(error)}: the shape of a tensor depends on the values of another, as of x[mask] with a "
                "boolean tensor; index in numpy, before self.tensor(...), or use torch.where"
            ) from error


def _learn_on(algorithm: Algorithm, executor: str) -> None:
    slots = acted(algorithm, SEED)
    with _fake_tensors():
        learner = algorithm.learner(dataclasses.replace(context_of(algorithm), device=DEVICE, executor=executor))
        learn(algorithm, learner, slots, updates=2)


@contextmanager
def _fake_tensors() -> Iterator[None]:
    """Where numpy or Python read the values of a fake tensor they find zeros."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

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
    with mock.patch.multiple(FakeTensor, None, True, **values), FakeTensorMode(allow_non_fake_inputs=True):
        yield
