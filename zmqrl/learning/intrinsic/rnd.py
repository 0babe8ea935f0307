"""Random network distillation (RND, Burda et al. 2018, arXiv 1810.12894)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from zmqrl.config.sections import NetworkSection
from zmqrl.learning.executor import Batch
from zmqrl.learning.intrinsic.base import Intrinsic
from zmqrl.learning.net import Net
from zmqrl.loading import Tensor
from zmqrl.networks.build import tower
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import EnvSpec


class RND(Intrinsic):
    """The error with which a trained network predicts the outputs of a random one for the next observation."""

    fixed: ClassVar[frozenset[str]] = frozenset({"random"})

    def __init__(self, network: NetworkSection, env: EnvSpec, features: int = 64) -> None:
        """`features`: outputs of both networks."""
        super().__init__(network, env)
        self.features = features

    def towers(self) -> Mapping[str, tuple[LayerSpec, ...]]:
        """Towers with the hidden layers of the section `network`."""
        section, obs = self.network_section, self.env.observation
        return {name: tower(name, section, obs, self.features, output_gain=1.0) for name in ("predictor", "random")}

    def rewards(self, net: Net, rows: Batch) -> Tensor:
        """Mean squared errors (section 2.2)."""
        x = rows["next_obs"]
        return (net("predictor", x) - net("random", x).detach()).square().mean(1)

    def losses(self, net: Net, rows: Batch) -> Tensor:
        return self.rewards(net, rows)
