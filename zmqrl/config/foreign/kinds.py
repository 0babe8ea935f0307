"""Algorithms of other libraries as a kind of zmqrl and keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

Keys: TypeAlias = Mapping[str, Any]
_NONE: Keys = MappingProxyType({})
_PLAIN: Keys = {"algorithm.double": False}
_NOISY: Keys = {"algorithm.noisy": True, "algorithm.epsilon.start": 0.0, "algorithm.epsilon.end": 0.0}
_APE_X: Keys = {
    "algorithm.dueling": True,
    "algorithm.prioritised": {},
    "algorithm.worker_priorities": True,
    "algorithm.ladder": 7.0,
    "algorithm.epsilon": [[0, 0.4]],
}
KINDS: Mapping[str, tuple[str, Keys]] = {
    **dict.fromkeys(("ppo", "clippedppo", "ppocontinuousaction"), ("ppo", _NONE)),
    **dict.fromkeys(("dqn", "multistep"), ("dqn", _PLAIN)),
    **dict.fromkeys(("double", "ddqn"), ("dqn", _NONE)),
    "dueling": ("dqn", {**_PLAIN, "algorithm.dueling": True}),
    "per": ("dqn", {**_PLAIN, "algorithm.prioritised": {}}),
    "noisy": ("dqn", {**_PLAIN, **_NOISY}),
    **dict.fromkeys(("qrdqn", "quantileregressiondqn"), ("qrdqn", _NONE)),
    **dict.fromkeys(("c51", "categoricaldqn"), ("c51", _NONE)),
    **dict.fromkeys(("rainbow", "rainbowdqn"), ("rainbow", _NONE)),
    "iqn": ("iqn", _NONE),
    "rainbowiqn": ("iqn", {**_NOISY, "algorithm.dueling": True, "algorithm.prioritised": {}}),
    "mdqn": ("dqn", {**_PLAIN, "algorithm.munchausen": {}}),
    "miqn": ("iqn", {"algorithm.munchausen": {}}),
    "apex": ("dqn", _APE_X),
    "r2d2": ("r2d2", _NONE),
    **{f"{kind}ppo": ("ppo", {"algorithm.intrinsic": {"kind": kind}}) for kind in ("rnd", "icm")},
    **dict.fromkeys(("sac", "softactorcritic", "saccontinuousaction"), ("sac", _NONE)),
    **dict.fromkeys(("td3", "td3continuousaction"), ("td3", _NONE)),
    **dict.fromkeys(("ddpg", "ddpgcontinuousaction"), ("ddpg", _NONE)),
    **{kind: (kind, _NONE) for kind in ("a2c", "impala", "mpo", "pqn", "reinforce", "tqc", "vmpo")},
    "appo": ("impala", {"algorithm.clip": 0.4}),
    "ppolstm": ("ppo", {"algorithm.memory": {"cell": "lstm", "size": 256}}),
}
"""Kind and keys of the algorithms of other libraries, by their letters."""


def letters(name: str) -> str:
    """The name of an algorithm as `KINDS` has it."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def instead_of(algorithm: str) -> str | None:
    """What zmqrl has for the algorithm of another library, as the end of a sentence; None: unknown."""
    if ":" in algorithm or letters(algorithm) not in KINDS:  # `rainbow:DQN` is a class of the user
        return None
    kind, keys = KINDS[letters(algorithm)]
    options = ", ".join(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in _leaves(keys))
    return f"in zmqrl it is {kind}{f' with {options}' if options else ''}".replace('"', "")


def _leaves(keys: Keys, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in keys.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
