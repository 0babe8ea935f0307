"""What MPO and V-MPO share: samples weighted by their values, and bounds of the change of a policy.

Dual variables keep the bounds: a temperature, and a multiplier of each divergence. They are positive, and the logarithm
of each is a free parameter of the network, which only the learner has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from annotated_types import Gt

from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.learning import Group, Net
from zmqrl.loading import Tensor, torch
from zmqrl.networks.spec import NetworkSpec

Above0: TypeAlias = Annotated[float, Gt(0)]
DUALS, TEMPERATURE = "duals", "log_temperature"
"""Group of the dual variables; parameter of the temperature. Those of multipliers are `log_alpha_<divergence>`."""
GAUSSIAN = ("mean", "deviation")
"""Divergences of continuous policies; fields of `DualConfig` have these names."""


@dataclass(frozen=True)
class DualConfig:
    """Bounds of the divergence of a new policy from the old one, and what keeps them."""

    __pydantic_config__ = FORBID_UNKNOWN

    epsilon: Above0 = 0.1
    """Bound of the KL divergence of the weighted samples from those of the old policy, in nats (E-step)."""
    epsilon_mean: Above0 = 0.005
    """Continuous actions: bound of the KL divergence of the policy by its mean, in nats (M-step)."""
    epsilon_deviation: Above0 = 1e-4
    """Continuous actions: bound of the KL divergence of the policy by its deviation, in nats (M-step)."""
    temperature_init: Above0 = 1.0
    """First temperature (eta of the paper) of the weights of samples, in the unit of the return."""
    alpha_mean_init: Above0 = 10.0
    """First multiplier of the bound of the mean."""
    alpha_deviation_init: Above0 = 100.0
    """First multiplier of the bound of the deviation."""
    dual_learning_rate: Above0 = 1e-2
    """Adam's step size of the logarithms of temperature and multipliers."""


def with_duals(spec: NetworkSpec, config: DualConfig, divergences: Sequence[str]) -> NetworkSpec:
    """The network with the dual variables of these divergences."""
    first = {TEMPERATURE: config.temperature_init}
    first |= {f"log_alpha_{name}": getattr(config, f"alpha_{name}_init") for name in divergences}
    parameters = tuple((name, (), math.log(value)) for name, value in first.items())
    return NetworkSpec(spec.towers, (*spec.parameters, *parameters), (*spec.learner_only, *first))


def dual_group(spec: NetworkSpec) -> Group:
    """Group of the dual variables of a network."""
    return Group(DUALS, tuple(name for name, _, _ in spec.parameters if name.startswith((TEMPERATURE, "log_alpha_"))))


def improved(net: Net, config: DualConfig, values: Tensor, log_share: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of samples, `[S, M]` with sums 1, and the loss of the temperature: the dual of the E-step.

    Args:
        net: Has the temperature.
        config: Has the bound of the KL divergence of the weighted samples.
        values: `[S, M]`, of M samples in each of S sets.
        log_share: `[S, M]`: logarithm of what each sample counts before it is weighted by its value.
    """
    temperature = net.parameter(TEMPERATURE).exp()
    scaled = values / temperature + log_share
    gain = torch.logsumexp(scaled, 1) - torch.logsumexp(log_share, 1)
    return scaled.detach().softmax(1), temperature * (config.epsilon + gain.mean())


def bounded(
    net: Net, config: DualConfig, temperature_loss: Tensor, divergences: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Step the dual variables: the penalty of the policy with those of before, and metrics.

    `divergences` are KL(old || new) `[]` by name, with gradients.
    """
    alphas = {name: net.parameter(f"log_alpha_{name}").exp() for name in divergences}
    surplus = [alphas[name] * (getattr(config, f"epsilon_{name}") - kl.detach()) for name, kl in divergences.items()]
    metrics = {"temperature": net.parameter(TEMPERATURE).detach().exp(), "loss/temperature": temperature_loss}
    metrics |= {f"kl_{name}": kl for name, kl in divergences.items()}
    net.step(DUALS, temperature_loss + torch.stack(surplus).sum())
    penalty = torch.stack([alphas[name].detach() * kl for name, kl in divergences.items()]).sum()
    return penalty, metrics | {f"alpha_{name}": alpha for name, alpha in alphas.items()}
