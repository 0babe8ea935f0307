"""Updates recorded as a graph, and compiled to machine code: exported with a dynamic batch dimension, by AOTInductor.

Whatever torch offers for this is private or new: it is used in this file alone. Reference: PyTorch documentation,
"torch.export" and "AOTInductor".
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from zmqrl.errors import ConfigError, TrainingFailed
from zmqrl.learning.base import Report, log_report
from zmqrl.learning.comparison import Difference, EagerUpdate
from zmqrl.learning.executor import Batch, EagerExecutor, Executor, Update
from zmqrl.learning.net import Net
from zmqrl.learning.package_cache import (
    FIX,
    cache_folder,
    check_compiler,
    check_disk,
    check_first_compilation,
    compilation_folder,
    keep_package,
    read_package,
)
from zmqrl.loading import Tensor, torch
from zmqrl.ops.tanh import rational_tanh

COMPARE_EVERY = 1_000
"""Compiled updates between two that also run eagerly."""
MOST_ROUNDING = 5_000.0
"""Tolerances: more is an error in any case. Rounding exceeds one where values nearly cancel, as two estimates of some
thousands do in their difference. A number that tracing froze is in the graph: the update has another one then."""
FIX_OF_ROWS = "use tensor.shape[0] in place of len(tensor), which stays the number of rows of the recording"
FROZEN = (
    "a number that changes from one update to the next must come from the batch (schedules, counters, noise), because "
    f"tracing keeps a Python number as it was; {FIX_OF_ROWS}; or "
)
MOST_ROWS = 1 << 20
MANY_ROWS, OTHER_ROWS = 4_099, 4_111
"""Rows of the batch that is traced: tracing takes equal sizes for one size, so the number of rows is like no other. A
graph that has this number in it is another one for the second number."""
Arguments: TypeAlias = "tuple[list[Tensor], ...]"
"""Tensors of the net, learning rates, batch."""
Graph: TypeAlias = "Callable[..., Sequence[Tensor]]"
"""Runs a recorded update."""


class Signature(NamedTuple):
    """What a package was built for: all but the number of rows."""

    variant: tuple[tuple[str, bool], ...]
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, dtype and shape of one row of each; a scalar has the shape `(-1,)`."""

    @classmethod
    def of(cls, batch: Batch, variant: Mapping[str, bool]) -> Signature:
        """ValueError names a tensor whose rows are not those of the others, or that is not contiguous."""
        inputs, rows = [], None
        for name, tensor in batch.items():
            if not tensor.is_contiguous():
                raise ValueError(f"{name}: a compiled update needs contiguous tensors")
            if tensor.dim():
                rows = len(tensor) if rows is None else rows
                if len(tensor) != rows:
                    raise ValueError(f"{name} has {len(tensor)} rows, and the tensors before it {rows}")
            inputs.append((name, str(tensor.dtype), tuple(tensor.shape[1:]) if tensor.dim() else (-1,)))
        return cls(tuple(sorted(variant.items())), tuple(inputs))


class Package(NamedTuple):
    """A recorded update, and the names of its results."""

    run: Graph
    results: tuple[str, ...]
    key: str
    """Key of the package's graph."""


class TracedExecutor(Executor):
    """Records each combination of variant and batch layout as a graph, and runs the graph.

    At the first update of a combination, and at every `compare_every`-th, the same update also runs eagerly. What
    tracing froze, such as a schedule read as a Python float, is found there: the update has another graph then.
    """

    compare_every = 1
    decompositions: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({})
    """Operations of aten that are recorded as others."""

    def __init__(self, net: Net, report: Report = log_report) -> None:
        super().__init__(net)
        self._report = report
        self._eager = EagerExecutor(net)
        self._packages: dict[Signature, Package] = {}
        self._runs: dict[Signature, int] = {}
        self._rounding: dict[str, float] = {}
        """Accepted difference by name of the tensor, as a multiple of its tolerance; others: 1."""

    def run(self, update: Update, batch: Batch, rates: Mapping[str, Tensor], **variant: bool) -> dict[str, Tensor]:
        """Run as `Executor.run`. A batch of fewer than two rows runs eagerly: tracing takes 0 and 1 for constants.

        Raises:
            ConfigError: The update cannot be recorded or compiled.
            TrainingFailed: The recorded update differs from the eager one.
        """
        if any(tensor.dim() and len(tensor) < 2 for tensor in batch.values()):
            return self._eager.run(update, batch, rates, **variant)
        signature = Signature.of(batch, variant)
        if signature not in self._packages:
            self._packages[signature] = self._build(update, batch, rates, signature)
        package, runs = self._packages[signature], self._runs.get(signature, 0)
        self._runs[signature] = runs + 1
        compared = runs % self.compare_every == 0
        expected = EagerUpdate.of(self.net, update, batch, rates, variant) if compared else None
        flat = list(self.net.tensors.values())
        try:
            found = package.run(flat, list(rates.values()), list(batch.values()))
        except RuntimeError as error:
            raise _unrecordable("the recorded update fails", error) from error
        results = dict(zip(package.results, found, strict=True))
        if expected is not None:
            differences = expected.differences({**results, **self.net.tensors})
            above = [each for each in differences if not each.tolerances <= self._rounding.get(each.name, 1.0)]
            if above:
                graph, arguments, _ = self._graph(update, batch, rates, signature, OTHER_ROWS)
                self._check(above, _key(graph, arguments()) != package.key)
        return results

    def _check(self, above: Sequence[Difference], frozen: bool) -> None:
        """Raise `TrainingFailed`, or set the tolerance of each tensor to twice its difference, which is rounding."""
        is_first = not self._rounding
        for difference in above:
            if frozen or not difference.tolerances <= MOST_ROUNDING:
                cause = FROZEN if frozen else "no number of it was frozen by tracing; please report it, and "
                raise TrainingFailed(
                    f"the compiled update differs from the eager one by {difference.largest:.3g} in "
                    f"{difference.name!r}: {cause}{FIX}"
                )
            self._rounding[difference.name] = 2 * difference.tolerances
        if is_first:
            most = max(above, key=lambda difference: difference.tolerances)
            self._report(
                f"the compiled update differs from the eager one by {most.largest:.3g} in {most.name!r} "
                f"({most.tolerances:,.0f} times the tolerance)",
                "it is taken as rounding, and twice as much is accepted from now on",
            )

    def _made(self, graph: Any, arguments: Callable[[], Arguments], batch: Batch, folder: Path) -> Graph:
        """What runs the graph. `folder`: for temporary files."""
        run: Graph = graph
        return run

    def _build(self, update: Update, batch: Batch, rates: Mapping[str, Tensor], signature: Signature) -> Package:
        try:
            with warnings.catch_warnings(), compilation_folder() as folder:
                warnings.simplefilter("ignore")  # torch warns of its own use of what it deprecates
                graph, arguments, results = self._graph(update, batch, rates, signature)
                return Package(self._made(graph, arguments, batch, folder), results, _key(graph, arguments()))
        except ConfigError:
            raise
        except Exception as error:
            raise _unrecordable("the update cannot be compiled", error) from error

    def _graph(
        self, update: Update, batch: Batch, rates: Mapping[str, Tensor], signature: Signature, count: int = MANY_ROWS
    ) -> tuple[Any, Callable[[], Arguments], tuple[str, ...]]:
        """The update as a graph, what makes arguments for it, and the names of its results."""
        names: list[str] = []
        state, steps = list(self.net.tensors), list(rates)

        def flat_update(tensors: list[Tensor], rate: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
            given = dict(zip(state, tensors, strict=True))
            with torch.enable_grad(), self.net.running(dict(zip(steps, rate, strict=True)), given) as norms:
                results = {**update(dict(zip(batch, rows, strict=True)), **dict(signature.variant)), **norms}
            names[:] = list(results)
            return [value.detach() for value in results.values()]

        def arguments() -> Arguments:  # tracing and export execute in place
            held = tuple([t.clone() for t in group.values()] for group in (self.net.tensors, rates))
            return (*held, [_with_rows(tensor, count) for tensor in batch.values()])

        return _traced(flat_update, arguments(), self.decompositions), arguments, tuple(names)


class CompiledExecutor(TracedExecutor):
    """Compiles each graph once; packages are kept in `cache` for later runs."""

    decompositions = MappingProxyType({"tanh": rational_tanh})

    def __init__(self, net: Net, cache: Path | None = None, report: Report = log_report) -> None:
        """`cache`: of this machine. ConfigError as `check_first_compilation`."""
        super().__init__(net, report)
        self.compare_every = COMPARE_EVERY
        self._cache = cache or cache_folder()
        check_first_compilation(self._cache)

    def _made(self, graph: Any, arguments: Callable[[], Arguments], batch: Batch, folder: Path) -> Graph:
        """The package of `graph`, compiled now if the cache has none that can be loaded."""
        path = self._cache / f"{_key(graph, arguments())}.pt2"
        package = read_package(path, self._report)
        if package is not None:
            try:
                return _loaded(package, folder)
            except (RuntimeError, OSError) as error:  # built with another C library
                self._report(f"{path} cannot be loaded: {_first_line(error)}", "the update is compiled again")
        check_compiler()
        check_disk(folder)
        package = _compiled(graph, arguments(), batch)
        keep_package(path, package, self._report)
        return _loaded(package, folder)


def _unrecordable(what: str, error: Exception) -> ConfigError:
    fix = f"{FIX_OF_ROWS}; or {FIX}"
    return ConfigError(f"{what}: {type(error).__name__}: {_first_line(error)}", key=("learner", "executor"), fix=fix)


def _with_rows(tensor: Tensor, count: int) -> Tensor:
    """Tensor of the layout of `tensor`, with `count` rows."""
    if not tensor.dim():
        return tensor.clone()
    return tensor[:1].expand(count, *tensor.shape[1:]).contiguous()


def _traced(
    function: Callable[..., list[Tensor]],
    arguments: Arguments,
    decompositions: Mapping[str, Callable[[Tensor], Tensor]],
) -> Any:
    """The graph of `function` with its gradients, for any number of rows."""
    from torch.fx.experimental.proxy_tensor import make_fx

    aten = torch.ops.aten
    table = {getattr(aten, name).default: recorded for name, recorded in decompositions.items()}
    graph = make_fx(function, table, "symbolic", _allow_non_fake_inputs=True)(*arguments)
    for node in list(graph.graph.nodes):
        if node.target in (aten.detach.default, aten.alias.default):  # a dispatch each, and no arithmetic
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _key(graph: Any, arguments: Arguments) -> str:
    """Digest of everything that the machine code depends on, besides the machine."""
    layout = [[(str(t.dtype), tuple(t.shape[1:]), str(t.device)) for t in group] for group in arguments]
    constants = {name: value.tolist() for name, value in vars(graph).items() if isinstance(value, torch.Tensor)}
    constants |= {name: value.tolist() for name, value in graph.named_buffers()}
    parts = (graph.code, layout, sorted(constants.items()), torch.get_num_threads())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _compiled(graph: Any, arguments: Arguments, batch: Batch) -> bytes:
    """The package. It is written in memory: torch ends the process where a disk is full."""
    import torch._inductor as inductor
    from torch._inductor import config

    rows = torch.export.Dim("rows", min=2, max=MOST_ROWS)
    state, rates, _ = arguments
    dynamic = [{0: rows} if tensor.dim() else None for tensor in batch.values()]
    exported = torch.export.export(graph, arguments, dynamic_shapes=([None] * len(state), [None] * len(rates), dynamic))
    package, headers = io.BytesIO(), "aot_inductor.precompile_headers"  # 280 MB, for one compilation
    with config.patch({headers: False} if hasattr(config.aot_inductor, "precompile_headers") else {}):
        inductor.aoti_compile_and_package(exported, package_path=package)
    return package.getvalue()


def _loaded(package: bytes, folder: Path) -> Graph:
    """The libraries are mapped: nothing of `folder` is read later."""
    import torch._inductor as inductor

    path = folder / "package.pt2"
    path.write_bytes(package)
    loader = inductor.aoti_load_package(str(path)).loader

    def run(tensors: list[Tensor], rates: list[Tensor], rows: list[Tensor]) -> Sequence[Tensor]:
        results: Sequence[Tensor] = loader.boxed_run([*tensors, *rates, *rows])  # 9 us less than by torch's pytrees
        return results

    return run


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
