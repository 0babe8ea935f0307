"""Whether `reset` and `step` of an env returned what gymnasium requires. Looked at when something has failed."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym

from zmqrl.plugins import shown_path

NOTHING: Any = object()
"""In place of a returned value: the call has not returned."""
FORMS = {
    "reset": ("obs", "info"),
    "step": ("obs", "reward", "terminated", "truncated", "info"),
}

KEYWORD = re.compile(r"reset\(\) (got an unexpected keyword argument '(seed|options)'|takes no keyword arguments)")


def other_form(env: Any, call: str, returned: Any, error: Exception | None = None) -> str | None:
    """What is wrong with the form of `returned` by `env.<call>`, and where that method is; None: nothing is.

    `error` is what the call raised. A method with the form of gym 0.21 does not accept the arguments.
    """
    if call == "reset" and isinstance(error, TypeError) and KEYWORD.search(str(error)):
        return f"reset must accept seed and options: reset(self, *, seed=None, options=None){_place(env, call)}"
    form = FORMS[call]
    is_sequence = isinstance(returned, (tuple, list))
    if returned is NOTHING or (is_sequence and len(returned) == len(form)):
        return None
    if returned is None:
        what = "None"
    else:
        what = f"{len(returned)} values" if is_sequence else f"an object of type {type(returned).__name__}"
    return f"{call} must return ({', '.join(form)}); it returned {what}{_place(env, call)}"


def _place(env: Any, call: str) -> str:
    """` (file:line)` of the method, without wrappers that only pass its value on."""
    while isinstance(env, gym.Wrapper) and getattr(type(env), call) is getattr(gym.Wrapper, call):
        env = env.env
    code = getattr(getattr(env, call, None), "__code__", None)
    return "" if code is None else f" ({shown_path(code.co_filename)}:{code.co_firstlineno})"
