"""Every algorithm trains on a GPU with every executor: as on the CPU, and a restored learner has the same bits."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tests.contracts.test_algorithms import CASES, again, id_of
from zmqrl.algorithms.base import Algorithm
from zmqrl.testing.expect import is_same
from zmqrl.testing.experience import SEED, acted, context_of, learn, train, version_0

pytestmark = pytest.mark.whole
PAIRS = [
    pytest.param(case, executor, id=f"{executor}-{id_of(case)}")
    for case, executor in itertools.product(CASES, ("manual", "eager", "compiled"))
    if executor in case.executors
]
CLOSE = 1e-3
"""Of the largest gradient of a group: sums have another order on a GPU."""
ON_THE_CPU = {"manual": "manual", "eager": "eager", "compiled": "eager"}
"""The executor that is compared with one on the GPU: `state` has the same names."""


def learner_of(algorithm: Algorithm, device: str, executor: str) -> Any:
    context = dataclasses.replace(context_of(algorithm, version_0(algorithm)), device=device, executor=executor)
    return again(algorithm).learner(context)


@pytest.mark.parametrize(("algorithm", "executor"), PAIRS)
def test_it_trains_as_on_the_cpu_and_continues_bit_for_bit(gpu: str, algorithm: Algorithm, executor: str) -> None:
    there, here = learner_of(algorithm, gpu, executor), learner_of(algorithm, "cpu", ON_THE_CPU[executor])
    slots = acted(algorithm, SEED)
    for learner in (there, here):
        learn(algorithm, learner, slots, updates=1)
    found, means = there.state(), {name: a for name, a in here.state().items() if name.endswith(".mean")}
    assert any(array.any() for array in means.values()) and found.keys() == here.state().keys()
    for name, expected in means.items():
        worst, largest = (float(np.abs(array).max(initial=0)) for array in (found[name] - expected, expected))
        assert worst <= CLOSE * largest, f"{name} differs by {worst:.3g}, the largest entry is {largest:.3g}"
    assert all(np.isfinite(array).all() for array in there.weights().values())
    train(algorithm, there, range(1, 3))
    restored = learner_of(algorithm, gpu, executor)
    restored.load_state(there.weights(), there.state())
    for learner in (there, restored):
        train(algorithm, learner, range(3, 5))
    is_same(there.weights(), restored.weights(), "weights after a resume")
    is_same(there.state(), restored.state(), "state after a resume")
