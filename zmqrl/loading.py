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
from types import ModuleType
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

PYGAME_BANNER = "PYGAME_HIDE_SUPPORT_PROMPT"
"""With it pygame, which many envs import to render, does not print its version and a greeting."""


def prepare() -> None:
    """To be called once, before numpy is imported."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault(PYGAME_BANNER, "1")
    atexit.register(gc.freeze)


def limit_threads() -> None:
    """One thread of numpy and torch, if they are not imported yet: bits depend on it. `learner.threads` come later."""
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"


def importing_environment() -> dict[str, str]:
    """The environment for a new Python process that is to import the modules that this one can.

    Such as those in the folder of the calling script, which is in `sys.path` of this process alone.
    """
    installed = tuple(filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib", "scripts"))))
    own = [path for path in sys.path if os.path.isdir(path) and not path.startswith(installed)]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys(filter(None, [*map(os.path.abspath, own), *named]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)} if paths else dict(os.environ)


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
