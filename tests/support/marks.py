"""Parameters of tests that only `make test-long` runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.waiting import WAIT_S

at_once = pytest.mark.timeout(WAIT_S)
"""What may not be waited for takes hours in this test: a wait for it ends the test."""


def long(*values: Any, id: str | None = None) -> Any:
    """A further combination of what the parameters of `bin/test` cover each in another one."""
    assert not any(getattr(value, "__name__", "").startswith("test_") for value in values), "use @pytest.mark.long"
    return pytest.param(*values, id=id, marks=pytest.mark.long)
