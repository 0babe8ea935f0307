"""The versions of installed packages, without `importlib.metadata` where that is possible.

That module imports the parser of emails and reads files of every package: 12 ms of the start of each host agent.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder

MODULES = {"pyzmq": "zmq"}
"""Module by package, where it has another name."""
INFO = ".dist-info"


def installed(package: str) -> str | None:
    """The version of `package` that an import finds; None where it is not installed."""
    return _folders().get(package) or _without_folder(package)


@cache
def _folders() -> dict[str, str]:
    """Version by package, from the names of the folders NAME-VERSION.dist-info."""
    found: dict[str, str] = {}
    for path in reversed(sys.path):  # of two, the first is imported
        with suppress(OSError):
            infos = [name.removesuffix(INFO) for name in os.listdir(path or ".") if name.endswith(INFO)]
            found.update((name.lower(), version) for name, _, version in (info.partition("-") for info in infos))
    return found


def _without_folder(package: str) -> str | None:
    """A package that is not installed, or that a distribution has installed in another form."""
    if PathFinder.find_spec(MODULES.get(package, package)) is None:
        return None
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
