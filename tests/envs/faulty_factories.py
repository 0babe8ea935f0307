"""Factories, envs and wrappers of a user that fail, each at a line of its own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


def unregistered() -> Any:
    return gym.make("NotThere-v1")


def wrong_call() -> Any:
    return gym.make("CartPole-v1", colour="red")


def fails(size: int = 1) -> Any:
    return "a" + size  # type: ignore[operator]


class Fails(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, size: int) -> None:
        super().__init__(env)
        raise KeyError(size)


def lacks_a_package(env: Any) -> Any:
    import no_such_package  # type: ignore[import-not-found]

    return no_such_package.Wrapper(env)
