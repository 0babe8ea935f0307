"""From an acting spec to a policy; torch is imported only when the spec requests it."""

from __future__ import annotations

from zmqrl.acting.base import Policy
from zmqrl.acting.numpy_policy import NumpyPolicy
from zmqrl.acting.spec import ActingSpec
from zmqrl.plugins import load


def make_policy(spec: ActingSpec) -> Policy:
    """The policy of `spec.runtime`."""
    if spec.runtime == "torch":  # by name: an import, however late, would tie numpy acting to torch
        policy: Policy = load("torch_policy", "zmqrl.acting", Policy)(spec)
        return policy
    return NumpyPolicy(spec)
