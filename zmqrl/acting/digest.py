"""A digest of what acting computes on this machine: two hosts with the same one give a vector env the same bits.

BLAS and numpy choose their kernels by processor, and versions of either round differently. Weights and observations
are fixed and made without a random generator of numpy; sizes span the choices: one row and many, narrow and wide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np

from zmqrl.acting.base import ActingContext, ActingNoise, Place, Policy
from zmqrl.acting.numpy_policy import NumpyPolicy
from zmqrl.acting.spec import ActingSpec, ActingState
from zmqrl.acting.state import zero_state
from zmqrl.installed import installed
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, ColumnSpec, SpaceSpec

STEPS = 2
ROWS = (1, 5, 32)
SIZES = ((4, 64, 2), (17, 256, 6))
"""Observation, hidden layers, action."""
OBS_SCALE = 3.0
DIGITS = 16
CPUINFO = Path("/proc/cpuinfo")
LOG_PROB = ColumnSpec("log_prob", "float32", ())


@cache
def acting_digests() -> Mapping[str, str]:
    """Digests by `ActingSpec.runtime`, of this machine with this Python and environment. A few milliseconds, once.

    That of `torch` is made without torch: its version, the processor, and what numpy computes.
    """
    found = hashlib.sha256()
    for spec in _specs():
        policy = NumpyPolicy(spec)
        policy.load(_weights(spec), {})
        for array in chain.from_iterable(_results(policy, spec, rows) for rows in ROWS):
            found.update(np.ascontiguousarray(array).tobytes())
    numpy = found.hexdigest()[:DIGITS]
    found.update(f"{installed('torch') or ''} {_processor()}".encode())
    return {"numpy": numpy, "torch": found.hexdigest()[:DIGITS]}


def _specs() -> Iterator[ActingSpec]:
    for inputs, hidden, actions in SIZES:
        box = SpaceSpec("box", (inputs,), "float32")
        discrete = SpaceSpec("discrete", (), "int64", n=actions)
        bounded = SpaceSpec("box", (actions,), "float32", low=(-2.0,) * actions, high=(2.0,) * actions)
        first = LayerSpec("linear", "0", inputs, hidden), LayerSpec("tanh")
        core = hidden // 4
        yield ActingSpec(
            (*first, LayerSpec("gru", "core", hidden, core), *_last(core, actions)),
            "categorical", discrete, box, extras=(LOG_PROB,), normalise_obs=True, state=(ActingState("core", core),),
        )  # fmt: skip
        normed = (LayerSpec("layernorm", "norm", hidden, hidden), LayerSpec("gelu"))
        yield ActingSpec(
            (*first, *normed, LayerSpec("silu"), *_last(hidden, actions)),
            "gaussian", bounded, box, extras=(LOG_PROB,), arrays=("log_std",),
        )  # fmt: skip
        yield ActingSpec((*first, *_last(hidden, 2 * actions)), "squashed_gaussian", bounded, box)


def _last(hidden: int, outputs: int) -> tuple[LayerSpec, ...]:
    return LayerSpec("linear", "1", hidden, 64), LayerSpec("relu"), LayerSpec("linear", "2", 64, outputs)


def _results(policy: Policy, spec: ActingSpec, rows: int) -> Iterator[Array]:
    """Actions, extras and recurrent state of `STEPS` steps, in which each step follows from the one before."""
    size = spec.action.n or spec.action.shape[0]
    noise = ActingNoise(_spread((STEPS, rows, 2)) % 1.0, _spread((STEPS, rows, size)))
    extras = {column.name: np.zeros((STEPS, rows), np.float32) for column in spec.extras}
    context = ActingContext(noise, extras, Place.of(0, 1, rows), zero_state(spec.state, rows))
    obs = (_spread((rows, *spec.observation.shape)) * OBS_SCALE).astype(np.float32)
    for t in range(STEPS):
        actions = policy.act(obs, t, context)
        yield actions
        obs += actions.reshape(rows, -1).sum(axis=1, keepdims=True, dtype=np.float32)
    yield from chain(extras.values(), context.state.values())


def _weights(spec: ActingSpec) -> dict[str, Array]:
    shapes = {name: shape for layer in spec.layers for name, shape in layer_kind(layer.kind).shapes(layer).items()}
    weights = {name: (_spread(shape) / shape[-1] ** 0.5).astype(np.float32) for name, shape in shapes.items()}
    size = spec.observation.shape[0]
    weights["obs_mean"], weights["obs_scale"] = _spread((size,)), 1.0 + _spread((size,)) ** 2
    weights["log_std"] = _spread(spec.action.shape).astype(np.float32)
    return weights


def _spread(shape: tuple[int, ...]) -> Array:
    """float64 in [-1, 1), by exact operations alone: the same on every machine."""
    count = int(np.prod(shape, dtype=np.int64))
    spread: Array = (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(1 << 32)) / 2.0**31
    return (spread - 1.0).reshape(shape)


def _processor() -> str:
    """Model and features of the processor, by which torch chooses its kernels."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return "\n".join(next((line for line in lines if line.startswith(key)), "") for key in ("model name", "flags"))
