"""A saved state that lacks a part is found, and state that outlives an episode."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import make_single, probe
from zmqrl.envs.repeats import remarks
from zmqrl.errors import ConfigError

HERE = "tests.envs.repeating_envs:"


def remarks_on(**keys: Any) -> list[str]:
    section = EnvSection(**keys)
    return list(remarks(make_single(section), partial(make_single, section), probe(section), 5))


@pytest.mark.parametrize("stack", [1, 2], ids=["plain", "stacked"])
def test_a_whole_state_is_accepted(stack: int) -> None:
    assert remarks_on(id=f"{HERE}Saved", recovery="state", frame_stack=stack) == []


@pytest.mark.parametrize(
    ("without", "differing"),
    [
        ("generator", "observations and rewards in"),
        ("maximum", "rewards in"),
        ("counter", "ends of episodes in"),
    ],
)
def test_a_state_that_lacks_a_part_is_refused(without: str, differing: str) -> None:
    with pytest.raises(ConfigError, match=f"set_state restores only a part of the env: .* has other .*{differing}"):
        remarks_on(id=f"{HERE}Saved", kwargs={"without": without}, recovery="state")


def test_a_counter_of_a_long_episode_is_missed_too() -> None:
    with pytest.raises(ConfigError, match=r"state of step 1 has other ends of episodes"):
        remarks_on(id=f"{HERE}Saved", kwargs={"without": "counter", "length": 300}, recovery="state")


def test_a_state_that_cannot_be_restored_is_refused_with_what_was_raised() -> None:
    with pytest.raises(ConfigError, match=r"env.recovery: 'state': env .*set_state raised ValueError: no such state"):
        remarks_on(id=f"{HERE}Saved", kwargs={"without": "everything"}, recovery="state")
