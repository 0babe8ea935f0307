"""What to write in place of a value of another type, for messages."""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from zmqrl.config.overrides import RESET

NUMBER = re.compile(r"([-+]?(?:0,\d+|(?!0,)\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?) ?([a-zA-Z]*)")
DECIMAL_COMMA = re.compile(r"(?<!\d)0,")
MULTIPLES = {"": 1, "k": 1_000, "m": 1_000_000}
MULTIPLES_OF_S = {"": 1, "k": 1_000, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
"""Multiples of the suffixes of values of keys in seconds, `NAME_s`."""
BOOLEANS = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}
MOST_WRITTEN = 60
"""Characters of a value that is suggested."""


def is_finite(value: Any) -> bool:
    """Whether all numbers in a value are finite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    return all(map(is_finite, value)) if isinstance(value, list) else True


def fix_of(hint: Any, key: str, value: Any) -> str:
    """What to write for a value of another type; empty where nothing that it can mean is valid for the key."""
    if value is None or value is RESET or hint is Any:
        return ""
    adapter = TypeAdapter(hint)
    for candidate in filter(is_finite, _candidates(key, value)):
        written = json.dumps(candidate, ensure_ascii=False)  # YAML, as all JSON
        if len(written) > MOST_WRITTEN:
            continue
        with contextlib.suppress(ValidationError):
            adapter.validate_json(written, strict=True)
            return f"write {written}{' with quotes' if isinstance(candidate, str) else ''}"
    return ""


def _candidates(key: str, value: Any) -> Iterator[Any]:
    if not isinstance(value, list):
        yield from (_number(key, value), BOOLEANS.get(str(value).lower(), value), _text(value))
    if isinstance(value, str):
        text = value.strip("()[] ")
        yield [part.strip() for part in text.split(",") if part.strip()]
        yield [_number(key, part) for part in re.split(r"[,\s]+", text) if part]
    else:
        items = value if isinstance(value, list) else [value]
        yield from (items, [_number(key, item) for item in items], [_text(item) for item in items])


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (bool, int, float)) else value


def _number(key: str, value: Any) -> Any:
    """The number that `1M`, `64k`, `100,000`, `0,5`, `8.0` or, for a key in seconds, `10m` is meant to be, if any."""
    match = NUMBER.fullmatch(value) if isinstance(value, str) else None
    multiple = (MULTIPLES_OF_S if key.endswith("_s") else MULTIPLES).get(match[2].lower()) if match else None
    if match and multiple:
        number = float(DECIMAL_COMMA.sub("0.", match[1]).replace(",", ""))
        value = number if multiple == 1 else round(number * multiple, 9)  # 1.001 * 1000 is not whole
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if whole else value


def nearest(value: Any, errors: list[ErrorDetails]) -> str:
    """The name that a value may be a misspelling of, as a suggestion; empty: none."""
    expected = [str(error.get("ctx", {}).get("expected", "")) for error in errors if error["type"] == "literal_error"]
    names = re.findall(r"'([^']*)'", " ".join(expected))
    near = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""
