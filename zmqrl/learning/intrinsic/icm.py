"""The intrinsic curiosity module (ICM, Pathak et al. 2017, arXiv 1705.05363)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from zmqrl.config.sections import NetworkSection
from zmqrl.learning.executor import Batch
from zmqrl.learning.intrinsic.base import Intrinsic
from zmqrl.learning.net import Net
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.input import network_input
from zmqrl.networks.spec import LayerSpec
from zmqrl.networks.torch_input import TorchInput
from zmqrl.ops.policies import multi_categorical
from zmqrl.types import EnvSpec, SpaceSpec


class ICM(Intrinsic):
    """The error with which a model predicts features of the next observation.

    The features are those with which another model finds the action.
    """

    def __init__(self, network: NetworkSection, env: EnvSpec, features: int = 64, beta: float = 0.2) -> None:
        """`features`: their number. `beta`: share of the forward model in the loss."""
        super().__init__(network, env)
        self.features, self.beta = features, beta
        self._action_input = network_input(env.action)

    def towers(self) -> Mapping[str, tuple[LayerSpec, ...]]:
        """`features` has the hidden layers of the section `network`; the models have one of twice the features."""
        features, actions = self.features, self._action_input.size
        hidden = NetworkSection(hidden=(2 * features,), activation="relu")
        pair, step = (SpaceSpec("box", (size,), "float32") for size in (2 * features, features + actions))
        section, obs = self.network_section, self.env.observation
        return {
            "features": tower("features", section, obs, features, output_gain=1.0),
            "inverse": tower("inverse", hidden, pair, actions, output_gain=1.0),
            "forward": tower("forward", hidden, step, features, output_gain=1.0),
        }

    def rewards(self, net: Net, rows: Batch) -> Tensor:
        """Squared errors of the forward model (equation 6 with eta 1)."""
        return self._forward(net, rows, *(net("features", rows[name]) for name in ("obs", "next_obs")))

    def losses(self, net: Net, rows: Batch) -> Tensor:
        """Terms of equation 7 other than the policy's."""
        now, following = (net("features", rows[name]) for name in ("obs", "next_obs"))
        predicted, choices = net("inverse", torch.cat((now, following), 1)), self.env.action.choices
        if choices:
            log_prob, _ = multi_categorical(predicted, rows["action"].reshape(-1, len(choices)), choices)
            inverse = -log_prob
        else:
            inverse = 0.5 * (predicted - rows["action"].reshape(-1, math.prod(self.env.action.shape))).square().sum(1)
        return (1.0 - self.beta) * inverse + self.beta * self._forward(net, rows, now, following)

    def _forward(self, net: Net, rows: Batch, now: Tensor, following: Tensor) -> Tensor:
        action = TorchInput(self._action_input, self.env.action)(rows["action"])
        return 0.5 * (net("forward", torch.cat((now, action), 1)) - following).square().sum(1)
