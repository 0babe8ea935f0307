"""`zmqrl.networks.input` on torch tensors: the same numbers, for learners."""

from __future__ import annotations

from zmqrl.loading import Tensor, torch
from zmqrl.networks.input import InputPart, InputSpec
from zmqrl.spaces import SpaceSpec, view


class TorchInput:
    """Observations as they are stored to the network's input. Without state; autograd is not needed."""

    def __init__(self, spec: InputSpec, observation: SpaceSpec) -> None:
        self._spec, self._observation = spec, observation

    def __call__(self, obs: Tensor, floats: Tensor | None = None) -> Tensor:
        """float32 `[B, *spec.shape]` for `obs [B, *observation.shape]`, on its device.

        `floats [B, statistics_size]` float32 are used in place of the float parts: those that are normalised.
        """
        spec = self._spec
        columns = [self._column(part, obs, floats) for part in spec.parts]
        flat = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
        return flat.reshape(obs.shape[0], *spec.shape)

    def _column(self, part: InputPart, obs: Tensor, floats: Tensor | None) -> Tensor:
        if floats is not None and part.statistics >= 0:
            values = floats[:, part.statistics : part.statistics + part.size]
            return self._ordered(values.reshape(obs.shape[0], *part.part.space.shape))
        values = view(obs, self._observation, part.part)
        choices = part.part.space.choices
        if choices:
            indices = values.reshape(obs.shape[0], -1).unbind(1)
            one_hot = [torch.nn.functional.one_hot(index, n) for index, n in zip(indices, choices, strict=True)]
            return torch.cat(one_hot, 1).float()
        numbers = self._ordered(values.float())
        return numbers if part.divisor == 1 else numbers / part.divisor

    def _ordered(self, values: Tensor) -> Tensor:
        return (values.permute(0, 3, 1, 2) if self._spec.channels_last else values).flatten(1)
