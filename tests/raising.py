"""`raises`: an error by its class and fields, where `pytest.raises` compares its text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

Raised = TypeVar("Raised", bound=BaseException)


@contextmanager
def raises(kind: type[Raised], **fields: Any) -> Iterator[pytest.ExceptionInfo[Raised]]:
    """The block raises an error of `kind` with these fields: `raises(ConfigError, key=("run", "seed"), value="-1")`."""
    with pytest.raises(kind) as caught:
        yield caught
    compare(caught.value, **fields)


def compare(error: BaseException | None, **fields: Any) -> None:
    """The fields of an error that a test has caught."""
    found = {name: getattr(error, name, None) for name in fields}
    assert found == fields, f"{found} of {error!r}, expected {fields}"
