"""What a probe is asked arrives, also with integers of more than 64 bits in the configuration."""

from __future__ import annotations

import json

from zmqrl.config.codec import from_json, to_json
from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import Config, EnvSection, HostSection, LearnerSection, RunSection
from zmqrl.doctor.questions import questions
from zmqrl.messages.doctor import Examine, order_line, read_order

LARGE = Config(
    run=RunSection(seed=1 << 70, mode="sync"),
    env=EnvSection(kwargs={"key": 1 << 80, "less": -(1 << 64), "path": "caf\u00e9 \udce4"}),
    learner=LearnerSection(host=LOCAL),
    hosts={LOCAL: HostSection(workers=1)},
)


def test_large_integers_of_a_configuration_reach_the_probe() -> None:
    asked = read_order(order_line(questions(LARGE, None, 5.0)[LOCAL].examine))
    assert isinstance(asked, Examine) and asked.env is not None
    assert int(asked.seed) == 1 << 70
    assert from_json(EnvSection, json.loads(asked.env)) == LARGE.env


def test_they_are_read_back_from_a_stored_configuration() -> None:
    assert from_json(Config, json.loads(json.dumps(to_json(LARGE)))) == LARGE
