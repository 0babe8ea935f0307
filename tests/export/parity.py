"""Observations at random, and an exported policy behind the interface of `zmqrl.load_policy`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from zmqrl.spaces import PartSpec, SpaceSpec
from zmqrl.types import Weights

ROWS = 5


def perturbed(weights: Weights, seed: int) -> Weights:
    """Other weights: no two actions are equally good, and normalisation has an effect."""
    generator = np.random.default_rng(seed)
    return {
        name: np.asarray(array + 0.3 * np.abs(generator.standard_normal(array.shape)), array.dtype)
        if name.startswith("obs_")
        else np.asarray(array + 0.1 * generator.standard_normal(array.shape), array.dtype)
        for name, array in weights.items()
    }


def observations(space: SpaceSpec, rows: int, generator: np.random.Generator) -> Any:
    """A batch of observations as the env gives them."""
    if not space.parts:
        return _values(next(space.leaves()), rows, generator)
    root: dict[Any, Any] = {}
    for part in space.parts:
        at = root
        for key in part.path[:-1]:
            at = at.setdefault(key, {})
        at[part.path[-1]] = _values(part, rows, generator)
    return root


def row_of(obs: Any, row: int) -> Any:
    """One observation of a batch."""
    return {key: row_of(value, row) for key, value in obs.items()} if isinstance(obs, dict) else obs[row]


def _values(part: PartSpec, rows: int, generator: np.random.Generator) -> Any:
    space = part.space
    if space.kind == "discrete":
        return space.start + generator.integers(0, space.n, rows)
    if space.kind == "multi_discrete":
        flat = generator.integers(0, space.nvec, (rows, len(space.nvec))) + np.array(space.starts or 0)
        return flat.reshape(rows, *space.env_shape).astype(space.env_dtype)
    shape = (rows, *space.shape)
    if part.name == "action_mask":
        mask = generator.integers(0, 2, shape)
        mask[:, 0] = 1
        return mask.astype(space.dtype)
    if np.dtype(space.dtype).kind == "f":
        return generator.standard_normal(shape).astype(space.dtype)
    if space.is_image:  # lines of unequal brightness: else all images look alike
        return (generator.random((rows, shape[1], 1, 1)) * generator.integers(0, 256, shape)).astype(space.dtype)
    return generator.integers(0, 2, shape).astype(space.dtype)


class OnnxPolicy:
    """A model in onnxruntime; its state between two calls."""

    def __init__(self, folder: Path) -> None:
        self.session = onnxruntime.InferenceSession(folder / "policy.onnx", providers=["CPUExecutionProvider"])
        self.names = [entry.name for entry in self.session.get_inputs()]
        self._sizes = {e.name: e.shape[1] for e in self.session.get_inputs() if e.name.startswith("state.")}
        self._rewarded = "previous_reward" in self.names
        self._state: dict[str, Any] = {}

    def reset(self, ended: Any = None) -> None:
        self._state = {} if ended is None else self._state
        for array in self._state.values():
            array[ended] = 0.0

    @property
    def state(self) -> dict[str, Any]:
        return {name.removeprefix("state."): array for name, array in self._state.items()}

    def __call__(self, obs: Any, reward: Any = None) -> Any:
        feeds = dict(_leaves(obs)) if isinstance(obs, dict) else {"obs": obs}
        rows = len(next(iter(feeds.values())))
        if self._rewarded:
            feeds["previous_reward"] = np.asarray(reward, np.float32)
        self._state = self._state or {name: np.zeros((rows, size), np.float32) for name, size in self._sizes.items()}
        action, *states = self.session.run(None, {**feeds, **self._state})
        outputs = [entry.name.removeprefix("next_") for entry in self.session.get_outputs()[1:]]
        self._state = dict(zip(outputs, states, strict=True))
        return action


def _leaves(obs: Any, path: tuple[str, ...] = ()) -> Any:
    for key, value in obs.items():
        inner = (*path, str(key))
        if isinstance(value, dict):
            yield from _leaves(value, inner)
        else:
            yield ".".join(inner), value


def numpy_policy(folder: Path) -> Any:
    """`Policy` of the exported `policy.py`."""
    spec = importlib.util.spec_from_file_location("exported_policy", folder / "policy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Policy(folder)
