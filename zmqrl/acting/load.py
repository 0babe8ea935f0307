"""From an acting spec to a policy; torch is imported only when the spec asks for it."""

from __future__ import annotations

from zmqrl.acting.base import Policy
from zmqrl.acting.numpy_policy import NumpyPolicy
from zmqrl.acting.spec import ActingSpec


def make_policy(spec: ActingSpec) -> Policy:
    """The policy of `spec.runtime`."""
    if spec.runtime == "torch":
        from zmqrl.acting.torch_policy import TorchPolicy

        return TorchPolicy(spec)
    return NumpyPolicy(spec)
