"""The parameters of an algorithm under autograd: towers, free parameters, targets, and all of it in a checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from zmqrl.errors import ConfigError
from zmqrl.learning.groups import Group, Target, clipped, is_member, layouts, target_name, target_part
from zmqrl.learning.precision import splits_of
from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.forward import forward, unroll
from zmqrl.networks.initial import buffer_names, parameter_shapes
from zmqrl.networks.kinds.base import training_mode
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.types import Array, Weights

NORM = "grad_norm"
"""Metric of each group's gradient, before clipping: `grad_norm/<group>`."""


BUFFER = "buffer."
"""Prefix of those of `Net.tensors` that are buffers of modules."""
PRIVATE, OPTIMISER = "private.", "optimiser."
"""Prefixes of learner-only tensors and of those of optimisers in `Net.state`; that of a target is its `target_part`."""
MOST_NAMED = 4
"""Tensors in a message."""


class Views(NamedTuple):
    """Flat tensors, and the named tensors in them."""

    flat: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    targets: Mapping[str, Mapping[str, Tensor]]
    """Tensors by the name of the target."""


class Net:
    """One thread. All that changes in training is in the flat tensors of `tensors`; the rest are views of these."""

    def __init__(
        self, spec: NetworkSpec, groups: Sequence[Group], weights: Weights, device: str, precision: str = "float32"
    ) -> None:
        """`weights` hold every tensor of `spec`, the learner-only ones too. ConfigError when groups do not fit."""
        self.spec, self.device, self.precision = spec, device, precision
        self._splits = splits_of(spec) if precision == "bfloat16" else {}
        if device.startswith("cuda"):
            torch.backends.cudnn.deterministic = True  # the gradients of convolutions have the same bits each time
        self._groups = {group.name: group for group in groups}
        shapes, self._buffers = parameter_shapes(spec), buffer_names(spec)
        self._layouts = layouts(groups, {name: shape for name, shape in shapes.items() if name not in self._buffers})
        self._names = tuple(shapes)
        self.tensors: dict[str, Tensor] = {}
        for name in self._names:
            if name in self._buffers:
                self.tensors[f"{BUFFER}{name}"] = torch.zeros(shapes[name], device=device)
        for name, layout in self._layouts.items():
            self.tensors[f"{name}.parameters"] = torch.zeros(layout.length, device=device)
            for part in self._groups[name].optimiser.tensors:
                self.tensors[f"{name}.{part}"] = torch.zeros(layout.length, device=device)
            self.tensors[f"{name}.steps"] = torch.zeros((), dtype=torch.float64, device=device)
            for target in self._groups[name].targets:
                self.tensors[f"{name}.{target_part(target)}"] = torch.zeros(layout.length, device=device)
        self._own = self._views(self.tensors)
        towers = {tower: [layer.name for layer in layers] for tower, layers in spec.towers}
        self._with_target = {
            target: frozenset(
                (*held, *(t for t, of in towers.items() if all(n in held for n in shapes if is_member(n, of))))
            )
            for target, held in self._own.targets.items()
        }
        """Tensors and towers by name of the target."""
        self._now = self._own
        self._load(weights)
        self.update_targets()

    def __call__(
        self,
        tower: str,
        *inputs: Tensor,
        target: Target = False,
        noise: Mapping[str, Tensor] | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """The output of a tower for `inputs` `[B, ...]`; `target`: of that target network, without a gradient.

        Target networks share the buffers of modules with the network. `noise [B, size]` by layer: standard normal
        numbers for noisy layers; those without are run without noise. `training`: mode of layers that read
        `is_training`, such as modules; None: training where autograd records.
        """
        tensors = self._seen(tower, target)
        if noise:
            tensors = {**tensors, **{f"{layer}.noise": drawn for layer, drawn in noise.items()}}
        with nullcontext() if training is None else training_mode(training):
            layers, inputs = self._after_reduced(tower, tensors, inputs, 1)
            return forward(layers, tensors, *inputs)

    def unroll(
        self,
        tower: str,
        x: Tensor,
        state: Mapping[str, Tensor],
        reset: Tensor,
        *more: Tensor,
        target: Target = False,
        training: bool | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sequences `x [L, B, ...]` from stored state: see `zmqrl.networks.forward.unroll`."""
        tensors = self._seen(tower, target)
        with nullcontext() if training is None else training_mode(training):
            layers, (x, *more_left) = self._after_reduced(tower, tensors, (x, *more), 2)
            return unroll(layers, tensors, x, state, reset, *more_left)

    def _after_reduced(
        self, tower: str, tensors: Mapping[str, Tensor], inputs: tuple[Tensor, ...], lead: int
    ) -> tuple[tuple[LayerSpec, ...], tuple[Tensor, ...]]:
        """The layers of a tower after those in bfloat16, and their inputs; `lead`: axes of rows."""
        if tower not in self._splits:
            return self.spec.tower(tower), inputs
        reduced, rest, appended = self._splits[tower]
        rows = inputs[0].shape[:lead]
        with torch.autocast(inputs[0].device.type, torch.bfloat16):
            x = forward(reduced, tensors, *(each.flatten(0, lead - 1) for each in inputs[: 1 + appended]))
        return rest, (x.float().reshape(*rows, *x.shape[1:]), *inputs[1 + appended :])

    def parameter(self, name: str, target: Target = False) -> Tensor:
        """A free parameter, or any tensor of the network; `target`: that target of it."""
        return self._seen(name, target)[name]

    def _seen(self, name: str, target: Target) -> Mapping[str, Tensor]:
        """The tensors for a tower or a tensor. ConfigError: it has no such target."""
        if not target:
            return self._now.parameters
        if name not in self._with_target.get(target_name(target), ()):
            known = [other for other, names in self._with_target.items() if name in names]
            raise _unknown_target(f"of {name!r}", target, known)
        return self._now.targets[target_name(target)]

    def step(self, group: str, loss: Tensor) -> None:
        """Move one group by the gradient of the scalar `loss`. Other groups have no gradient from it.

        Raises:
            ConfigError: The group is unknown.
            ValueError: `loss` does not depend on a tensor of the group.
        """
        self._check_group(group, "step")
        layout, settings = self._layouts[group], self._groups[group]
        leaves = [self._now.parameters[name] for name in layout.shapes]
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        used = [grad for grad in grads if grad is not None]
        if len(used) < len(grads):
            unused = [name for name, grad in zip(layout.shapes, grads, strict=True) if grad is None]
            raise ValueError(f"the loss of group {group!r} does not depend on {unused}")
        with torch.no_grad():
            grad = layout.joined(used)
            norm = torch.linalg.vector_norm(grad)
            grad = clipped(grad, norm, settings.max_grad_norm)
            steps = self._now.flat[f"{group}.steps"].add_(1.0)
            state = {part: self._now.flat[f"{group}.{part}"] for part in settings.optimiser.tensors}
            settings.optimiser.step(self._now.flat[f"{group}.parameters"], grad, state, steps, self._rates[group])
        self._norms[f"{NORM}/{group}"] = norm

    def update_targets(self, tau: float | Tensor = 1.0, *groups: str, target: Target | None = None) -> None:
        """Mix a share `tau` of the parameters into targets: those called `target`, of these groups; default: all.

        A share that changes over the run is a tensor `[]` float32 of the batch.

        Raises:
            ConfigError: A group is unknown, or none of these groups has this target.
        """
        for group in groups:
            self._check_group(group, "update_targets")
        chosen = [(name, each) for name in groups or self._groups for each in self._groups[name].targets]
        moved = [(name, each) for name, each in chosen if target is None or each == target_name(target)]
        if not moved and (groups or target is not None):
            raise _unknown_target(
                f"of {', '.join(groups or self._groups)}", target or True, [each for _, each in chosen]
            )
        with torch.no_grad():
            for name, each in moved:
                self._now.flat[f"{name}.{target_part(each)}"].lerp_(self._now.flat[f"{name}.parameters"], tau)

    def _check_group(self, group: str, method: str) -> None:
        """ConfigError names the groups, and the line of the user's that called the method."""
        if group not in self._groups:
            caller = sys._getframe(2)
            place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
            fix = f"groups: {', '.join(self._groups)} ({place})"
            raise ConfigError("no such group", key=("net", method), value=repr(group), fix=fix)

    @contextmanager
    def running(
        self, rates: Mapping[str, Tensor], tensors: Mapping[str, Tensor] | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Around an update: the learning rates `[]` float64 by group; yields the norms that `step` adds.

        With `tensors` the update works on these in place of its own: for an executor that records it.
        """
        self._rates = rates
        self._norms: dict[str, Tensor] = {}
        if tensors is not None:
            self._now = self._views(tensors)
        try:
            yield self._norms
        finally:
            self._now = self._own

    @property
    def groups(self) -> tuple[str, ...]:
        """Names."""
        return tuple(self._groups)

    @property
    def network_names(self) -> tuple[str, ...]:
        """The tensors that are published."""
        return tuple(name for name in self._names if not self.spec.is_learner_only(name))

    def weights(self) -> dict[str, Array]:
        """Copies of the published tensors, C-contiguous float32."""
        return {name: _array(self._own.parameters[name]) for name in self.network_names}

    def state(self) -> dict[str, Array]:
        """The rest: learner-only tensors, targets, moments and steps of the optimisers."""
        private = {PRIVATE + n: _array(self._own.parameters[n]) for n in self._names if self.spec.is_learner_only(n)}
        return private | {name: _array(tensor) for name, tensor in self._held().items()}

    def load_state(self, weights: Weights, state: Weights) -> None:
        """Back to what `weights` and `state` gave, bit for bit.

        Raises:
            ConfigError: `state` is of other optimisers or targets than those of the groups.
        """
        held = self._held()
        found = {name for name in state if name in held or name.startswith(OPTIMISER)}
        if found != held.keys():
            lacking, more = (
                ", ".join(sorted(names)[:MOST_NAMED]) for names in (held.keys() - found, found - held.keys())
            )
            raise ConfigError(
                "the full checkpoint is of groups with other optimisers or targets: "
                f"it lacks {lacking or 'nothing'}, and has {more or 'nothing'} in addition",
                fix="resume with the groups that it was made with, or start a new run with --init-from",
            )
        private = {name.removeprefix(PRIVATE): value for name, value in state.items() if name.startswith(PRIVATE)}
        self._load({**weights, **private})
        with torch.no_grad():
            for name, tensor in held.items():
                tensor.copy_(_tensor(state[name], tensor))

    def _held(self) -> dict[str, Tensor]:
        """Targets and optimisers, under their names in `state`."""
        targets = {
            f"{target_part(target)}.{name}": tensor
            for target, tensors in self._own.targets.items()
            for name, tensor in tensors.items()
            if name not in self._buffers
        }
        parts = (f"{name}.{part}" for name in self._groups for part in (*self._groups[name].optimiser.tensors, "steps"))
        return targets | {OPTIMISER + part: self.tensors[part] for part in parts}

    def _load(self, weights: Weights) -> None:
        with torch.no_grad():
            for name in self._names:
                self._own.parameters[name].copy_(_tensor(weights[name], self._own.parameters[name]))

    def _views(self, tensors: Mapping[str, Tensor]) -> Views:
        """Views of these flat tensors; those that are trained are leaves of autograd."""
        buffers = {name: tensors[f"{BUFFER}{name}"] for name in self._names if name in self._buffers}
        parameters: dict[str, Tensor] = {}
        targets: dict[str, dict[str, Tensor]] = {}
        for name, layout in self._layouts.items():
            for tensor, view in layout.views(tensors[f"{name}.parameters"]).items():
                parameters[tensor] = view.detach().requires_grad_()
            for target in self._groups[name].targets:
                views = layout.views(tensors[f"{name}.{target_part(target)}"])
                targets.setdefault(target, dict(buffers)).update(views)
        return Views(tensors, parameters | buffers, targets)


def _unknown_target(what: str, target: Target, known: Sequence[str]) -> ConfigError:
    names = ", ".join(dict.fromkeys(known)) or "none"
    fix = f"targets {what}: {names}; a Group declares them: target={target!r}"
    return ConfigError(f"no such target {what}", key=("net", "target"), value=repr(target), fix=fix)


def _array(tensor: Tensor) -> Array:
    return np.array(tensor.detach().cpu().numpy())


def _tensor(array: Array, like: Tensor) -> Tensor:
    # Copied into memory that torch has aligned: kernels pick their path by alignment.
    return torch.tensor(np.asarray(array)).reshape(like.shape)
