"""value + advantage - mean(advantage), Wang et al. 2016, equation 9; for each atom as in Hessel et al. 2018."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from zmqrl.errors import ConfigError
from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.kinds.base import LayerKind, NoisyLayer, NumpyLayer
from zmqrl.networks.kinds.linear import Linear
from zmqrl.networks.kinds.noisy import Noisy
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights

LINEAR, NOISY = Linear(), Noisy()


class Dueling(LayerKind):
    """Two parts, `<name>.value` with `atoms` outputs and `<name>.advantage` with `outputs`, which have the arrays.

    The outputs are `atoms` numbers of each action, one action after the other. For each atom the mean over the actions
    is subtracted. Options: `atoms` (1); `noisy` (0; 1: both parts are layers of kind `noisy`, whose noise is side by
    side), and the `sigma` of these.
    """

    defaults = MappingProxyType({"atoms": 1.0, "noisy": 0.0, **NOISY.defaults})

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        return {name: shape for part in _parts(spec) for name, shape in self._kind(spec).shapes(part).items()}

    def initial(self, spec: LayerSpec, generator: np.random.Generator) -> dict[str, Array]:
        kind = self._kind(spec)
        return {name: array for part in _parts(spec) for name, array in kind.initial(part, generator).items()}

    def noise_size(self, spec: LayerSpec) -> int:
        return sum(self._kind(spec).noise_size(part) for part in _parts(spec))

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        value, advantage = _parts(spec)
        shape = (rows, spec.outputs // value.outputs, value.outputs)
        if not self.option(spec, "noisy"):
            return _NumpyDueling(LINEAR.numpy(value, rows), LINEAR.numpy(advantage, rows), shape)
        own = NOISY.noise_size(value)
        return _NumpyNoisyDueling(spec.name, NOISY.numpy(value, rows), NOISY.numpy(advantage, rows), shape, own)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        kind, parts = self._kind(spec), _parts(spec)
        if (noise := tensors.get(f"{spec.name}.noise")) is not None:
            drawn = torch.split(noise, [kind.noise_size(part) for part in parts], 1)
            tensors = {**tensors, **{f"{part.name}.noise": own for part, own in zip(parts, drawn, strict=True)}}
        value, advantage = (kind.torch(part, tensors, x) for part in parts)
        atoms = parts[0].outputs
        by_action = advantage.reshape(x.shape[0], spec.outputs // atoms, atoms)
        return (value.unsqueeze(1) + by_action - by_action.mean(1, keepdim=True)).flatten(1)

    def _kind(self, spec: LayerSpec) -> LayerKind:
        return NOISY if self.option(spec, "noisy") else LINEAR


@lru_cache(maxsize=64)
def _parts(spec: LayerSpec) -> tuple[LayerSpec, LayerSpec]:
    """Value and advantage; `ConfigError` when the outputs are not `atoms` for each action."""
    options = {**Dueling.defaults, **dict(spec.options)}
    atoms = int(options["atoms"])
    if atoms < 1 or spec.outputs % atoms:
        what = f"{spec.outputs} outputs of layer {spec.name!r} are not {atoms} atoms for each action"
        raise ConfigError(what, fix="set outputs to a multiple of the option atoms, which is at least 1")
    value, advantage = (
        LayerSpec(
            "", f"{spec.name}.{part}", spec.inputs, outputs, gain=spec.gain, options=(("sigma", options["sigma"]),)
        )
        for part, outputs in (("value", atoms), ("advantage", spec.outputs))
    )
    return value, advantage


class _NumpyDueling(NumpyLayer):
    def __init__(self, value: NumpyLayer, advantage: NumpyLayer, shape: tuple[int, int, int]) -> None:
        """`shape`: rows, actions, atoms."""
        self._value, self._advantage, self._shape = value, advantage, shape
        rows, actions, atoms = shape
        self._share = np.float32(1.0 / actions)
        self._mean = np.zeros((rows, 1, atoms), np.float32)

    def load(self, weights: Weights) -> None:
        self._value.load(weights)
        self._advantage.load(weights)

    def forward(self, x: Array) -> Array:
        out, mean = self._advantage.forward(x), self._mean
        by_action = out.reshape(self._shape)
        np.add.reduce(by_action, axis=1, keepdims=True, out=mean)
        np.multiply(mean, self._share, mean)
        offset = self._value.forward(x).reshape(mean.shape)
        np.subtract(offset, mean, offset)
        np.add(by_action, offset, by_action)
        return out


class _NumpyNoisyDueling(_NumpyDueling, NoisyLayer):
    def __init__(
        self, name: str, value: NoisyLayer, advantage: NoisyLayer, shape: tuple[int, int, int], own: int
    ) -> None:
        """`own`: numbers of noise of the value."""
        super().__init__(value, advantage, shape)
        self.name, self._noisy, self._own = name, (value, advantage), own

    def set_noise(self, noise: Array | None) -> None:
        value, advantage = self._noisy
        value.set_noise(None if noise is None else noise[:, : self._own])
        advantage.set_noise(None if noise is None else noise[:, self._own :])
