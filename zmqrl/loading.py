"""How every process of zmqrl imports: with one BLAS thread, and without garbage collection.

A BLAS with several threads starts them with `import numpy`, one per core, and each spins for 50 ms. The objects of a
module live as long as the process: a garbage collection that walks through them takes 8 % of `import torch`, and 200 ms
when a process with torch ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
    from torch.nn import functional

__all__ = ["Tensor", "functional", "np", "torch"]
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
SPIN = ("GOMP_SPINCOUNT", "10000")
"""Variable, and its value: how often a thread of torch looks for another one before it sleeps. libgomp looks 300,000
times, and keeps the core from the process that has to run first (decision 0061)."""

PYGAME_BANNER = "PYGAME_HIDE_SUPPORT_PROMPT"
"""Variable with which pygame, which many envs import to render, does not print its version and a greeting."""


PATH_VARIABLE = "ZMQRL_PATH"
"""Folders with modules of the user."""
SAFE_PATH, UNTIL_STARTED = "PYTHONSAFEPATH", "zmqrl"
"""Variable, and its value, with which `python -m` from Python 3.11 does not put the working directory first."""


def prepare() -> None:
    """To be called once, before numpy is imported."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault(PYGAME_BANNER, "1")
    atexit.register(gc.freeze)


def limit_threads() -> None:
    """One thread of numpy and torch, if they are not imported yet: bits depend on it. `learner.threads` come later."""
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    os.environ.setdefault(*SPIN)


def importing_environment() -> dict[str, str]:
    """The environment for a new Python process of zmqrl that is to import the modules that this one can.

    Such as those in the folder of the calling script, which is in `sys.path` of this process alone. They come after the
    standard library and the installed packages (`add_own_paths`): a file of the user's may have the name of a module.
    """
    installed = tuple(filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib", "scripts"))))
    own = [path for path in sys.path if os.path.isdir(path) and not path.startswith(installed)]
    paths = dict.fromkeys(map(os.path.abspath, own))
    environment = {SAFE_PATH: UNTIL_STARTED, **os.environ, PATH_VARIABLE: os.pathsep.join(paths)}
    here = str(Path(__file__).parents[1])
    if here in paths:  # zmqrl is not installed: what starts it has to find it
        named = filter(None, [here, os.environ.get("PYTHONPATH")])
        environment["PYTHONPATH"] = os.pathsep.join(named)
    return environment


def add_own_paths(*folders: str) -> None:
    """Append to `sys.path` what `importing_environment` names, and `folders`."""
    if os.environ.get(SAFE_PATH) == UNTIL_STARTED:
        del os.environ[SAFE_PATH]  # what the user's code starts finds the modules next to it
    named = os.environ.get(PATH_VARIABLE, "").split(os.pathsep)
    sys.path += [path for path in dict.fromkeys([*named, *folders]) if path and path not in sys.path]


@contextmanager
def loading() -> Iterator[None]:
    """Inside, modules are imported. Afterwards garbage is searched for only among what is allocated from then on."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def lazy(name: str) -> Any:
    """The module `name`, imported when an attribute is used for the first time.

    Code that only a process with torch calls can so be in a file that every process imports.
    """
    return _LazyModule(name)


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what inspection and tracing look for; they import nothing
            raise AttributeError(name)
        with loading():
            module = importlib.import_module(self.__name__)
        # From now on a module like any other: Python finds attributes without a call. Later ones are the module's own.
        self.__dict__.update(vars(module), __getattr__=partial(getattr, module))
        self.__class__ = ModuleType  # type: ignore[assignment]  # Python allows it for modules
        return getattr(module, name)


if not TYPE_CHECKING:  # what many processes name and few use; numpy takes half of the time in which an agent starts
    np, torch, functional = map(lazy, ("numpy", "torch", "torch.nn.functional"))
    Tensor = Any
