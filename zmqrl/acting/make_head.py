"""The head that an acting spec names, and the check of the schedule that it reads."""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Mapping

from zmqrl.acting.box_heads import BoxHead, DeterministicNoise, Gaussian, SquashedGaussian
from zmqrl.acting.heads import UNIFORM, Categorical, EpsilonGreedy, Head, MultiCategorical
from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError

HEADS: Mapping[str, type[Head]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "epsilon_greedy": EpsilonGreedy,
    "gaussian": Gaussian,
    "squashed_gaussian": SquashedGaussian,
    "deterministic_noise": DeterministicNoise,
}


def make_head(spec: ActingSpec, rows: int) -> Head:
    """The head that `spec.head` names, for `rows` rows at a time. ConfigError when there is none, or it cannot act."""
    head = HEADS.get(spec.head) or _imported(spec.head)
    if spec.action.kind not in head.actions:
        fitting = [name for name, other in HEADS.items() if spec.action.kind in other.actions]
        raise ConfigError(f"head {spec.head!r} has no {spec.action.kind} actions; {', '.join(fitting)} have")
    return head(spec, rows)


def _imported(name: str) -> type[Head]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        what, fix = f"head {name!r} is unknown and cannot be loaded: {error}", f"known: {', '.join(sorted(HEADS))}"
        raise ConfigError(what, fix=fix) from error
    if not (isinstance(found, type) and issubclass(found, Head)):
        raise ConfigError(f"head {name!r} is not a zmqrl.acting.heads.Head: {found!r}")
    return found


def check_schedule(head: Head, schedule: Collection[str], env_receives: bool = False) -> None:
    """Check that `schedule` has the values that the head reads, and, for a head of this module, not one more.

    `env_receives`: the env receives them too, and others may be for it.

    Raises:
        ConfigError: Names head and value, and the fix.
    """
    name, given = head.spec.head, f"it gives {sorted(schedule)}" if schedule else "it gives none"
    if missing := sorted(head.reads - set(schedule)):
        raise ConfigError(f"head {name!r} reads {missing} of the algorithm's schedule(), and {given}")
    is_checked = type(head) in HEADS.values() and not env_receives
    unread = sorted(set(schedule) - head.reads) if is_checked else []
    if unread == [UNIFORM] and isinstance(head, BoxHead):
        needed = f"NoiseSpec({UNIFORM!r}, {math.prod(head.spec.action.shape)}, {UNIFORM!r})"
        raise ConfigError(f"head {name!r} does not warm up with uniform actions", fix=f"declare {needed} in acting()")
    if unread:
        read = f", only {sorted(head.reads)}" if head.reads else ""
        raise ConfigError(f"head {name!r} does not read {unread} of the algorithm's schedule(){read}")
