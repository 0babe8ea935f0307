"""The optional pair `get_state` and `set_state` of a user's env, as plain bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from zmqrl.errors import ConfigError
from zmqrl.types import BYTES, Array, StateSpec


def state_spec(env_id: str, env: Any) -> StateSpec | None:
    """What its states are like, from one after a reset; None when `env` has no such pair. ConfigError when unusable."""
    if not all(callable(getattr(env, name, None)) for name in ("get_state", "set_state")):
        return None
    env.reset(seed=0)
    state = env.get_state()
    if isinstance(state, (bytes, bytearray, memoryview)):
        return StateSpec(BYTES, (len(bytes(state)),))
    if isinstance(state, np.ndarray) and state.dtype.kind in "fiub":
        return StateSpec(state.dtype.str, state.shape)
    raise ConfigError(
        f"env.id: {env_id!r}: get_state returned {type(state).__name__}; return bytes or an array of numbers, "
        "always of the same size, with all state of the env, random number generators included"
    )


def packed(state: Any, spec: StateSpec) -> Array:
    """uint8 `[bytes]`. ValueError when it is not of the spec."""
    if spec.dtype == BYTES:
        found: Array = np.frombuffer(bytes(state), np.uint8)
        like = found.shape == spec.shape
    else:
        array = np.ascontiguousarray(state)
        like = array.shape == spec.shape and array.dtype.str == spec.dtype
        found = np.frombuffer(array.tobytes(), np.uint8)
    if not like:
        raise ValueError(f"get_state returned another size or type than after the first reset ({spec})")
    return found


def unpacked(state: Array, spec: StateSpec) -> Any:
    """What `get_state` returned."""
    if spec.dtype == BYTES:
        return state.tobytes()
    return np.frombuffer(state.tobytes(), spec.dtype).reshape(spec.shape).copy()
