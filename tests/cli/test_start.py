"""The start of a run is one, from the command line and from Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import zmqrl
from tests.cli.commands import Command, Ended
from zmqrl.errors import ConfigError

TWO_NAMES = """
run: {preset: cartpole-ppo}
hosts:
  local: {workers: 1}
  a: {workers: 1, ssh: localhost, user: root}
  b: {workers: 1, ssh: 127.0.0.1, user: root}
limits: {start_s: 15}
"""


@pytest.fixture(params=["command", "python"])
def refusal(request: pytest.FixtureRequest, zmqrl: Command) -> Callable[[str], ConfigError]:
    """Of `train PRESET`."""
    return (lambda preset: _of_command(zmqrl("train", preset))) if request.param == "command" else _of_python


def _of_command(ended: Ended) -> ConfigError:
    assert isinstance(ended.error, ConfigError) and ended.code == 2
    return ended.error


def _of_python(preset: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        zmqrl.train(preset, quiet=True, run__total_env_steps=1000)
    return caught.value


def test_a_machine_under_two_names_is_refused(refusal: Callable[[str], ConfigError]) -> None:
    Path("two.yaml").write_text(TWO_NAMES)
    refused = refusal("two.yaml")
    assert (refused.what, refused.fix) == ("b and a are the same host (root@127.0.0.1:22)", "use a")
    assert os.listdir() == ["two.yaml"]
