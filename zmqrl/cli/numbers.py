"""Numbers of options, with messages in the words of the package."""

from __future__ import annotations

import click


class Whole(click.IntRange):
    """A whole number in a range: `'x' is not a valid whole number`."""

    name = "whole number"
