"""Names that a configuration may hold by mistake or by malice, and factories of every form that is called."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from shutil import rmtree as rmtree
from subprocess import run as run
from typing import Any

import gymnasium as gym

MARK = "ZMQRL_TEST_MARK"


def touch(*arguments: object, **named: object) -> None:
    """What a call leaves behind."""
    Path(os.environ[MARK]).touch()


class Touching:
    """A class without an env's methods."""

    def __init__(self, *arguments: object, **named: object) -> None:
        touch()


class Callable:
    """Its instance is neither a class nor a function."""

    def __call__(self, *arguments: object, **named: object) -> gym.Env[Any, Any]:
        touch()
        return gym.make("CartPole-v1")


instance = Callable()


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return inner


class Maker:
    def pole(self) -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1")


@decorated
def pole(id: str = "CartPole-v1") -> gym.Env[Any, Any]:
    return gym.make(id)


@decorated
def wrapped(env: Any, limit: int = 7) -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(env, limit)


method = Maker().pole
partial = functools.partial(pole, id="CartPole-v1")
partial_of_python = functools.partial(os.makedirs, exist_ok=True)
shell = decorated(run)
