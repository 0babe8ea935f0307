"""Acting with ONNX Runtime under the same numpy heads: every layer that torch has, in a third of its memory.

The only acting module with onnxruntime. The graph is made where onnx and torch are (`zmqrl.export.acting_graph`).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from zmqrl.acting.base import State
from zmqrl.acting.numpy_policy import ForwardPolicy
from zmqrl.acting.spec import NEXT_STATE, NOISE, OUTPUTS, STATE, ActingSpec, X
from zmqrl.errors import ConfigError
from zmqrl.loading import loading
from zmqrl.types import Array, Weights

INSTALL = "run in the checkout of zmqrl: pip install '.[onnx]'"
ERRORS_ALONE = 3
"""Log level of ONNX Runtime."""


class OnnxPolicy(ForwardPolicy):
    """One thread. A session computes with the arrays of a version where they are; it has their addresses."""

    def __init__(self, spec: ActingSpec) -> None:
        """ConfigError: onnxruntime is missing."""
        super().__init__(spec)
        assert spec.graph is not None, "the launcher makes it"
        self._runtime, self._graph = _onnxruntime(), spec.graph
        self._session: Any = None
        self._state: list[str] = []
        """Names of the states of the layers; a head has its own."""
        self._arrays: dict[str, Array] = {}
        self._buffers: dict[str, Array] = {}
        """Inputs and outputs of a call."""
        self._binding: Any = None
        """Binding of arrays and buffers to the session; None: the version is new."""

    def load_network(self, weights: Weights) -> None:
        if self._session is None or self._graph.constants:
            self._arrays = {name: _own(weights[name]) for name in self._graph.constants}
            self._session = self._new_session(self._arrays)
            self._state = [name.removeprefix(STATE) for name in self._inputs() if name.startswith(STATE)]
        self._arrays |= {name: _own(weights[name]) for name in self._inputs() if name in weights}
        self._binding = None

    def forward(self, x: Array, state: State, noise: Mapping[str, Array]) -> Array:
        if self._buffers.get(X) is not x:
            self._buffers = self._new_buffers(x)
            self._binding = None
        if self._binding is None:
            self._binding = self._bound()
        buffers = self._buffers
        for name in self._state:
            np.copyto(buffers[STATE + name], state[name])
        for name in self._noisy:
            np.copyto(buffers[NOISE + name], noise[name] if noise else 0.0, "same_kind")
        self._session.run_with_iobinding(self._binding)
        for name in self._state:
            np.copyto(state[name], buffers[NEXT_STATE + name])
        return buffers[OUTPUTS]

    def _new_buffers(self, x: Array) -> dict[str, Array]:
        sizes = {name: shape[1] for name, shape in self._inputs().items() if name not in self._arrays and name != X}
        inputs = {X: x, **{name: np.zeros((len(x), size), np.float32) for name, size in sizes.items()}}
        names = [one.name for one in self._session.get_outputs()]
        fed = {name: self._arrays[name] if name in self._arrays else inputs[name] for name in self._inputs()}
        return {**inputs, **dict(zip(names, self._session.run(names, fed), strict=True))}

    def _bound(self) -> Any:
        binding, inputs = self._session.io_binding(), self._inputs()
        for name, array in (*self._arrays.items(), *self._buffers.items()):
            if name in inputs:
                binding.bind_ortvalue_input(name, self._value(array))
            elif name in self._buffers:
                binding.bind_ortvalue_output(name, self._value(array))
        return binding

    def _inputs(self) -> dict[str, list[Any]]:
        """Shapes by name."""
        return {one.name: one.shape for one in self._session.get_inputs()}

    def _new_session(self, constants: Mapping[str, Array]) -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = ERRORS_ALONE
        if constants:
            options.add_external_initializers(list(constants), [self._value(array) for array in constants.values()])
        model = base64.b64decode(self._graph.model)
        return self._runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def _value(self, array: Array) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(array)


def _own(array: Array) -> Array:
    return np.require(array, np.float32, ("C", "A"))


def _onnxruntime() -> Any:
    try:
        with loading():
            import onnxruntime
    except ImportError as error:
        raise ConfigError(
            "the package onnxruntime is missing", key=("network", "runtime"), value="onnx", fix=INSTALL
        ) from error
    return onnxruntime
