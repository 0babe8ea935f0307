"""What is requested of an agent arrives, also with integers of more than 64 bits in the configuration."""

from __future__ import annotations

import json

from zmqrl.config.codec import from_json, to_json
from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import Config, EnvSection, HostSection, LearnerSection, RunSection
from zmqrl.doctor.host_requests import host_requests
from zmqrl.messages.doctor_requests import Examine, read_request, request_line

LARGE = Config(
    run=RunSection(seed=1 << 70, mode="sync"),
    env=EnvSection(kwargs={"key": 1 << 80, "less": -(1 << 64), "path": "caf\u00e9 \udce4"}),
    learner=LearnerSection(host=LOCAL),
    hosts={LOCAL: HostSection(workers=1)},
)


def test_large_integers_of_a_configuration_reach_the_probe() -> None:
    request = read_request(request_line(host_requests(LARGE, None, 5.0)[LOCAL].examine))
    assert isinstance(request, Examine) and request.env is not None
    assert int(request.seed) == 1 << 70
    assert from_json(EnvSection, json.loads(request.env)) == LARGE.env


def test_they_are_read_back_from_a_stored_configuration() -> None:
    assert from_json(Config, json.loads(json.dumps(to_json(LARGE)))) == LARGE
