"""Recurrent state of acting as data: what a spec promises, its columns of a segment, and its beginning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from zmqrl.acting.spec import ActingSpec, ActingState, NoiseSpec, previous_size
from zmqrl.errors import ConfigError
from zmqrl.loading import np
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import ACTING_STATE, ACTING_STATE_END, FIXED_COLUMNS, OTHER_COLUMNS, PREVIOUS, Array, ColumnSpec


def zero_state(states: Iterable[ActingState], rows: int) -> dict[str, Array]:
    """New state for `rows` envs whose episodes begin."""
    return {state.name: np.zeros((rows, state.size), np.float32) for state in states}


def state_columns(spec: ActingSpec, steps: int, envs: int) -> tuple[ColumnSpec, ...]:
    """The columns of a segment that hold recurrent state; none for a spec without."""
    stored = steps // (spec.state_every or steps)
    return tuple(
        ColumnSpec(prefix + state.name, "float32", (count, envs, state.size))
        for prefix, count in ((ACTING_STATE, stored), (ACTING_STATE_END, 1))
        for state in spec.state
    )


def unpack_state(rows: Iterable[Array | None], state: Mapping[str, Array]) -> None:
    """Fill `state` from one row `[S]` per env, all states side by side as in a record; None: its episode begins."""
    for env, row in enumerate(rows):
        begin = 0
        for array in state.values():
            array[env] = 0.0 if row is None else row[begin : begin + array.shape[1]]
            begin += array.shape[1]


def noise_of(layers: Iterable[LayerSpec]) -> tuple[NoiseSpec, ...]:
    """What `ActingSpec.noise` declares for the layers among these whose noise workers draw, under their names."""
    kinds = ((layer, layer_kind(layer.kind)) for layer in layers)
    sizes = ((layer.name, kind.noise_size(layer)) for layer, kind in kinds if kind.noise_in_acting)
    return tuple(NoiseSpec(name, size) for name, size in sizes if size)


def state_of(layers: Iterable[LayerSpec]) -> tuple[ActingState, ...]:
    """What `ActingSpec.state` declares for the recurrent layers among these, under their names."""
    sizes = ((layer.name, layer_kind(layer.kind).state_size(layer)) for layer in layers)
    return tuple(ActingState(name, size) for name, size in sizes if size)


def check_acting(spec: ActingSpec, steps: int) -> None:
    """Check what a spec declares of noise, options and state for segments of `steps` rows.

    Raises:
        ConfigError: Names the field and what would be valid.
    """
    for what, names in (("noise", [n.name for n in spec.noise]), ("state", [s.name for s in spec.state])):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"acting: {what} {twice} is declared more than once; each needs a name of its own")
    for extra in spec.extras:
        reserved = extra.name in (*FIXED_COLUMNS, *OTHER_COLUMNS)
        if reserved or extra.name == PREVIOUS or extra.name.startswith((ACTING_STATE, ACTING_STATE_END)):
            raise ConfigError(
                f"acting: extra {extra.name!r} has the name of a column of {'every segment' if reserved else 'state'}; "
                "use another name"
            )
    for name, size in [(n.name, n.size) for n in spec.noise] + [(s.name, s.size) for s in spec.state]:
        if size < 1:
            raise ConfigError(f"acting: {name!r} has size {size}: noise and state have a size of at least 1")
    for name, value in spec.options.items():
        if not math.isfinite(value):
            raise ConfigError(f"acting: option {name!r} of head {spec.head!r} is {value}: must be a finite number")
    if spec.state_every < 0 or (spec.state_every and steps % spec.state_every):
        raise ConfigError(
            f"is not a multiple of {spec.state_every}, the rows between two stored states (state_every "
            "of the algorithm's acting)",
            key=("env", "segment_steps"),
            value=str(steps),
            is_subject=True,
            fix="0 stores the first only",
        )
    _check_cores(spec)
    _check_previous(spec)
    declared = {noise.name: noise for noise in spec.noise}
    for needed in noise_of(spec.layers):
        if declared.get(needed.name) != needed:
            what, found = f"layer {needed.name!r} needs {needed}", str(declared.get(needed.name, "no noise"))
            raise ConfigError(what, key=("acting",), value=found, fix="use noise=noise_of(layers)")


def _check_previous(spec: ActingSpec) -> None:
    """A layer that appends an input has only the state `previous` to append, and nothing else reads this state."""
    appended = [layer.outputs - layer.inputs for layer in spec.layers if layer_kind(layer.kind).takes_input]
    declared = any(state.name == PREVIOUS for state in spec.state)
    if declared != spec.previous or appended != [previous_size(spec.action)] * spec.previous:
        size = previous_size(spec.action)
        raise ConfigError(
            f"the state {PREVIOUS!r} is that of previous=True, and one layer of kind 'concat' appends its {size} "
            f"numbers; the layers append {appended or 'nothing'}",
            key=("acting", "previous"),
            value=str(spec.previous),
            fix="use previous=True with tower(..., joined=previous_size(action)), or leave out both",
        )


def _check_cores(spec: ActingSpec) -> None:
    sizes = {state.name: state.size for state in spec.state}
    for needed in state_of(spec.layers):
        if sizes.get(needed.name) != needed.size:
            found = f"has size {sizes[needed.name]}" if needed.name in sizes else "is not declared"
            what = f"layer {needed.name!r} has {needed.size} numbers of state, and it {found}"
            raise ConfigError(what, key=("acting",), fix=f"in acting(): state=state_of(layers), which has {needed}")
