"""Options that commands for a hosts file share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., object])

SET = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of HOSTS; may be repeated."
)

LIMIT_WORKERS = (
    "Use the workers of these hosts only. The learner's host is always part of the run; if it is not listed here, it "
    "has no workers."
)
"""Purpose of `--limit` for commands that start or change a run."""


def limit(purpose: str) -> Callable[[Decorated], Decorated]:
    """`--limit HOST,...`; `purpose` is the first sentence of its help."""
    return click.option(
        "--limit",
        multiple=True,
        metavar="HOST,...",
        help=f"{purpose} HOST is a name, a pattern such as node0*, or a group.",
    )
