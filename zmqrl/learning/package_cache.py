"""Where the packages of compiled updates are, and whether this machine can compile a first one. Without torch."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from zmqrl.errors import ConfigError

FIX = "start a new run with learner.executor: eager"
"""A resume keeps the executor."""


def cache_folder() -> Path:
    """The packages for this machine: `compiled/<machine>` in `$ZMQRL_CACHE`, else in `~/.cache/zmqrl`.

    Machines that share a home directory have folders of their own, unless their packages are the same.
    """
    base = os.environ.get("ZMQRL_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "zmqrl")
    machine = (cpu_flags(), platform.libc_ver(), version("torch"))
    return Path(base, "compiled", hashlib.sha256(repr(machine).encode()).hexdigest()[:16])


def check_first_compilation(cache: Path | None = None) -> None:
    """ConfigError when `cache` has no package for this machine, and a C++ compiler is missing."""
    if not any((cache or cache_folder()).glob("*.pt2")):
        check_compiler()


def check_compiler() -> None:
    """ConfigError when this machine has no C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"learner.executor: 'compiled' needs a C++ compiler, and {compiler!r} is missing; "
            f"install g++ on the host of the learner, or {FIX}"
        )


def cpu_flags() -> str:
    """What machine code may depend on: architecture, and instruction sets as Linux names them."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {' '.join(sorted(line.partition(':')[2].split()))}"
    return platform.machine()
