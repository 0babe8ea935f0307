"""Events and actions of the broker's state are data."""

from __future__ import annotations

import pytest
from msgspec import Struct

from zmqrl.broker import events

KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and kind.__module__ == events.__name__]


@pytest.mark.parametrize("kind", KINDS)
def test_none_of_them_can_be_changed(kind: type) -> None:
    assert issubclass(kind, Struct) and kind.__struct_config__.frozen


def test_a_report_without_counts_has_no_speed() -> None:
    report = events.WorkerReported(0, 0, (), {})
    assert (report.segments, report.busy_s, report.at, report.remote, report.serial) == (0, 0.0, 0.0, False, -1)
