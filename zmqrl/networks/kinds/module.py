"""A `torch.nn.Module` of the user's as one layer: its parameters are trained, its buffers are published with them.

A module that the constructor makes gives structure and constants. Values come from `tensors`, as for every other kind,
by `torch.func.functional_call`. This process imports torch: a launcher does so for a network of this kind alone.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from zmqrl.errors import ConfigError
from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.kinds.base import LayerKind, is_training
from zmqrl.networks.spec import LayerSpec, ModulePart, ModuleSpec
from zmqrl.plugins import form, named
from zmqrl.types import Array

if TYPE_CHECKING:
    from gymnasium import Space
    from torch import nn

ROWS = 2
"""Rows of the batch that a new module is tried with: a normalisation over a batch needs two."""
STATE_SIZE = "state_size"
"""Attribute of a module with recurrent state."""
MOST_NAMED = 3
"""Parameters in a message."""


class Description(NamedTuple):
    """What a network must know of a module. Names and shapes are those of the module."""

    features: int
    state: int
    """Numbers of recurrent state per row: `state_size` of the module; 0: it has none."""
    parameters: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]


class Module(LayerKind):
    """Arrays: every parameter and persistent buffer of the module, `<layer>.<name in the module>`.

    `inputs` counts the numbers of all parts, `outputs` the features. The module is in training mode where autograd
    records, and in evaluation mode elsewhere: in workers, the evaluator, and for targets. `net(..., training=...)` sets
    another mode. With an attribute `state_size` it has recurrent state: `forward(obs, state)` returns the features and
    the next state.
    """

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        found = described(_of(spec))
        return {f"{spec.name}.{name}": shape for name, shape in (*found.parameters.items(), *found.buffers.items())}

    def buffers(self, spec: LayerSpec) -> frozenset[str]:
        return frozenset(f"{spec.name}.{name}" for name in described(_of(spec)).buffers)

    def initial(self, spec: LayerSpec, generator: np.random.Generator) -> dict[str, Array]:
        """Values as the constructor draws them, with torch's generator seeded by ours."""
        made = _made(_of(spec), int(generator.integers(2**62)))
        tensors = dict((*made.named_parameters(), *_persistent(made)))
        return {name: _float32(tensors[name.removeprefix(f"{spec.name}.")]) for name in self.shapes(spec)}

    def numpy(self, spec: LayerSpec, rows: int) -> None:
        del spec, rows

    def state_size(self, spec: LayerSpec) -> int:
        return described(_of(spec)).state

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        if size := self.state_size(spec):
            return self.step(spec, tensors, x, x.new_zeros(x.shape[0], size))[0]
        features: Tensor = self._called(spec, tensors, x)
        return features

    def step(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        features, after = self._called(spec, tensors, x, state)
        return features, after

    def _called(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor, *state: Tensor) -> Any:
        of = _of(spec)
        module = _structure(of, str(x.device))
        module.train(is_training())
        own = {name: tensors[f"{spec.name}.{name}"] for name in described(of).parameters}
        held = {name: tensors[f"{spec.name}.{name}"] for name, _ in _persistent(module)}
        own |= {name: held[name].to(buffer.dtype) for name, buffer in _persistent(module)}
        output = torch.func.functional_call(module, own, (_input(of.parts, x), *state))
        if module.training:
            with torch.no_grad():
                for name, tensor in held.items():
                    if own[name] is not tensor:  # a counter: held as float32, and counted as an integer
                        tensor.copy_(own[name])
        return output


@lru_cache(maxsize=64)
def described(spec: ModuleSpec) -> Description:
    """The arrays and the number of features of a module, which computes one batch of zeros.

    Raises:
        ConfigError: The class cannot be imported, constructed or called, or its features are not `[B, F]` float32 and
            a function of parameters, buffers and input alone.
    """
    module = _made(spec, 0)
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            what = f"parameter {name!r} is {parameter.dtype}"
            raise ConfigError(what, key=("network", "kind"), value=repr(spec.path), fix="all must be float32")
    state = _state_size(spec, module)
    return Description(
        _features(spec, module, state),
        state,
        {name: tuple(parameter.shape) for name, parameter in module.named_parameters()},
        {name: tuple(buffer.shape) for name, buffer in _persistent(module)},
    )


@lru_cache(maxsize=64)
def check_gradients(spec: ModuleSpec) -> None:
    """Try a backward pass of one batch: a learner steps all parameters together, so each needs a gradient.

    The batch is drawn from [0, 1): a module may leave out layers where an observation is zero.

    Raises:
        ConfigError: The pass raised, or the features do not depend on some parameters.
    """
    module = _made(spec, 0).train()
    with _own_random_state(1), torch.enable_grad(), _explained(spec, "forward and backward"):
        parameters = {name: tensor.detach().requires_grad_() for name, tensor in module.named_parameters()}
        x, state = _input(spec.parts, torch.rand(ROWS, _inputs(spec))), _state_size(spec, module)
        given = (x, torch.rand(ROWS, state)) if state else (x,)
        output = torch.func.functional_call(module, parameters, given)
        loss = sum((one.sum() for one in output), torch.zeros(())) if state else output.sum()
        leaves = tuple(parameters.values())
        grads = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else (None,) * len(leaves)
    if unused := [name for name, grad in zip(parameters, grads, strict=True) if grad is None]:
        more = f", and {len(unused) - MOST_NAMED} more" if len(unused) > MOST_NAMED else ""
        raise ConfigError(
            f"these parameters have no gradient: {', '.join(unused[:MOST_NAMED])}{more}",
            key=("network", "kind"),
            value=repr(spec.path),
            fix=(
                "every parameter is trained, so remove layers that forward does not use, and keep tensors "
                "that are not trained as buffers (register_buffer)"
            ),
        )


def _of(spec: LayerSpec) -> ModuleSpec:
    if spec.module is None:
        raise ConfigError(f"layer {spec.name!r} of kind 'module' names no module")
    return spec.module


def _state_size(spec: ModuleSpec, module: nn.Module) -> int:
    size = getattr(module, STATE_SIZE, 0)
    if type(size) is not int or size < 0:
        what = f"attribute {STATE_SIZE} is {size!r}, must be a whole number: the numbers of recurrent state of a row"
        raise ConfigError(what, key=("network", "kind"), value=repr(spec.path))
    return size


def _features(spec: ModuleSpec, module: nn.Module, state: int) -> int:
    x, given = torch.zeros(ROWS, _inputs(spec)), (torch.zeros(ROWS, state),) if state else ()
    with _own_random_state(1) as generator, torch.no_grad(), _explained(spec, "forward"):
        for training in (True, False):
            before = generator.get_state()
            output = module.train(training)(_input(spec.parts, x), *given)
            if not torch.equal(before, generator.get_state()):
                what = "forward draws random numbers (such as dropout), which no resume repeats"
                raise ConfigError(what, key=("network", "kind"), value=repr(spec.path), fix="remove them")
    outputs: tuple[Any, ...] = output if state and isinstance(output, tuple) else (output,)
    widths = (0, state) if state else (0,)
    if len(outputs) != len(widths) or not all(map(_is_rows, outputs, widths)):
        taken, made = (
            (f", and a state [B, {state}]", f", and the next state, float32 [B, {state}]") if state else ("", "")
        )
        gave = ", ".join(map(_shape, outputs))
        what = f"forward of {_described_parts(spec.parts)}{taken} with B={ROWS} gave {gave}"
        fix = f"it must give features, float32 [B, F]{made}"
        raise ConfigError(what, key=("network", "kind"), value=repr(spec.path), fix=fix)
    return int(outputs[0].shape[1])


def _is_rows(output: object, width: int) -> bool:
    """Whether it is float32 `[B, width]`; 0: of any width."""
    if not isinstance(output, torch.Tensor) or output.dtype != torch.float32 or output.dim() != 2:
        return False
    return len(output) == ROWS and width in (0, output.shape[1])


@contextmanager
def _explained(spec: ModuleSpec, what: str) -> Iterator[None]:
    """An exception of the user's module as a `ConfigError`."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{what} of {_described_parts(spec.parts)} raised {type(error).__name__}: {_line(error)}",
            key=("network", "kind"),
            value=repr(spec.path),
        ) from error


def _made(spec: ModuleSpec, seed: int) -> nn.Module:
    """A new module whose first values are those of `seed`; torch's own random state stays what it was."""
    kind = named(spec.path, f"network.kind: {spec.path!r} cannot be loaded")
    if not (inspect.isclass(kind) and issubclass(kind, torch.nn.Module)):
        what = f"is not a torch.nn.Module: found {form(kind)}"
        raise ConfigError(what, key=("network", "kind"), value=repr(spec.path), is_subject=True)
    kwargs = json.loads(spec.kwargs)
    with _own_random_state(seed):
        try:
            return kind(_space(spec.parts), **kwargs)
        except Exception as error:
            words = "".join(f", {name}={value!r}" for name, value in kwargs.items())
            what = f"{kind.__name__}(observation_space{words}) raised {type(error).__name__}: {_line(error)}"
            raise ConfigError(what, key=("network", "kind"), value=repr(spec.path)) from error


@contextmanager
def _own_random_state(seed: int) -> Iterator[torch.Generator]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield torch.default_generator


@lru_cache(maxsize=64)
def _structure(spec: ModuleSpec, device: str) -> nn.Module:
    return _made(spec, 0).to(device)


def _persistent(module: nn.Module) -> list[tuple[str, Tensor]]:
    kept = module.state_dict(keep_vars=True)
    return [(name, buffer) for name, buffer in module.named_buffers() if name in kept]


def _inputs(spec: ModuleSpec) -> int:
    return sum(math.prod(part.shape) for part in spec.parts)


def _input(parts: tuple[ModulePart, ...], x: Tensor) -> Tensor | dict[str, Tensor]:
    """What `forward` receives for `x [B, ...]`: the tensor of the only part, or a dict."""
    if not parts[0].name:
        return x.reshape(x.shape[0], *parts[0].shape)
    columns = torch.split(x, [math.prod(part.shape) for part in parts], 1)
    return {part.name: column.reshape(-1, *part.shape) for part, column in zip(parts, columns, strict=True)}


def _space(parts: tuple[ModulePart, ...]) -> Space[Any]:
    from gymnasium import spaces

    boxes: dict[str, Space[Any]] = {part.name: spaces.Box(-np.inf, np.inf, part.shape, np.float32) for part in parts}
    return boxes[""] if "" in boxes else spaces.Dict(boxes)


def _described_parts(parts: tuple[ModulePart, ...]) -> str:
    if not parts[0].name:
        return f"a tensor {_sizes(parts[0].shape)}"
    return f"a dict of {', '.join(f'{part.name} {_sizes(part.shape)}' for part in parts)}"


def _sizes(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(['B', *map(str, shape)])}]"


def _shape(output: object) -> str:
    return f"{output.dtype} {list(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def _float32(tensor: Tensor) -> Array:
    return tensor.detach().numpy().astype(np.float32)
