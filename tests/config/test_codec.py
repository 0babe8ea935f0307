"""What zmqrl wrote is read back the same, older files with their defaults, and newer ones are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from zmqrl.config.codec import from_json, to_json
from zmqrl.types import Ledger, Notice, Version


@dataclass(frozen=True)
class Inner:
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    count: int
    inner: Inner = field(default_factory=Inner)
    rate: float = 0.5
    notice: Notice | None = None


NOTICE = Notice(Version(1, 2), "k", 3, "s", 4, 5, {"epsilon": 0.5})
OUTER = Outer(3, Inner(("a", "b")), 1.5, NOTICE)


@pytest.mark.parametrize("value", [OUTER, NOTICE, Ledger(9, 8, 0, {"unsealed": 1}, 0, 2)])
def test_what_was_written_is_read_back(value: Any) -> None:
    data = to_json(value)
    assert from_json(type(value), json.loads(json.dumps(data))) == value
    assert json.loads(json.dumps(data)) == data, "lists, and text as keys"


def test_a_field_that_an_older_file_lacks_has_its_default_also_when_it_is_written_again() -> None:
    read = from_json(Outer, {"count": 3})
    assert read == Outer(3)
    assert to_json(read) == {"count": 3, "inner": {"names": []}, "rate": 0.5, "notice": None}


@pytest.mark.parametrize("data", [
    {},
    {"count": "3"},
    {"count": 3, "more": 1},
    {"count": 3, "inner": {"more": 1}},
    {"count": 3, "inner": {"names": "ab"}},
    {"count": 3, "notice": {**to_json(NOTICE), "more": 1}},
    {"count": 3, "notice": {**to_json(NOTICE), "nbytes": -1}},
    [3],
    None,
], ids=str)  # fmt: skip
def test_anything_else_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):
        from_json(Outer, data)
