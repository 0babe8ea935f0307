"""The suite of `zmqrl.testing` over every kind of network, as every algorithm of the package makes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contracts.suites import name_of
from tests.contracts.test_algorithms import CASES
from zmqrl.algorithms.base import Algorithm
from zmqrl.networks.build import BUILT_IN
from zmqrl.testing.network import NETWORK, Network, NetworkMaker

FROM_OBSERVATIONS = [c for c in CASES if "torso" not in dict(c.network().towers) and not c.acting().state]
"""The suite gives observations, without a state, to each tower. One after a torso takes its features, and one with
memory a state (test_algorithms has these)."""


@pytest.mark.parametrize(
    "algorithm", FROM_OBSERVATIONS, ids=lambda a: f"{type(a).__name__}-{a.acting().head}-{a.acting().runtime}"
)
@pytest.mark.parametrize("check", NETWORK, ids=name_of)
def test_contract(check: Callable[[NetworkMaker], None], algorithm: Algorithm) -> None:
    check(lambda: Network(algorithm.network(), algorithm.env.observation, algorithm.input))


def test_every_kind_is_among_them() -> None:
    assert {case.network_section.kind for case in CASES} == set(BUILT_IN)
