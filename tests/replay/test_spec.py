from __future__ import annotations

from typing import Any

import pytest

from tests.support.raising import fields, raises
from zmqrl.errors import ConfigError
from zmqrl.replay.segment_replay import check_spec
from zmqrl.replay.spec import Prioritised, ReplaySpec

SETTINGS = Prioritised()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"n_step": 0}, fields("ReplaySpec.n_step", "0", what="must be a whole number of at least 1")),
        ({"n_step": True}, fields("ReplaySpec.n_step", "True", what="must be a whole number of at least 1")),
        ({"length": -1}, fields("ReplaySpec.length", "-1", what="must be a whole number of at least 0")),
        ({"length": 2.5}, fields("ReplaySpec.length", "2.5", what="must be a whole number of at least 0")),
        ({"burn_in": 3}, fields("ReplaySpec.burn_in", "3", what="needs sequences: set `length`")),
        ({"stride": 3}, fields("ReplaySpec.stride", "3", what="needs sequences: set `length`")),
        ({"length": 4, "stride": 5}, fields("ReplaySpec.stride", "5", what="leaves rows out: the most is length 4")),
        ({"length": 4, "n_step": 2}, fields("ReplaySpec.n_step", "2")),
        (
            {"sampler": "priority"},
            fields(
                "ReplaySpec.sampler",
                "'priority'",
                what="must be auto, uniform, prioritised or a dotted path `module:Name`",
            ),
        ),
        (
            {"sampler": "prioritised"},
            fields("ReplaySpec.prioritised", "None", what="sampler 'prioritised' needs its settings"),
        ),
        (
            {"sampler": "uniform", "prioritised": SETTINGS},
            fields(
                "ReplaySpec.prioritised",
                "Prioritised(alpha=0.6, beta=0.4, epsilon=0.0001, uniform_mix=0.0, max_share=0.9)",
                what="sampler 'uniform' has no priorities",
            ),
        ),
        (
            {"first_priority": "td"},
            fields("ReplaySpec.first_priority", "'td'", what="needs `prioritised`, or your own sampler"),
        ),
        (
            {"sampler": "zmqrl.no:X"},
            fields(what="'zmqrl.no:X' cannot be loaded as a Sampler: No module named 'zmqrl.no'"),
        ),
        (
            {"sampler": "zmqrl.replay.spec:ReplaySpec"},
            fields(value="'zmqrl.replay.spec:ReplaySpec'", what="is not a subclass of Sampler: found class ReplaySpec"),
        ),
        (
            {"sampler": "zmqrl.replay.samplers.base:Sampler"},
            fields(
                value="'zmqrl.replay.samplers.base:Sampler'",
                what="is not a complete Sampler: these methods are not defined: draw",
            ),
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
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
