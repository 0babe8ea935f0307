"""The features of a row, followed by those of a second input, such as an action: for critics, in the learner alone."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.loading import Tensor
from zmqrl.networks.kinds.base import LayerKind
from zmqrl.networks.spec import LayerSpec


class Concat(LayerKind):
    """No arrays. `inputs` counts the features of the first input, `outputs` those of both."""

    takes_input = True

    def numpy(self, spec: LayerSpec, rows: int) -> None:
        del spec, rows

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        raise TypeError("a layer of kind 'concat' needs a second input, which zmqrl.networks.forward.forward takes")
