"""How every process of zmqrl imports: with one BLAS thread unless configured otherwise, and without garbage collection.

A BLAS with several threads starts them with `import numpy`, one per core, and each spins for 50 ms. The objects of a
module live as long as the process: a garbage collection that walks through them takes 8 % of `import torch`, and 200 ms
when a process with torch ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def prepare() -> None:
    """To be called once, before numpy is imported."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    atexit.register(gc.freeze)


def set_threads(threads: int) -> None:
    """How many threads numpy and torch start; of those that are not imported yet."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(threads)


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


class LazyModule:
    """A module that is imported when an attribute of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        self.__dict__[attribute] = value
        return value


def lazy(name: str) -> Any:
    """Module `name`, imported at its first use. Code that the launcher and workers import names torch in this way."""
    return LazyModule(name)
