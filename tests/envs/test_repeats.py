"""A saved state that lacks a part is found, and state that outlives an episode."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.raising import raises
from zmqrl.config.sections import EnvSection
from zmqrl.envs import check
from zmqrl.envs.check import check_env
from zmqrl.errors import ConfigError

HERE = "tests.envs.repeating_envs:"


def remarks_on(**keys: Any) -> list[str]:
    """What the check of an env says of it."""
    checking = check_env(EnvSection(**keys), 5)
    while True:
        try:
            next(checking)
        except StopIteration as end:
            return list(end.value.remarks)


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
    with raises(ConfigError, key=("env", "recovery"), value="'state'"):
        remarks_on(id=f"{HERE}Saved", kwargs={"without": without}, recovery="state")


def test_a_counter_of_a_long_episode_is_missed_too() -> None:
    with raises(ConfigError, key=("env", "recovery"), value="'state'"):
        remarks_on(id=f"{HERE}Saved", kwargs={"without": "counter", "length": 300}, recovery="state")


def test_a_state_that_cannot_be_restored_is_refused_with_what_was_raised() -> None:
    with raises(ConfigError, key=("env", "recovery"), value="'state'"):
        remarks_on(id=f"{HERE}Saved", kwargs={"without": "everything"}, recovery="state")


@pytest.mark.parametrize(
    ("keys", "differing"),
    [
        ({"wrappers": ("gymnasium.wrappers:NormalizeObservation",)}, "other observations in its"),
        ({"wrappers": ("gymnasium.wrappers:NormalizeReward",), "id": "Pendulum-v1"}, "other rewards in its"),
        ({"wrappers": ("gymnasium.wrappers:NormalizeObservation",), "frame_stack": 2}, "other observations in its"),
        ({"wrappers": (f"{HERE}Harder",)}, "other rewards in its"),
        ({"id": f"{HERE}Levels"}, "other observations in its"),
        ({"id": f"{HERE}OneAtATime"}, "other observations in its"),
    ],
)
def test_state_that_outlives_an_episode_is_named_with_its_consequence(keys: dict[str, Any], differing: str) -> None:
    (remark,) = remarks_on(**keys)
    assert "keeps state from episode to episode" in remark and differing in remark
    for part in ("scores, the best version, exports and a resume", "algorithm.normalise_obs", "normalise_reward"):
        assert part in remark
    assert all(path.rpartition(":")[2] in remark for path in keys.get("wrappers", ()))


def test_an_env_that_is_not_reproducible_is_named_as_such() -> None:
    (remark,) = remarks_on(wrappers=(f"{HERE}Drawn",))
    assert "with Drawn does not repeat itself: two new envs have other observations" in remark
    assert "keeps state" not in remark


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"id": "Pendulum-v1", "wrappers": ("gymnasium.wrappers:RecordEpisodeStatistics",)},
        {"wrappers": (f"{HERE}ContinuesInTraining",)},
        {"id": "tests.envs.space_envs:Mixed"},
        {"id": "tests.envs.agent_envs:Walkers", "num_envs": 6},
    ],
    ids=["plain", "statistics that nobody sees", "scored in another form", "masks", "agents"],
)
def test_what_repeats_itself_has_no_remark(keys: dict[str, Any]) -> None:
    assert remarks_on(**keys) == []


def test_a_slow_env_is_walked_only_where_a_key_requests_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "QUICK_S", 0.0)
    keys: dict[str, Any] = {"id": f"{HERE}Slow", "kwargs": {"without": "generator"}}
    assert remarks_on(**keys) == []
    with raises(ConfigError, key=("env", "recovery"), value="'state'"):
        remarks_on(**keys, recovery="state")
