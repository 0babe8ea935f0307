"""Bounds of the suites in seconds, which are those of an idle machine."""

from __future__ import annotations

import pytest

from zmqrl.testing import expect
from zmqrl.testing.expect import IDLE_S, assert_within, processes_s


def test_a_bound_grows_with_the_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expect, "processes_s", lambda: 3 * IDLE_S)
    assert_within(2.9, 1.0)
    with pytest.raises(AssertionError, match=r"undeploy took 3\.1 s; at most 3\.0 s"):
        assert_within(3.1, 1.0, "undeploy")


def test_the_yardstick_is_not_needed_for_what_is_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expect, "processes_s", lambda: pytest.fail("measured"))
    assert_within(1.0, 1.0)


@pytest.mark.whole
def test_the_yardstick_is_measured() -> None:
    assert processes_s() > 0.01
