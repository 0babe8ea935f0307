"""Parameters of tests that only `make test-long` runs."""

from __future__ import annotations

from typing import Any

import pytest


def long(*values: Any, id: str | None = None) -> Any:
    """A further combination of what the parameters of `bin/test` cover each in another one."""
    return pytest.param(*values, id=id, marks=pytest.mark.long)
