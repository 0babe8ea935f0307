"""`raises`: an error by its class and fields, where `pytest.raises` compares its text. `fields`: those of a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from zmqrl.errors import key_of

Raised = TypeVar("Raised", bound=BaseException)


def fields(key: str = "", value: str | None = None, **others: Any) -> dict[str, Any]:
    """Fields of a ConfigError with `key` in dots: `fields("run.seed", "-1")`; the value is compared if it is given."""
    return {"key": key_of(key) if key else (), **({} if value is None else {"value": value}), **others}


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
