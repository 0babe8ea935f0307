"""Settings of torch and numpy in mode single, where the env shares the process of the learner: each has its own.

Those of the env hold in each collection, as in the process of a worker, and those of the learner while it trains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from zmqrl.learner.sync_loop import Collect
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import ProblemReport

NAMES = ("num_threads", "default_dtype", "float32_matmul_precision", "deterministic_debug_mode")
THREADS = "torch.set_num_threads"
Settings: TypeAlias = dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]
"""Settings by the name of the function that changes it: what it is now, and how to change it."""


class EnvSettings:
    """Calls `collect` with the settings of the env, and reports once each of them that the env changes."""

    def __init__(self, collect: Collect, events: EventPipe) -> None:
        self._collect, self._events = collect, events
        self._changed: dict[str, Any] = {}
        """Settings that the env has changed."""

    def collect(self, interrupted: Callable[[], bool]) -> None:
        """Call `collect` with the settings of the env."""
        settings, of_env = _settings(), {THREADS: 1, **self._changed}  # one thread, as in the process of a worker
        own = _exchanged(settings, of_env)
        begun = {**own, **of_env}
        try:
            self._collect(interrupted)
        finally:
            found = _exchanged(settings, own)
        changed = {name: value for name, value in found.items() if value != begun[name]}
        new = [f"{name}, from {begun[name]} to {changed[name]}" for name in changed if name not in self._changed]
        self._changed |= changed
        if new:
            cause = f"the env has changed settings of its process: {'; '.join(new)}"
            self._events.send(ProblemReport(cause, "the learner trains with the settings that it had"))


def _exchanged(settings: Settings, to: dict[str, Any]) -> dict[str, Any]:
    """All of them as they were before those in `to` were changed."""
    before = {name: get() for name, (get, _) in settings.items()}
    for name, value in to.items():
        if name in before and before[name] != value:
            settings[name][1](value)
    return before


def _settings() -> Settings:
    """Settings of numpy, and of torch only if it is imported."""
    settings: Settings = {"numpy.seterr": (np.geterr, lambda kinds: np.seterr(**kinds))}
    torch = sys.modules.get("torch")
    if torch is not None:
        settings |= {f"torch.set_{name}": (vars(torch)[f"get_{name}"], vars(torch)[f"set_{name}"]) for name in NAMES}
        settings["torch.set_grad_enabled"] = torch.is_grad_enabled, torch.set_grad_enabled
        settings["torch.set_default_device"] = torch.get_default_device, partial(_set_device, torch)
    return settings


def _set_device(torch: Any, device: Any) -> None:
    """None is the processor, and does not delay each call, as its name does."""
    torch.set_default_device(None if device.type == "cpu" else device)
