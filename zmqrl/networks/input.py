"""What a network sees of an observation: one description, for the workers that act and the learner that trains.

A box is its numbers as float32, a discrete part is one-hot, and parts follow each other. A part `action_mask` is left
out. The torch form is `zmqrl.networks.torch_input`.
"""

from __future__ import annotations

import math

from msgspec import Struct

from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.loading import np
from zmqrl.spaces import ACTION_MASK, Array, PartSpec, SpaceSpec, ranges, view
from zmqrl.types import Weights

PIXEL = 255
"""Divisor of image parts of a composite observation. The layer `scale` divides an observation that is one image."""
CHANNELS = (1, 3, 4)
"""Sizes of an axis that is taken for the channels of an image."""
OBS_STATISTICS = ("obs_mean", "obs_scale")
"""Arrays of the weights where observations are normalised."""


class InputPart(Struct, frozen=True):
    """A part of an observation and its place in the flat input."""

    part: PartSpec
    begin: int
    size: int
    """Numbers of the input."""
    divisor: int = 1
    statistics: int = -1
    """Begin in `obs_mean` and `obs_scale` of a part of floats; -1: it is never normalised."""


class InputSpec(Struct, frozen=True):
    """The input of a network, and how it is made."""

    parts: tuple[InputPart, ...]
    shape: tuple[int, ...]
    """Shape of the input of one row: that of a single box, else flat."""
    channels_last: bool = False
    """Observations are images `[height, width, channels]`; the input is `[channels, height, width]`."""

    @property
    def size(self) -> int:
        """Numbers of one row."""
        return math.prod(self.shape)

    @property
    def statistics_size(self) -> int:
        """Entries of `obs_mean` and `obs_scale`: the numbers of all float parts."""
        return sum(part.size for part in self.parts if part.statistics >= 0)

    @property
    def is_plain(self) -> bool:
        """Whether the input is the observation, as float32: that of a box."""
        part = self.parts[0].part
        return not self.channels_last and not part.path and not part.space.choices

    def floats(self, obs: Array, observation: SpaceSpec) -> Array:
        """The numbers of all float parts of `obs [..., *observation.shape]`, side by side: `[..., statistics_size]`."""
        lead = obs.shape[: obs.ndim - len(observation.shape)]
        found = [view(obs, observation, part.part).reshape(*lead, -1) for part in self.parts if part.statistics >= 0]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=-1)

    def statistics(self, weights: Weights) -> dict[str, Array]:
        """`obs_mean` and `obs_scale` of `weights`, float64 `[statistics_size]`, in the order of the input.

        Learners publish them in the order of the observations, that of `floats`.
        """
        return {name: self._ordered(np.array(weights[name], np.float64).reshape(-1)) for name in OBS_STATISTICS}

    def _ordered(self, numbers: Array) -> Array:
        if not (self.channels_last and self.statistics_size):
            return numbers
        channels, height, width = self.shape
        return numbers.reshape(height, width, channels).transpose(2, 0, 1).reshape(-1)


def network_input(observation: SpaceSpec, section: NetworkSection | None = None) -> InputSpec:
    """The input of a network for observations of a space; without `section` no image is transposed.

    Raises:
        ConfigError: The space has no part besides `action_mask`, or `network.image_layout` does not fit.
    """
    parts: list[InputPart] = []
    begin = statistics = 0
    scaled = section is None or section.scale_images
    for leaf in observation.leaves():
        if leaf.name == ACTION_MASK:
            continue
        space = leaf.space
        size = sum(space.choices) or math.prod(space.shape)
        is_float = not space.choices and np.dtype(space.dtype).kind == "f"
        divisor = PIXEL if leaf.name and scaled and space.is_image else 1
        parts.append(InputPart(leaf, begin, size, divisor, statistics if is_float else -1))
        begin += size
        statistics += size if is_float else 0
    if not begin:
        raise ConfigError(
            f"its observations have no part besides {ACTION_MASK!r}: the network has no input", key=("env", "id")
        )
    if observation.kind != "box":
        return InputSpec(tuple(parts), (begin,))
    last = section is not None and section.kind == "cnn" and _channels_last(section, observation.shape)
    height, width, channels = observation.shape if last else (0, 0, 0)
    return InputSpec(tuple(parts), (channels, height, width) if last else observation.shape, last)


def _channels_last(section: NetworkSection, shape: tuple[int, ...]) -> bool:
    if len(shape) != 3:
        return False
    if section.image_layout == "auto":
        return shape[-1] in CHANNELS and shape[0] not in CHANNELS
    return section.image_layout == "hwc"


class NumpyInput:
    """`obs [rows, ...]` to float32 `[rows, size]`, in buffers of its own: no allocation per step for floats."""

    def __init__(
        self, spec: InputSpec, observation: SpaceSpec, rows: int, normalise: bool = False, clip: float = 10.0
    ) -> None:
        self._spec, self._observation = spec, observation
        self._out = np.zeros((rows, spec.size), np.float32)
        columns = (self._out[:, part.begin : part.begin + part.size] for part in spec.parts)
        make = _Channels if spec.channels_last else _InputPart
        self._parts = [
            make(part, column, clip if normalise else None) for part, column in zip(spec.parts, columns, strict=True)
        ]
        self._normalise = normalise

    def load(self, weights: Weights) -> None:
        """Take `obs_mean` and `obs_scale` when observations are normalised."""
        if self._normalise:
            mean, scale = self._spec.statistics(weights).values()
            for part in self._parts:
                part.load(mean, scale)

    def take(self, obs: Array) -> Array:
        """The network's input for `obs`; lives until the next call and may be changed in place."""
        for part in self._parts:
            part.take(view(obs, self._observation, part.spec.part))
        return self._out


class _InputPart:
    def __init__(self, spec: InputPart, out: Array, clip: float | None) -> None:
        self.spec, self._out = spec, out
        self._rows, self._size = out.shape
        self._clip = clip if spec.statistics >= 0 else None
        self._exact = np.zeros(out.shape if self._clip is not None else (0, 0), np.float64)
        self._mean: Array = np.zeros(self._size)
        self._scale: Array = np.ones(self._size)
        self._begins = np.array([begin for begin, _ in ranges(spec.part.space.choices)], np.int64)
        self._row = np.arange(self._rows)[:, None]

    def load(self, mean: Array, scale: Array) -> None:
        """The part's entries of the statistics."""
        begin = self.spec.statistics
        if begin >= 0:
            self._mean, self._scale = mean[begin : begin + self._size], scale[begin : begin + self._size]

    def take(self, values: Array) -> None:
        """Write the part's columns."""
        if self.spec.part.space.choices:
            self._out.fill(0.0)
            self._out[self._row, values.reshape(self._rows, -1) + self._begins] = 1.0
            return
        flat = self._flat(values)
        if self._clip is not None:
            exact = self._exact
            np.subtract(flat, self._mean, exact)
            np.multiply(exact, self._scale, exact)
            np.maximum(exact, -self._clip, out=exact)
            np.minimum(exact, self._clip, out=exact)
            flat = exact
        np.copyto(self._out, flat)
        if self.spec.divisor != 1:
            np.divide(self._out, np.float32(self.spec.divisor), self._out)

    def _flat(self, values: Array) -> Array:
        return values.reshape(self._rows, self._size)


class _Channels(_InputPart):
    def _flat(self, values: Array) -> Array:
        """Flat values in the order channels, height, width."""
        return values.transpose(0, 3, 1, 2).reshape(self._rows, self._size)
