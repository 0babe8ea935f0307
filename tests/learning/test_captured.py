"""When an update is captured, by a stand-in for CUDA graphs that runs on the CPU, and by those of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.learning.test_net import SPEC
from zmqrl.learning import captured
from zmqrl.learning.captured import DIRECT, CapturedExecutor, CapturedUpdate, Graph
from zmqrl.learning.compiled import Arguments, CompiledExecutor, TracedExecutor
from zmqrl.learning.executor import EagerExecutor, make_executor
from zmqrl.learning.groups import Group
from zmqrl.learning.net import Net
from zmqrl.networks.initial import initial_weights

SIZES = (64, 64, 64, 17, 64, 17, 64, 17, 64, 1, 17)
GROUPS = Group("a", target=True, max_grad_norm=1.0), Group("b", ("b", "scale"))


def net_on(device: str) -> Net:
    return Net(SPEC, GROUPS, initial_weights(SPEC, 1), device)


class Captures:
    """What a CUDA graph does, without a GPU: it repeats the graph on the memory it was captured with."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, graph: Graph, arguments: Arguments) -> tuple[Callable[[], object], Sequence[Tensor]]:
        self.rows.append(len(arguments[2][0]))
        copies = tuple([tensor.clone() for tensor in group] for group in arguments)
        results = [result.clone() for result in graph(*copies)]

        def replay() -> None:
            for held, found in zip(results, graph(*arguments), strict=True):
                held.copy_(found)

        return replay, results


def add(tensors: list[Tensor], rates: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
    """A graph."""
    tensors[0].add_(rows[0].sum() * rates[0])
    return [tensors[0] * 2]


def train(net: Net, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    loss = (net("a", batch["x"]).sum(1) - batch["y"] * batch["factor"]).square().mean()
    net.step("a", loss)
    net.update_targets(0.1)
    return {"loss": loss, "per_row": net("a", batch["x"]).sum(1)}


def run(executor: TracedExecutor | EagerExecutor, number: int, rows: int) -> dict[str, Tensor]:
    """Update `number`, with a batch, a learning rate and a factor of its own."""
    net = executor.net
    random = np.random.default_rng(number)
    columns = {"x": random.normal(size=(rows, 3)), "y": random.normal(size=rows), "factor": np.array(1 + number / 10)}
    batch = {name: torch.tensor(column, dtype=torch.float32, device=net.device) for name, column in columns.items()}
    rates = {name: torch.tensor(1e-3 * (1 + number), dtype=torch.float64, device=net.device) for name in net.groups}
    return executor.run(lambda batch: train(net, batch), batch, rates)


def after_every_update(executor: TracedExecutor | EagerExecutor) -> list[list[Tensor]]:
    found = []
    for number, rows in enumerate(SIZES):
        results = run(executor, number, rows)
        found.append([*results.values(), *(tensor.clone() for tensor in executor.net.tensors.values())])
    return found


@pytest.mark.whole
def test_a_number_of_rows_is_captured_once_it_has_come_often() -> None:
    captures = Captures()
    found, expected = (
        after_every_update(executor)
        for executor in (CapturedExecutor(net_on("cpu"), captures), TracedExecutor(net_on("cpu")))
    )
    assert captures.rows == [64, 17]
    for number, pair in enumerate(zip(found, expected, strict=True)):
        assert all(map(torch.equal, *pair)), f"update {number}"


def test_an_update_on_other_memory_is_another_one() -> None:
    """What was captured would change the tensors that it was captured with."""
    captures = Captures()
    update, one, other = CapturedUpdate(add, captures), torch.zeros(3), torch.zeros(3)
    for number in range(1, 5):
        for tensor in (one, other):
            (twice,) = update([tensor], [torch.tensor(2.0)], [torch.ones(5)])
            assert tensor.tolist() == [10.0 * number] * 3 and twice.tolist() == [20.0 * number] * 3
        assert captures.rows == [5, 5] * (number > DIRECT)


def test_what_an_update_is_given_stays_as_it_is() -> None:
    update, total = CapturedUpdate(add, Captures()), torch.zeros(3)
    given = [([torch.tensor(float(number))], [torch.full((5,), float(number))]) for number in range(DIRECT + 2)]
    for rates, rows in given:
        update([total], rates, rows)
    assert [(rates[0].item(), rows[0].tolist()) for rates, rows in given] == [(n, [n] * 5) for n in range(DIRECT + 2)]


@pytest.mark.whole
def test_results_are_not_written_over_by_the_next_update() -> None:
    executor = CapturedExecutor(net_on("cpu"), Captures())
    for number in range(DIRECT + 1):
        first = run(executor, number, 8)
    before = {name: result.clone() for name, result in first.items()}
    run(executor, DIRECT + 1, 8)
    assert all(torch.equal(first[name], result) for name, result in before.items())


@pytest.mark.whole
def test_the_number_of_captured_updates_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST_CAPTURED", 1)
    captures = Captures()
    executor = CapturedExecutor(net_on("cpu"), captures)
    for number in range(5):
        run(executor, number, 8)
        run(executor, number, 9)
    assert captures.rows == [8]


def test_compiled_is_machine_code_on_the_cpu() -> None:
    assert type(make_executor("compiled", net_on("cpu"))) is CompiledExecutor


@pytest.mark.whole
def test_on_a_gpu_captured_updates_have_the_bits_of_single_kernels(gpu: str) -> None:
    executor = make_executor("compiled", net_on(gpu))
    assert type(executor) is CapturedExecutor
    found, expected = after_every_update(executor), after_every_update(TracedExecutor(net_on(gpu)))
    for number, pair in enumerate(zip(found, expected, strict=True)):
        assert all(map(torch.equal, *pair)), f"update {number}"
