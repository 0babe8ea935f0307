"""What zmqrl wrote is read back the same, older files with their defaults, and newer ones are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from zmqrl.config.codec import from_json, is_plain, names_of, replace, to_json
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


class Section(msgspec.Struct, frozen=True):
    outer: Outer
    rates: tuple[float, ...] = (1.0,)


NOTICE = Notice(Version(1, 2), "k", 3, "s", 4, 5, {"epsilon": 0.5})
OUTER = Outer(3, Inner(("a", "b")), 1.5, NOTICE)


@pytest.mark.parametrize("value", [OUTER, Section(OUTER), NOTICE, Ledger(9, 8, 0, {"unsealed": 1}, 0, 2)])
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


def test_a_struct_without_fields_to_forbid_is_refused_as_a_dataclass() -> None:
    with pytest.raises(ValueError, match="unknown field 'more'"):
        from_json(Section, {"outer": {"count": 3}, "more": 1})
    with pytest.raises(ValueError, match="unknown field 'more'"):
        from_json(Section, {"outer": {"count": 3, "more": 1}})


@pytest.mark.parametrize(("value", "changes"), [(OUTER, {"count": 4}), (Section(OUTER), {"rates": ()})], ids=str)
def test_a_copy_has_the_changes_and_what_it_is_made_of_has_not(value: Any, changes: dict[str, Any]) -> None:
    before = to_json(value)
    assert to_json(replace(value, **changes)) == to_json(value) | {name: to_json(new) for name, new in changes.items()}
    assert to_json(value) == before
    with pytest.raises(TypeError):
        replace(value, more=1)


def test_fields_are_listed_in_order_of_classes_alone() -> None:
    assert names_of(Outer) == ("count", "inner", "rate", "notice")
    assert names_of(Section) == ("outer", "rates")
    assert is_plain(Outer) and is_plain(Section)
    assert not is_plain(OUTER) and not is_plain(dict) and not is_plain(tuple[int, ...])
