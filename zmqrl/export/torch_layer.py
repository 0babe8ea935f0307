"""A layer that only torch computes, as an ONNX graph by `torch.onnx.export`."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.inliner
import torch
from onnx import compose
from torch import Tensor, nn

from zmqrl.errors import ConfigError
from zmqrl.export.onnx_graph import BATCH, OPSET
from zmqrl.networks.kinds.base import LayerKind, layer_kind
from zmqrl.networks.kinds.module import loaded_module
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Weights

ROWS, FEATURES = 2, 3
"""Of the batch that is traced: with one row the batch would be taken for a constant. An activation has any width."""


class _Kind(nn.Module):
    """A layer kind with its arrays."""

    def __init__(self, kind: LayerKind, spec: LayerSpec, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._kind, self._spec, self._tensors = kind, spec, tensors

    def forward(self, x: Tensor) -> Tensor:
        """The output of the layer."""
        return self._kind.torch(self._spec, self._tensors, x)


def traced(spec: LayerSpec, arrays: Weights, prefix: str) -> onnx.GraphProto:
    """The graph of a layer for rows `[B, features]`; its names begin with `prefix`.

    Raises:
        ConfigError: The layer has state, or `torch.onnx.export` does not export it.
    """
    kind = layer_kind(spec.kind)
    what = f"network.kind {spec.module.path!r}" if spec.module is not None else f"layer kind {spec.kind!r}"
    if kind.state_size(spec):
        raise ConfigError(f"{what}: a layer of your own with recurrent state cannot be exported to onnx")
    tensors = {name: torch.from_numpy(np.array(arrays[name], np.float32)) for name in kind.shapes(spec)}
    layer = _Kind(kind, spec, tensors) if spec.module is None else loaded_module(spec, tensors)
    x, axes = torch.zeros(ROWS, spec.inputs or FEATURES), {0: torch.export.Dim(BATCH)}
    if not spec.inputs:
        axes[1] = torch.export.Dim("features")
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _quiet():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(layer.eval(), (x,), dynamo=True, opset_version=OPSET, dynamic_shapes=(axes,))
    except Exception as error:  # the user's module may do anything
        cause = (str(error).strip().splitlines() or [""])[0]
        raise ConfigError(
            f"{what}: torch.onnx.export does not export it: {type(error).__name__}: {cause:.300}"
        ) from error
    assert program is not None, "dynamo=True returns a program"
    model = onnx.inliner.inline_local_functions(program.model_proto)
    renamed: onnx.GraphProto = compose.add_prefix(model, prefix).graph
    return renamed


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the log lines of the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
