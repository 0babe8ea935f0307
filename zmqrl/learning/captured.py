"""Updates on a GPU: the recorded graph of an update becomes one CUDA graph for each number of rows.

An update of a small network is several hundred kernels that each take less time than their launch; a CUDA graph is one
launch. Reference: PyTorch documentation, "CUDA Graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from zmqrl.learning.base import Report, log_report
from zmqrl.learning.compiled import COMPARE_EVERY, Arguments, Graph, TracedExecutor
from zmqrl.loading import Tensor, torch

if TYPE_CHECKING:
    from zmqrl.learning.executor import Batch
    from zmqrl.learning.net import Net

Capture: TypeAlias = "Callable[[Graph, Arguments], tuple[Callable[[], object], Sequence[Tensor]]]"
"""Runs nothing: returns what repeats the update on the memory of its arguments, and the tensors of its results."""
DIRECT = 2
"""Updates with a number of rows that run as single kernels before it is captured: libraries allocate what they need."""
MOST_CAPTURED = 64
"""Numbers of rows with a CUDA graph; each holds its rows and results."""


class CapturedExecutor(TracedExecutor):
    """What `learner.executor: compiled` is on a GPU. Nothing is kept for later runs, and no compiler is needed."""

    def __init__(self, net: Net, capture: Capture | None = None, report: Report = log_report) -> None:
        super().__init__(net, report)
        self.compare_every = COMPARE_EVERY
        self._capture = capture or CudaGraphs().capture

    def _made(self, graph: Any, arguments: Callable[[], Arguments], batch: Batch, folder: Path) -> Graph:
        return CapturedUpdate(graph, self._capture)


class CapturedUpdate:
    """Callable as `graph` is."""

    def __init__(self, graph: Graph, capture: Capture) -> None:
        self._graph, self._capture = graph, capture
        self._direct: dict[tuple[int, ...], int] = {}
        self._captured: dict[tuple[int, ...], Callable[[list[Tensor]], Sequence[Tensor]]] = {}

    def __call__(self, tensors: list[Tensor], rates: list[Tensor], rows: list[Tensor]) -> Sequence[Tensor]:
        """A CUDA graph reads and writes at fixed addresses: those of `tensors` are a part of its key."""
        key = (*(tensor.data_ptr() for tensor in tensors), *(len(column) if column.dim() else 0 for column in rows))
        update = self._captured.get(key)
        if update is None:
            direct = self._direct[key] = self._direct.get(key, 0) + 1
            if direct <= DIRECT or len(self._captured) == MOST_CAPTURED:
                return self._graph(tensors, rates, rows)
            update = self._captured[key] = self._held(tensors, rates, rows)
        return update([*rates, *rows])

    def _held(
        self, tensors: list[Tensor], rates: list[Tensor], rows: list[Tensor]
    ) -> Callable[[list[Tensor]], Sequence[Tensor]]:
        """A captured update, and the memory that holds its rates and rows."""
        held_rates, held_rows = [rate.clone() for rate in rates], [column.clone() for column in rows]
        replay, results = self._capture(self._graph, (tensors, held_rates, held_rows))
        held = [*held_rates, *held_rows]

        def update(given: list[Tensor]) -> Sequence[Tensor]:
            for tensor, value in zip(held, given, strict=True):
                tensor.copy_(value)
            replay()
            return [result.clone() for result in results]  # the next update writes over them

        return update


class CudaGraphs:
    """Their intermediate tensors share memory: one runs after the other, and results are copied before the next."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def capture(self, graph: Graph, arguments: Arguments) -> tuple[Callable[[], object], Sequence[Tensor]]:
        """Capture one run of `graph` on the current device; other threads may use the GPU meanwhile."""
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, pool=self._pool, capture_error_mode="thread_local"):
            results = graph(*arguments)
        return captured.replay, results
