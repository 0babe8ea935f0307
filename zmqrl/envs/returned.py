"""Whether an env returned what gymnasium requires: rewards, flags and forms, and the words for what it did instead."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from zmqrl.errors import name_of
from zmqrl.plugins import FOREIGN, last_frame, shown_path
from zmqrl.types import LARGEST_FINITE, Array

NOTHING: Any = object()
"""Mark in place of a returned value: the call has not returned."""
FORMS = {
    "reset": ("obs", "info"),
    "step": ("obs", "reward", "terminated", "truncated", "info"),
}
KINDS, FLAGS = "fiub", "iub"
"""Kinds of the dtypes of numbers, and of the flags of vector envs."""
NUMBERS = frozenset((bool, int, float, *(kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in KINDS)))
"""Types that are one number each."""
NO = np.False_
REWARD, INFO = "reward", "info"
MOST_LAYERS = 50
"""Limit of the number of wrappers around an env."""

KEYWORD = re.compile(r"reset\(\) (got an unexpected keyword argument '(seed|options)'|takes no keyword arguments)")


class BadValue(ValueError):
    """A value that an env returned is not of its kind. The text continues a sentence: `the reward None, ...`."""

    def __init__(self, text: str, part: str) -> None:
        """`part`: what it is, as a wrapper's method that makes it is named: `reward`, `observation`."""
        super().__init__(text)
        self.part = part


def number(value: Any, part: str = REWARD) -> Any:
    """`value` as one number: a scalar, or an array of one element. A list or a text is not a number."""
    if type(value) in NUMBERS:
        return value
    array = np.asarray(None if isinstance(value, (list, tuple)) else value)
    if array.dtype.kind in KINDS and array.size == 1:
        return array.item()
    if array.dtype.kind == "O" and isinstance(value, Number):  # a fraction
        return float(value)  # type: ignore[arg-type]
    expected, (a, the) = ("one number", ("a ", "the ")) if part == REWARD else ("True or False", ("", ""))
    found = f"{the}{part} {value!r:.60}" if array.size == 1 else f"{a}{part} of shape {array.shape}"
    raise BadValue(f"{found}; expected {expected}", part)


def flag(name: str, value: Any) -> bool:
    """Whether `terminated` or `truncated` is set: a bool, or one number, of which all but 0 are true."""
    found = number(value, name)
    if found != found:  # NaN
        raise BadValue(f"{name} {value!r}; expected True or False", name)
    return bool(found)


def numbers(part: str, values: Any, shape: tuple[int, ...], kinds: str = KINDS) -> Array:
    """`values` of a vector env as an array of `shape`, with a dtype of one of these kinds."""
    array = np.asarray(values)
    if array.dtype.kind not in kinds or array.shape != shape:
        expected = f"{'numbers' if kinds == KINDS else 'bools'} of shape {shape}"
        raise BadValue(f"{part} of shape {array.shape} and dtype {array.dtype}; expected {expected}", part)
    return array


def has_form(call: str, returned: Any) -> bool:
    """Whether `returned` has as many values as `env.<call>` must return."""
    return isinstance(returned, (tuple, list)) and len(returned) == len(FORMS[call])


def fault_of(env: Any, call: str, returned: Any, error: BaseException) -> tuple[str, str]:
    """What happened when `env.<call>` raised `error`, or when what it has `returned` was read; and the place."""
    if call == "reset" and isinstance(error, TypeError) and KEYWORD.search(str(error)):
        return "reset must accept seed and options: reset(self, *, seed=None, options=None)", place(env, call)
    if returned is not NOTHING and not has_form(call, returned):
        length = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else ""
        what = "None" if returned is None else length or f"an object of type {type(returned).__name__}"
        return f"{call} must return ({', '.join(FORMS[call])}); it returned {what}", place(env, call)
    if isinstance(error, BadValue):
        return f"{call} returned {error}", place(env, call, error.part)
    if returned is not NOTHING:
        return f"{call} returned a value that cannot be read: {name_of(error)}: {error}", place(env, call)
    what, where = raised(error)
    return f"{call} {what}", where


def raised(error: BaseException) -> tuple[str, str]:
    """`raised KeyError: text`; or `called sys.exit(0)`, with the place, as for all that is not an Exception."""
    if isinstance(error, Exception):
        return f"raised {name_of(error)}: {error}", ""
    code = getattr(error, "code", None)
    what, last = f"raised {name_of(error)}", last_frame(error)
    if isinstance(error, SystemExit):
        what = f"called sys.exit({'' if code is None else repr(code)})"
    return what, "" if last is None else f"{shown_path(last.filename)}:{last.lineno}"


def place(env: Any, *methods: str) -> str:
    """`file:line` of the outermost of these methods that is the user's code, else of the innermost."""
    found = ""
    for _ in range(MOST_LAYERS):
        for method in methods:
            code = getattr(inspect.unwrap(inspect.getattr_static(env, method, None)), "__code__", None)
            if code is not None:
                found = f"{shown_path(code.co_filename)}:{code.co_firstlineno}"
                if not code.co_filename.startswith(FOREIGN):
                    return found
        env = inspect.getattr_static(env, "env", None)
    return found


class InfoReader:
    """Reads the numbers of `info` that `env.report` names."""

    def __init__(self, names: Sequence[str], slots: int) -> None:
        self._names = tuple(names)
        self.values: Array = np.full((slots, len(self._names)), np.nan)
        """float64 `[N, names]`, of the newest step; NaN: its `info` does not have the name."""
        self._cells: Any = self.values.reshape(-1).data
        """Items of `values`, by rows: they are written in half the time."""
        self._newest: Mapping[Any, Any] = {}

    def reading(self, slot: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`step` of the env of `slot`, which also reads what it returns."""
        read = self.read

        def reads(action: Any) -> Any:
            returned = step(action)
            try:
                info = returned[4]
            except (TypeError, LookupError):  # the form is refused where it is unpacked
                return returned
            read(slot, info)
            return returned

        return reads

    def read(self, slot: int, info: Any) -> None:
        """Read `info` of one env. BadValue: it is not a dict, or a value is not a finite number."""
        if type(info) is not dict:
            checked(info)
        self._newest, get, cells = info, info.get, self._cells
        for place, name in enumerate(self._names, slot * len(self._names)):
            value = get(name, NOTHING)
            if type(value) is not float or not -LARGEST_FINITE <= value <= LARGEST_FINITE:
                value = math.nan if value is NOTHING else _finite(name, value)
            cells[place] = value

    def read_vector(self, info: Any) -> None:
        """Read `info` of a vector env, which has arrays, and flags `_NAME` of the envs that have the name."""
        self._newest = checked(info)
        for place, name in enumerate(self._names):
            there = info.get(f"_{name}", [name in info] * len(self.values))
            column = (_finite(name, info[name][slot]) if has else math.nan for slot, has in enumerate(there))
            self.values[:, place] = list(column)

    def numbers(self) -> Iterator[str]:
        """Names that have a number of each env in the newest `info` that was read."""
        for name, value in self._newest.items():
            is_plain = isinstance(value, (int, float, np.generic, np.ndarray)) and not str(name).startswith("_")
            if is_plain and np.size(value) in (1, len(self.values)) and np.asarray(value).dtype.kind in KINDS:
                yield str(name)


def checked(info: Any) -> Any:
    """`info`. BadValue: it is not a dict."""
    if type(info) is not dict and not isinstance(info, Mapping):
        raise BadValue(f"info of type {type(info).__name__}; expected a dict", INFO)
    return info


def _finite(name: str, value: Any) -> float:
    try:
        found = float(number(value))
        if abs(found) <= LARGEST_FINITE:
            return found
    except (BadValue, OverflowError):
        pass
    fix = f"return a number, or remove {name!r} from env.report"
    raise BadValue(f"info[{name!r}] {value!r:.60}; expected a finite number: {fix}", INFO)
