from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("minatar", reason="minatar is not installed")

from zmqrl.config.sections import EnvSection
from zmqrl.testing import ENV
from zmqrl.testing.env import EnvMaker


def breakout() -> EnvSection:
    """Of the presets, with actions that repeat more often."""
    kwargs = {"game": "breakout", "use_minimal_action_set": True, "sticky_action_prob": 0.5}
    wrappers = ("zmqrl.envs.minatar:MinAtar",)
    return EnvSection("minatar.gym:BaseEnv", kwargs=kwargs, wrappers=wrappers, max_episode_steps=200, num_envs=2)


@pytest.mark.parametrize("check", ENV)
def test_an_episode_follows_from_its_seed_and_its_actions(check: Callable[[EnvMaker], None]) -> None:
    check(breakout)
