"""What a layer kind promises. A maker returns one layer of the kind, and the shape of one row of its input."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from zmqrl.loading import Tensor
from zmqrl.networks.kinds.base import NoisyLayer, NumpyLayer, RecurrentLayer, check_layer, layer_kind, numpy_layer
from zmqrl.networks.spec import LayerSpec
from zmqrl.random_streams import stream
from zmqrl.testing.expect import are_first_values, checks_of, difference
from zmqrl.types import Array

SEED, ROWS = 1, 6
TOLERANCE = 1e-4
"""Between runtimes, relative: their sums have different orders."""
MANY, STEPS = 32_768, 3
"""Rows of a step, whose arrays are larger than views and the buffers of numpy's iterators, and steps that are tried."""


class Layer(NamedTuple):
    """A layer, and what goes in."""

    spec: LayerSpec
    inputs: tuple[int, ...]
    """Shape of one row, such as `(64,)`, or `(3, 20, 20)` for an image."""


LayerMaker: TypeAlias = Callable[[], Layer]


def arrays_have_the_layers_name(make: LayerMaker) -> None:
    """Each array is named `<name of the layer>.<own name>`: checkpoints hold arrays by name, and learners find them."""
    spec = make().spec
    check_layer(spec)
    for name, shape in layer_kind(spec.kind).shapes(spec).items():
        assert name.startswith(f"{spec.name}."), f"{name!r} does not begin with {spec.name!r} and a dot"
        assert all(size > 0 for size in shape), f"{name}: {shape}"


def first_values_are_a_function_of_the_generator(make: LayerMaker) -> None:
    """`initial` has the arrays of `shapes`: float32, finite, C-contiguous, and the same bits for a seed."""
    spec = make().spec
    are_first_values(_initial(spec), _initial(make().spec), layer_kind(spec.kind).shapes(spec))


def outputs_have_the_declared_width(make: LayerMaker) -> None:
    """The output is float32, finite, and has a row for each of the input; a flat one has `outputs` features."""
    layer = make()
    out = _torch_outputs(layer, _inputs(layer, ROWS))
    assert out.dtype == np.float32, f"the output is {out.dtype}"
    assert len(out) == ROWS, f"{ROWS} rows of inputs, {len(out)} of outputs"
    assert np.isfinite(out).all(), "the output is not finite"
    if layer.spec.outputs and out.ndim == 2:
        assert out.shape[1] == layer.spec.outputs, f"{out.shape[1]} features, the spec has {layer.spec.outputs}"


def each_row_depends_on_itself(make: LayerMaker) -> None:
    """A row has the same output alone and in a batch, up to rounding: workers and learners have other batches."""
    layer = make()
    x = _inputs(layer, ROWS)
    noise = _noise(layer.spec, ROWS)
    together = _torch_outputs(layer, x, noise=noise)
    alone = np.concatenate(
        [
            _torch_outputs(layer, x[row : row + 1], noise=None if noise is None else noise[row : row + 1])
            for row in range(ROWS)
        ]
    )
    assert difference(together, alone) <= TOLERANCE, "a row alone and the same row in a batch differ"


def steps_in_numpy_and_torch_agree(make: LayerMaker) -> None:
    """A recurrent kind carries its state alike in both runtimes, over several steps, up to rounding."""
    import torch

    layer = make()
    kind, acting = layer_kind(layer.spec.kind), numpy_layer(layer.spec, ROWS)
    size = kind.state_size(layer.spec)
    if not size:
        return
    values = _values(layer.spec, SEED)
    tensors = {name: torch.from_numpy(value) for name, value in values.items()}
    held = np.zeros((ROWS, size), np.float32)
    state = torch.zeros(ROWS, size)
    if acting is not None:
        assert isinstance(acting, RecurrentLayer), f"{type(acting).__name__} is not a RecurrentLayer"
        acting.load(values)
        for seed in range(SEED, SEED + 4):
            x = _inputs(layer, ROWS, seed)
            expected, state = kind.step(layer.spec, tensors, torch.from_numpy(x), state)
            out = np.array(acting.step(x.copy(), held))
            assert difference(out, expected.numpy()) <= TOLERANCE, "numpy and torch differ"
            assert difference(held, state.numpy()) <= TOLERANCE, "the states of numpy and torch differ"


def numpy_and_torch_agree(make: LayerMaker) -> None:
    """Acting in numpy computes what torch computes, up to rounding, also with new weights and at a second call."""
    layer = make()
    acting = numpy_layer(layer.spec, ROWS)
    if acting is None:
        return
    noise = _noise(layer.spec, ROWS) if layer_kind(layer.spec.kind).noise_in_acting else None
    is_noisy, needed = isinstance(acting, NoisyLayer), noise is not None
    assert is_noisy == needed, f"{type(acting).__name__} {'is' if is_noisy else 'is not'} a NoisyLayer"
    for seed in (SEED, SEED + 1):
        acting.load(_values(layer.spec, seed))
        for given in (None, noise):
            if isinstance(acting, NoisyLayer):
                acting.set_noise(given)
            x = _inputs(layer, ROWS, seed)
            expected = _torch_outputs(layer, x, seed, given).reshape(ROWS, -1)
            out = _step(acting, x)
            assert out.shape == expected.shape, f"numpy has {out.shape}, torch {expected.shape}"
            assert out.dtype == np.float32, f"the output of numpy is {out.dtype}"
            assert difference(out, expected) <= TOLERANCE, "numpy and torch differ"


def acting_allocates_no_arrays(make: LayerMaker) -> None:
    """A step of the numpy layer works in buffers that were made before.

    The least of several steps counts: what other threads allocate meanwhile is not of the step.
    """
    layer = make()
    acting = numpy_layer(layer.spec, MANY)
    if acting is None:
        return
    acting.load(_values(layer.spec, SEED))
    x, noise = _inputs(layer, MANY).reshape(MANY, -1), _noise(layer.spec, MANY)
    noisy = acting if isinstance(acting, NoisyLayer) else None
    acting.forward(x)
    peaks = []
    for _ in range(STEPS):
        tracemalloc.start()
        try:
            if noisy is not None:
                noisy.set_noise(noise)
            acting.forward(x)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    column = MANY * np.dtype(np.float32).itemsize
    assert min(peaks) < column, f"a step of {MANY} rows allocates {min(peaks)} bytes"


def gradients_are_those_of_finite_differences(make: LayerMaker) -> None:
    """Autograd's gradients by every array and by the input, in float64, at a random point."""
    import torch

    layer = make()
    values = _values(layer.spec, SEED)
    x = torch.from_numpy(_inputs(layer, 2).astype(np.float64)).requires_grad_()
    leaves = [torch.from_numpy(value.astype(np.float64)).requires_grad_() for value in values.values()]
    kind = layer_kind(layer.spec.kind)
    size, noise = kind.state_size(layer.spec), _noise(layer.spec, 2)

    def outputs(x: Tensor, *tensors: Tensor) -> Tensor:
        named = dict(zip(values, tensors, strict=True))
        if noise is not None:
            named[f"{layer.spec.name}.noise"] = torch.from_numpy(noise)
        if not size:
            return kind.torch(layer.spec, named, x)
        state = torch.linspace(-1.0, 1.0, size, dtype=x.dtype).expand(len(x), size)
        return torch.cat(kind.step(layer.spec, named, x, state), 1)

    gradcheck = torch.autograd.gradcheck(outputs, (x, *leaves), raise_exception=False)
    assert gradcheck, "the gradients differ from finite differences"
    loss = outputs(x, *leaves).square().sum()
    for name, grad in zip(values, torch.autograd.grad(loss, leaves) if leaves else (), strict=True):
        assert grad.any(), f"{name} has no effect on the output"


def _noise(spec: LayerSpec, rows: int) -> Array | None:
    """Noise of a noisy kind, `[rows, size]`; the same for a row in every batch."""
    size = layer_kind(spec.kind).noise_size(spec)
    return stream(SEED, "testing layer noise").normal(size=(rows, size)) if size else None


def _initial(spec: LayerSpec) -> dict[str, Array]:
    return layer_kind(spec.kind).initial(spec, stream(SEED, f"initial/{spec.name}"))


def _values(spec: LayerSpec, seed: int) -> dict[str, Array]:
    """Values in which each number differs, as after training."""
    generator = stream(seed, "testing layer values")
    shapes = layer_kind(spec.kind).shapes(spec)
    return {name: generator.normal(0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def _inputs(layer: Layer, rows: int, seed: int = SEED) -> Array:
    return stream(seed, "testing layer").normal(size=(rows, *layer.inputs)).astype(np.float32)


def _step(acting: NumpyLayer, x: Array) -> Array:
    return np.array(acting.forward(x.reshape(len(x), math.prod(x.shape[1:])).copy()))


def _torch_outputs(layer: Layer, x: Array, seed: int = SEED, noise: Array | None = None) -> Array:
    import torch

    tensors = {name: torch.from_numpy(value) for name, value in _values(layer.spec, seed).items()}
    if noise is not None:
        tensors[f"{layer.spec.name}.noise"] = torch.from_numpy(noise.astype(np.float32))
    kind = layer_kind(layer.spec.kind)
    with torch.inference_mode():
        return np.array(kind.torch(layer.spec, tensors, torch.from_numpy(x.copy())).numpy())


LAYER = checks_of(__name__)
