"""Algorithms whose network cannot be made."""

from __future__ import annotations

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.ppo import PPO
from zmqrl.config.codec import replace
from zmqrl.networks.spec import LayerSpec, NetworkSpec


class UnknownLayer(PPO):
    def network(self) -> NetworkSpec:
        spec = super().network()
        return NetworkSpec((*spec.towers, ("other", (LayerSpec("norm", "other.0", 4, 4),))), spec.parameters)


class TorchOnly(PPO):
    def acting(self) -> ActingSpec:
        layers = (LayerSpec("conv", "actor.0", 1, 1, 1), *super().acting().layers[1:])
        return replace(super().acting(), layers=layers, runtime="numpy")
