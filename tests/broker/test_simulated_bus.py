"""Whatever dies, and before whichever store: nothing is lost or stored twice, and the ledger says so.

`ZMQRL_BUS_RUNS` sets how many seeded runs there are of each kind (each takes about 0.2 s).
"""

from __future__ import annotations

import os

import pytest

from tests.broker.simulated_bus import Bus
from zmqrl.types import ModeName

RUNS = int(os.environ.get("ZMQRL_BUS_RUNS", "5"))
TURNS = 1500


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("mode", ["sync", "pipelined", "async"])
@pytest.mark.whole
def test_nothing_is_lost_or_doubled(mode: ModeName, far: bool) -> None:
    kills = 0
    for seed in range(RUNS):
        bus = Bus(seed, mode, far)
        try:
            for turn in range(TURNS):
                bus.turn(deadly=0.02)
                if turn % 10 == 0:
                    bus.check_always()
            bus.quiet()
            bus.check_always()
            bus.end()
            bus.check_end()
        except Exception as error:
            raise AssertionError(f"seed {seed}, {dict(bus.kills)}: {error}") from error
        kills += sum(bus.kills.values())
    assert kills > 10 * RUNS
