"""With what a full checkpoint was made: another executor is refused, other conditions are reported."""

from __future__ import annotations

import pytest

from tests.support.raising import raises
from zmqrl.config.sections import LearnerSection
from zmqrl.data_stores.base import Full
from zmqrl.errors import ConfigError
from zmqrl.learner import full_content
from zmqrl.learner.full_content import changes_since, check_executor
from zmqrl.types import Version

EAGER = LearnerSection(executor="eager", threads=2)


def made_with(**made: str) -> Full:
    return Full(Version(0, 7), {}, {"counters": {}, "made_with": made})


def test_another_executor_is_refused() -> None:
    check_executor(made_with(executor="eager"), "eager")
    what = "full checkpoint 0-7 was made with 'eager', and a resumed run must keep it: set learner.executor: eager"
    with raises(ConfigError, key=("learner", "executor"), value="'manual'", what=what):
        check_executor(made_with(executor="eager"), "manual")


def test_a_full_of_0_1_was_made_with_any_executor() -> None:
    check_executor(Full(Version(0, 7), {}, {"counters": {}}), "compiled")


@pytest.mark.parametrize(("threads", "stored"), [(None, "1"), (1, "1"), (2, "2")])
def test_the_threads_are_stored_as_they_are_used(threads: int | None, stored: str) -> None:
    assert full_content.made_with(LearnerSection(threads=threads), "cpu")["threads"] == stored


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the learner of this process makes a full checkpoint with."""
    made = {"executor": "eager", "threads": "2", "device": "cpu", "torch": "2.7.1", "cpu": "0123"}
    monkeypatch.setattr(full_content, "made_with", lambda learner, device: {**made, "executor": learner.executor})
    return made


def test_other_threads_device_torch_and_cpu_are_reported(now: dict[str, str]) -> None:
    before = made_with(executor="eager", threads="1", device="NVIDIA H100", torch="2.6.0", cpu="4567")
    report = changes_since(before, EAGER, "cpu")
    assert report is not None
    assert report.cause == (
        "full checkpoint 0-7 was made with other hardware, software or threads than the learner now has: threads 1 "
        "(now 2), device NVIDIA H100 (now cpu), torch 2.6.0 (now 2.7.1), another type of CPU"
    )
    assert "in single, sync and pipelined its weights may differ from those without the change" in report.done


@pytest.mark.parametrize("name", ["threads", "device", "torch", "cpu"])
def test_each_change_alone_is_reported(now: dict[str, str], name: str) -> None:
    assert changes_since(made_with(**{**now, name: "other"}), EAGER, "cpu") is not None


def test_what_is_the_same_or_was_not_stored_is_not_reported(now: dict[str, str]) -> None:
    assert changes_since(made_with(**now), EAGER, "cpu") is None
    first = made_with(**{name: value for name, value in now.items() if name != "device"})  # nothing was computed yet
    assert changes_since(first, EAGER, "cpu") is None
    assert changes_since(Full(Version(0, 7), {}, {"counters": {}}), EAGER, "cpu") is None
