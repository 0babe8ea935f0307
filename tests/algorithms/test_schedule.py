"""What an algorithm's schedule gives is checked where it is made: a receiver would refuse the whole message."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest

from tests.messages.samples import NOTICE
from tests.support.raising import raises
from zmqrl.algorithms.base import Algorithm, Progress, numbers_of, schedule_of
from zmqrl.config.sections import EnvSection
from zmqrl.errors import ConfigError
from zmqrl.messages import bus
from zmqrl.messages.frames import pack, unpack
from zmqrl.messages.lines import child_event, line_of
from zmqrl.messages.process import NewVersion
from zmqrl.types import Notice, Version

PROGRESS = Progress(1, 2, 3, 10)


class Scheduled:
    """As much of an algorithm as `numbers_of` uses."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self.values = values

    def schedule(self, progress: Progress) -> Any:
        assert progress is PROGRESS
        return self.values


def scheduled(values: dict[Any, Any]) -> Algorithm:
    return cast(Algorithm, Scheduled(values))


@pytest.mark.parametrize(
    "value", [0.5, 1, True, np.float32(0.5), np.float64(0.5), np.int64(3), np.bool_(True), np.array(0.5)], ids=repr
)
def test_a_number_of_any_kind_is_published_and_arrives(value: Any) -> None:
    notice = Notice(Version(0, 1), "k", 1, "s", 2, 3, numbers_of(scheduled({"epsilon": value}), EnvSection(), PROGRESS))
    assert notice.schedule == {"epsilon": float(value)}
    assert unpack(pack(bus.Announce(notice, None))) == bus.Announce(notice, None)
    assert child_event(line_of(NewVersion(notice))) == NewVersion(notice)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, np.float32("nan"), 1e301, 10**400, None, "0.5", "x", [1.0], np.ones(2)],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_is_no_finite_number_names_algorithm_key_and_value(value: Any) -> None:
    with raises(ConfigError, key=("Scheduled", "schedule"), value=f"epsilon: {value!r:.80}"):
        numbers_of(scheduled({"epsilon": value}), EnvSection(), PROGRESS)


@pytest.mark.parametrize("name", ["x" * 256, 7, None], ids=lambda name: repr(name)[:10])
def test_a_name_that_no_message_carries_is_refused(name: Any) -> None:
    with raises(ConfigError, key=("Scheduled", "schedule"), value=f"{name!r:.80}"):
        schedule_of(scheduled({name: 1.0}), PROGRESS)


def test_what_is_refused_here_is_what_a_receiver_refuses() -> None:
    """The largest value and the longest name that pass here pass there."""
    values = schedule_of(scheduled({"x" * 255: 1e300, "least": -1e300}), PROGRESS)
    from msgspec.structs import replace

    notice = replace(NOTICE, schedule=values)
    assert unpack(pack(bus.CurrentNotice(notice))) == bus.CurrentNotice(notice)
