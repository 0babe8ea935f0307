"""A layer that only torch computes, as an ONNX graph by `torch.onnx.export`."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import torch
from onnx import compose
from torch import Tensor, nn

from zmqrl.errors import ConfigError
from zmqrl.export.onnx_graph import BATCH, OPSET
from zmqrl.networks.kinds.base import LayerKind, layer_kind
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Weights

ROWS, FEATURES = 2, 3
"""Rows and features of the batch that is traced: one row would be taken for a constant. An activation has any width."""
STATE = "state"


class _Kind(nn.Module):
    """A layer kind as a module whose arrays are inputs: what is exported is a function of them."""

    def __init__(self, kind: LayerKind, spec: LayerSpec, names: tuple[str, ...]) -> None:
        super().__init__()
        self._kind, self._spec, self._names = kind, spec, names

    def forward(self, values: list[Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        x, *others = values
        tensors = dict(zip(self._names, others, strict=True))
        if STATE in tensors:
            return self._kind.step(self._spec, tensors, x, tensors.pop(STATE))
        return self._kind.torch(self._spec, tensors, x)


def traced(spec: LayerSpec, arrays: Weights, prefix: str, noise: int = 0) -> onnx.GraphProto:
    """The graph of a layer for rows `[B, features]`.

    `prefix`: begin of all names. `noise`: numbers of the noise of a row; 0: the layer is without.

    Returns:
        Inputs: the rows, state and noise if the layer has them, and each array. Outputs: the rows and the next state.

    Raises:
        ConfigError: `torch.onnx.export` does not export it.
    """
    kind = layer_kind(spec.kind)
    state, names = kind.state_size(spec), tuple(kind.shapes(spec))
    rows = {STATE: state, f"{spec.name}.noise": noise}
    extra = [name for name, size in rows.items() if size]
    values = [torch.zeros(ROWS, size) for size in (spec.inputs or FEATURES, *(rows[name] for name in extra))]
    batch = torch.export.Dim(BATCH)
    axes: list[Any] = [{0: batch}] * len(values) + [None] * len(names)
    if not spec.inputs:
        axes[0] = {0: batch, 1: torch.export.Dim("features")}
    values += [torch.from_numpy(np.array(arrays[name], np.float32)) for name in names]
    layer = _Kind(kind, spec, (*extra, *names)).eval()
    try:
        with torch.no_grad(), _quiet():
            layer(values)  # what it makes once, it makes of real tensors
            program = torch.onnx.export(layer, (values,), dynamo=True, opset_version=OPSET, dynamic_shapes=(axes,))
    except Exception as error:  # the user's module may do anything
        what = f"network.kind {spec.module.path!r}" if spec.module is not None else f"layer kind {spec.kind!r}"
        what = f"{what}: torch.onnx.export does not export it: {_first_cause(error)}"
        raise ConfigError(what, key=(), others=(("network", "kind"),)) from error
    assert program is not None, "dynamo=True returns a program"
    model = onnx.inliner.inline_local_functions(program.model_proto)
    renamed: onnx.GraphProto = compose.add_prefix(model, prefix).graph
    return renamed


def _first_cause(error: BaseException) -> str:
    """Class and first line of the error that began it: the exporter's own text is a list of what to try."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line:.300}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    nowhere = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
