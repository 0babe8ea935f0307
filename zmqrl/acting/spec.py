"""What a worker needs to know to act: plain data, no algorithm, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zmqrl.networks.input import InputSpec
from zmqrl.networks.spec import LayerSpec as LayerSpec
from zmqrl.networks.spec import NetworkSpec as NetworkSpec
from zmqrl.types import ColumnSpec, SpaceSpec


@dataclass(frozen=True)
class ActingSpec:
    """How observations become actions.

    `layers` end in logits (categorical), q values (epsilon_greedy) or the mean (gaussian and the
    other continuous heads). `head` is a name of `zmqrl.acting.heads`, or `a.b:Head` of a torch-free module.
    `extras` are the columns that the head fills alongside `action`, each `[T, N, ...]`.
    With `normalise_obs` the weights hold `obs_mean` and `obs_scale` (float64, flat, of the float parts): the network
    sees clip((obs - obs_mean) * obs_scale, -obs_clip, obs_clip) of these parts as float32.
    """

    layers: tuple[LayerSpec, ...]
    head: str
    action: SpaceSpec
    observation: SpaceSpec
    extras: tuple[ColumnSpec, ...] = ()
    normalise_obs: bool = False
    obs_clip: float = 10.0
    arrays: tuple[str, ...] = ()
    """Names of further arrays the head needs, such as `log_std`."""
    runtime: Literal["numpy", "torch"] = "numpy"
    input: InputSpec | None = None
    """What the network sees of an observation; None: `zmqrl.networks.input.network_input(observation)`."""
