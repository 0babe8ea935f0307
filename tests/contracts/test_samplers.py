"""The suite of `zmqrl.testing` over every sampler of the package, and one of a user."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contracts.suites import name_of
from tests.replay.own_samplers import RecentSpec
from zmqrl.plugins import modules
from zmqrl.replay.samplers.base import Sampler
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.testing.sampler import SAMPLER, SamplerMaker

MIXED = Prioritised(uniform_mix=0.2)
SPECS = {
    "uniform": ReplaySpec(n_step=3),
    "uniform-sequences": ReplaySpec(length=4, burn_in=2, stride=2),
    "prioritised": ReplaySpec(prioritised=Prioritised()),
    "prioritised-first": ReplaySpec(prioritised=MIXED, first_priority="td"),
    "prioritised-sequences": ReplaySpec(prioritised=MIXED, length=4, stride=3, first_priority="td"),
    "own": RecentSpec(),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("check", SAMPLER, ids=name_of)
def test_contract(check: Callable[[SamplerMaker], None], spec: ReplaySpec) -> None:
    check(lambda: spec)


def test_every_kind_is_among_them() -> None:
    assert set(modules("zmqrl.replay.samplers", Sampler)) == {spec.kind for spec in SPECS.values()} - {
        SPECS["own"].kind
    }
