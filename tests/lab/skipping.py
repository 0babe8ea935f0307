"""The lab for pytest: a machine that cannot carry it skips the test, with the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pytest

from .kernel import LabUnavailable
from .lab import Lab


@contextlib.contextmanager
def lab_or_skip(count: int, isolated: bool | None = None, sshd: Mapping[str, str] | None = None) -> Iterator[Lab]:
    """A lab until the end of `with`; arguments as of `Lab`."""
    try:
        lab = Lab(count, isolated, sshd)
    except LabUnavailable as reason:
        pytest.skip(f"no lab of several hosts: {reason}")
    with lab:
        yield lab
