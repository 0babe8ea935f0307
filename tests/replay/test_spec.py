from __future__ import annotations

from typing import Any

import pytest

from tests.raising import raises
from zmqrl.errors import ConfigError
from zmqrl.replay.segment_replay import check_spec
from zmqrl.replay.spec import Prioritised, ReplaySpec

SETTINGS = Prioritised()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_step": 0}, "ReplaySpec.n_step: 0: must be a whole number of at least 1"),
        ({"n_step": True}, "ReplaySpec.n_step: True: must be a whole number"),
        ({"length": -1}, "ReplaySpec.length: -1: "),
        ({"length": 2.5}, "ReplaySpec.length: 2.5: must be a whole number"),
        ({"burn_in": 3}, "ReplaySpec.burn_in: 3: needs sequences: set `length`"),
        ({"stride": 3}, "ReplaySpec.stride: 3: needs sequences"),
        ({"length": 4, "stride": 5}, "ReplaySpec.stride: 5: leaves rows out: the most is length 4"),
        ({"length": 4, "n_step": 5}, "ReplaySpec.n_step: 5: the most is length 4"),
        ({"sampler": "priority"}, "ReplaySpec.sampler: 'priority': must be auto, uniform, prioritised or"),
        ({"sampler": "prioritised"}, "ReplaySpec.prioritised: None: sampler 'prioritised' needs its settings"),
        ({"sampler": "uniform", "prioritised": SETTINGS}, "ReplaySpec.prioritised: .*: sampler 'uniform' has no"),
        ({"first_priority": "td"}, "ReplaySpec.first_priority: 'td': needs `prioritised`"),
        ({"sampler": "zmqrl.no:X"}, "'zmqrl.no:X' cannot be loaded as a Sampler"),
        ({"sampler": "zmqrl.replay.spec:ReplaySpec"}, "is not a subclass of Sampler"),
        ({"sampler": "zmqrl.replay.samplers.base:Sampler"}, "not a complete Sampler: .*: draw"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_spec(ReplaySpec(**fields), {"reward": (20, 1)})


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", 1.1), ("beta", -0.1), ("epsilon", 0.0), ("uniform_mix", 2.0), ("max_share", -1.0)]
)
def test_settings_have_bounds(name: str, value: float) -> None:
    with raises(ConfigError, key=("Prioritised", name), value=str(value)):
        Prioritised(**{name: value})


def test_defaults_are_uniform_transitions_and_sequences_side_by_side() -> None:
    assert ReplaySpec().kind == "uniform" and ReplaySpec(prioritised=SETTINGS).kind == "prioritised"
    assert ReplaySpec(length=5).every == 5 and ReplaySpec(length=5, stride=2).every == 2
    assert ReplaySpec(sampler="a.b:C", first_priority="td").kind == "a.b:C"
