"""What a layer kind defines, and how a kind is found by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import MappingProxyType
from typing import ClassVar, Literal

from zmqrl.errors import ConfigError
from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.drawing import draw
from zmqrl.networks.spec import LayerSpec
from zmqrl.plugins import load, modules
from zmqrl.types import Array, Weights

WITH_BACKWARD = frozenset({"dueling", "flatten", "linear", "relu", "scale", "tanh"})
"""Kinds whose backward pass is written out in `zmqrl.networks.module`."""
NO_OPTIONS: Mapping[str, float] = MappingProxyType({})
TRAINING: ContextVar[bool | None] = ContextVar("training", default=None)
"""Mode of the layers, where `net(..., training=...)` sets it."""


def is_training() -> bool:
    """Whether layers that act in another way in training are in training mode, for `torch` and `step` of a kind.

    It is what `net(..., training=...)` sets; without that, whether autograd records.
    """
    training = TRAINING.get()
    return torch.is_grad_enabled() if training is None else training


@contextmanager
def training_mode(training: bool) -> Iterator[None]:
    """Have the layers that run inside in this mode, whether autograd records or not."""
    token = TRAINING.set(training)
    try:
        yield
    finally:
        TRAINING.reset(token)


class NumpyLayer(ABC):
    """One layer for a fixed number of rows, with its buffers: no allocation per step."""

    def load(self, weights: Weights) -> None:  # noqa: B027 - most layers have no arrays
        """Copy the layer's arrays out of `weights`."""

    @abstractmethod
    def forward(self, x: Array) -> Array:
        """The output for `x [rows, features]` float32, flat whatever the shape of a row is.

        `x` may be changed in place. The output is the layer's, or `x`, and lives until the next call.
        """


class RecurrentLayer(NumpyLayer):
    """A layer with state, of which it makes one step at a time. The state is the caller's."""

    name: str
    """Name of the layer, and of its state."""

    @abstractmethod
    def step(self, x: Array, state: Array) -> Array:
        """The output for `x [rows, features]`; `state [rows, size]` becomes the one after it."""

    zero: Array
    """`[rows, size]`: memory for a step from state zero."""

    def forward(self, x: Array) -> Array:
        """A step from state zero."""
        self.zero.fill(0.0)
        return self.step(x, self.zero)


class NoisyLayer(NumpyLayer):
    """A layer whose output depends on noise too. The noise is the caller's."""

    name: str
    """Name of the layer, and of its noise."""

    @abstractmethod
    def set_noise(self, noise: Array | None) -> None:
        """Standard normal numbers `[rows, size]` for the next calls; None: the layer without noise."""


class LayerKind(ABC):
    """Shapes, first values and both forward passes of one kind of layer. Without state; no method blocks.

    A kind names itself by its module (`zmqrl.networks.kinds.linear`), or by a dotted path `a.b:Kind`. The module does
    not import torch: workers and the launcher use it. `zmqrl.loading.torch` imports at the first use.
    """

    is_activation: ClassVar[bool] = False
    """Elementwise and without arrays: `network.activation` may name it."""
    takes_input: ClassVar[bool] = False
    """Appends a further input of the network to its own: `zmqrl.networks.forward` does it."""
    defaults: ClassVar[Mapping[str, float]] = NO_OPTIONS
    """The options of the kind and their values where a spec leaves them out."""
    noise_in_acting: ClassVar[bool] = True
    """Whether workers draw the noise of `noise_size` too. False: it is that of training alone."""

    def state_size(self, spec: LayerSpec) -> int:
        """Numbers of recurrent state per row; 0: the kind has none. Such a kind has `step`."""
        return 0

    def noise_size(self, spec: LayerSpec) -> int:
        """Random numbers per row that the layer needs; 0: none.

        `torch` finds them in `tensors` as `<name>.noise [B, size]`; without this entry the layer acts without noise.
        With `noise_in_acting` they are standard normal numbers in workers, and the `numpy` layer is a `NoisyLayer`.
        """
        return 0

    def step(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The output for one step `x [B, features]` from `state [B, size]`, and the state after it."""
        raise NotImplementedError(f"kind {spec.kind!r} has no recurrent state")

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        """Name and shape of each array of the layer; a name is `spec.name`, a dot, and a name of the kind's own."""
        return {}

    def buffers(self, spec: LayerSpec) -> frozenset[str]:
        """Names of `shapes` that no gradient changes, such as running means: the learner publishes what they become."""
        return frozenset()

    def constants(self, spec: LayerSpec) -> Array:
        """Numbers that the layer computes with and that no options list, for exports."""
        return np.zeros(0)

    def fan_in(self, spec: LayerSpec) -> int:
        """How many inputs one output depends on, for the first values."""
        return spec.inputs

    def initial(self, spec: LayerSpec, generator: np.random.Generator) -> dict[str, Array]:
        """The first values of the arrays of `shapes`, float32, drawn in that order."""
        fan_in = self.fan_in(spec)
        return {name: draw(generator, shape, fan_in, spec.gain) for name, shape in self.shapes(spec).items()}

    @abstractmethod
    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer | None:
        """The layer for acting on `rows` rows; None: workers need torch for it."""

    @abstractmethod
    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The output for a batch `x [B, ...]`, such that autograd can differentiate it by `tensors` and `x`.

        `tensors` has the arrays of `shapes`, among others. Each row depends on itself only, except in training
        (`is_training`), where a layer may use statistics of the batch.
        """

    def option(self, spec: LayerSpec, name: str) -> float:
        """A number of `spec.options`, or the default; KeyError when the kind has no such option."""
        return dict(spec.options).get(name, self.defaults[name])


class ElementwiseLayerKind(LayerKind, ABC):
    """A function of each number alone, without arrays. `network.activation` may name it."""

    is_activation = True

    @abstractmethod
    def in_place(self, x: Array, inner: Array) -> None:
        """Replace `x` by its values; `inner` is memory of the same size, with any content."""

    @abstractmethod
    def of_tensor(self, x: Tensor) -> Tensor:
        """The values of `x`, such that autograd can differentiate them."""

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return _NumpyElementwise(self.in_place)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return self.of_tensor(x)


class _NumpyElementwise(NumpyLayer):
    def __init__(self, in_place: Callable[[Array, Array], None]) -> None:
        self._in_place = in_place
        self._inner: Array = np.empty(0, np.float32)

    def forward(self, x: Array) -> Array:
        if self._inner.shape != x.shape:
            self._inner = np.empty_like(x)
        self._in_place(x, self._inner)
        return x


@cache
def known_kinds() -> tuple[str, ...]:
    """Names of the kinds of the package."""
    return modules(__package__, LayerKind)


@cache
def layer_kind(name: str) -> LayerKind:
    """The kind of a name or a dotted path; ConfigError for one that is unknown."""
    if ":" not in name and name not in known_kinds():
        raise ConfigError(
            f"layer kind {name!r} is unknown", fix=f"known: {', '.join(known_kinds())}; or a dotted path `module:Name`"
        )
    kind: LayerKind = load(name, __package__, LayerKind)()
    return kind


def check_layer(spec: LayerSpec) -> None:
    """Raise `ConfigError` when the kind is unknown, or lacks an option of the spec, or the spec a name."""
    kind = layer_kind(spec.kind)
    if unknown := [name for name, _ in spec.options if name not in kind.defaults]:
        known = ", ".join(kind.defaults) or "none"
        raise ConfigError(f"layer {spec.name!r}: kind {spec.kind!r} has no option {unknown[0]!r} (known: {known})")
    if not spec.name and kind.shapes(spec):
        raise ConfigError(f"a layer of kind {spec.kind!r} has arrays and needs a name")


def without_backward(layers: tuple[LayerSpec, ...]) -> tuple[str, ...]:
    """The kinds of `layers` that only autograd differentiates, sorted. With options every kind is one of them."""
    return tuple(sorted({layer.kind for layer in layers if layer.options or layer.kind not in WITH_BACKWARD}))


def numpy_layer(spec: LayerSpec, rows: int) -> NumpyLayer | None:
    """The acting layer of a spec; None: it needs torch. ConfigError: its arrays do not fit into memory."""
    try:
        return layer_kind(spec.kind).numpy(spec, rows)
    except MemoryError as error:
        raise ConfigError(
            f"layer {spec.name!r} with {spec.inputs} inputs and {spec.outputs} outputs does not fit "
            f"into memory: {error}",
            key=("network", "hidden"),
            fix="set smaller numbers",
        ) from error


def runtime_of(layers: tuple[LayerSpec, ...]) -> Literal["numpy", "torch"]:
    """How workers act with these layers: with numpy where every kind can."""
    return "torch" if any(numpy_layer(layer, 1) is None for layer in layers) else "numpy"
