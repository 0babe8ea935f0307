"""Distributed reinforcement learning on the machines one owns. See README.md, and docs/python.md for what is here."""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"] and not getattr(sys.flags, "safe_path", False):  # `python -m zmqrl...`, at its first import
    sys.path.append(sys.path.pop(0))  # the working directory, in which a file may have the name of a module of Python

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zmqrl.api.callbacks import Checkpoint, Progress, Score
    from zmqrl.api.evaluation import Evaluation, evaluate
    from zmqrl.api.metrics import read_metrics
    from zmqrl.api.policies import LoadedPolicy, load_policy
    from zmqrl.api.runs import Run, resume, start, train
    from zmqrl.errors import ConfigError, FolderOfRuns, StoreError, TrainingFailed, UntrustedRun, ZmqrlError
    from zmqrl.summary import Summary

    __version__: str

__all__ = [
    "Checkpoint",
    "ConfigError",
    "Evaluation",
    "FolderOfRuns",
    "LoadedPolicy",
    "Progress",
    "Run",
    "Score",
    "StoreError",
    "Summary",
    "TrainingFailed",
    "UntrustedRun",
    "ZmqrlError",
    "__version__",
    "evaluate",
    "load_policy",
    "read_metrics",
    "resume",
    "start",
    "train",
]

_MODULES = {
    "zmqrl.api.callbacks": ("Checkpoint", "Progress", "Score"),
    "zmqrl.api.metrics": ("read_metrics",),
    "zmqrl.api.evaluation": ("Evaluation", "evaluate"),
    "zmqrl.api.policies": ("LoadedPolicy", "load_policy"),
    "zmqrl.api.runs": ("Run", "resume", "start", "train"),
    "zmqrl.errors": ("ConfigError", "FolderOfRuns", "StoreError", "TrainingFailed", "UntrustedRun", "ZmqrlError"),
    "zmqrl.summary": ("Summary",),
}


def __getattr__(name: str) -> Any:
    """Import the API only when it is used: every process of a run imports this package."""
    if name == "__version__":
        from importlib.metadata import version

        return version("zmqrl")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    from zmqrl.config.foreign.aliases import python_hint

    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{python_hint(name)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
