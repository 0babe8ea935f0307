"""Where the packages of compiled updates are kept, and where they are compiled. Without torch.

A package is loaded as code: it must be a file of this user with the right checksum. The default of torch is to compile
in `/tmp/torchinductor_<user>`, also if another user owns that folder, and to load libraries that it finds there.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from zmqrl.errors import ConfigError
from zmqrl.learning.base import Report
from zmqrl.wire.kept_files import keep, own_cache, read_kept
from zmqrl.wire.runtime_folder import RUNTIME_VARIABLE, temporary_folder

FIX = "start a new run with learner.executor: eager"
"""A resume keeps the executor."""
FORMAT = 2
"""Packages of 0.2.0 have no checksum."""
COMPILATION_BYTES, LEAST_BYTES = 50_000_000, 1_000_000
"""Free space that a compilation must have, and with less than which its failure is one of the disk."""
OTHER_DISK = f"set ${RUNTIME_VARIABLE} to a folder on another disk, or {FIX}"
REDIRECTED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")


def cache_folder() -> Path:
    """The packages for this machine: `compiled/<machine>` in `$ZMQRL_CACHE`, else in `~/.cache/zmqrl`.

    Machines that share a home directory have folders of their own, unless their packages are the same.
    """
    machine = (cpu_flags(), platform.libc_ver(), version("torch"), FORMAT)
    return own_cache("compiled") / hashlib.sha256(repr(machine).encode()).hexdigest()[:16]


def read_package(path: Path, report: Report) -> bytes | None:
    """The package that is kept in `path`. None: there is none of this user, or it was reported as damaged."""
    try:
        package = read_kept(path)
    except OSError:
        return None
    if package is None:
        report(f"{path} is damaged: its checksum differs", "the update is compiled again")
    return package


def keep_package(path: Path, package: bytes, report: Report) -> None:
    """Keep it for later runs. Reported when that fails."""
    folder = path.parent
    try:
        keep(path, package)
    except (ConfigError, OSError) as error:
        cause = f"{folder}: {error.strerror}" if isinstance(error, OSError) else str(error)
        cause = _full(folder) if _is_of_disk(error) else cause
        report(cause, "the compiled update is not kept: each start compiles it again")


@contextmanager
def compilation_folder() -> Iterator[Path]:
    """A private folder for every file that torch, Triton and the compiler make or read meanwhile. It is removed.

    Importing torch's compiler reads such files too.

    Raises:
        ConfigError: The folder is not private, or its disk became full.
    """
    with temporary_folder() as folder, _redirected(str(folder)):
        try:
            yield folder
        except Exception as error:
            if _is_of_disk(error) or shutil.disk_usage(folder).free < LEAST_BYTES:
                raise ConfigError(_full(folder.parent), key=("learner", "executor"), fix=OTHER_DISK) from error
            raise


def check_disk(folder: Path) -> None:
    """ConfigError when nothing can be compiled in `folder`: torch would compile slower code without a message."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise ConfigError(f"{folder.parent} is mounted with noexec", key=("learner", "executor"), fix=OTHER_DISK)
    if shutil.disk_usage(folder).free < COMPILATION_BYTES:
        needed = f"{COMPILATION_BYTES / 1e6:.0f} MB are needed"
        raise ConfigError(f"{_full(folder.parent)}, {needed}", key=("learner", "executor"), fix=OTHER_DISK)


def check_first_compilation(cache: Path | None = None) -> None:
    """ConfigError when `cache` has no package for this machine, and a C++ compiler is missing."""
    if not any((cache or cache_folder()).glob("*.pt2")):
        check_compiler()


def check_compiler() -> None:
    """ConfigError when this machine has no C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        what = f"needs a C++ compiler, and {compiler!r} is missing"
        fix = f"install g++ on the host of the learner, or {FIX}"
        raise ConfigError(what, key=("learner", "executor"), value="'compiled'", is_subject=True, fix=fix)


def cpu_flags() -> str:
    """What machine code may depend on: architecture, and instruction sets as Linux names them."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {' '.join(sorted(line.partition(':')[2].split()))}"
    return platform.machine()


@contextmanager
def _redirected(folder: str) -> Iterator[None]:
    """Libraries and the compiler make their files in `folder`."""
    before, directory = {name: os.environ[name] for name in REDIRECTED if name in os.environ}, tempfile.tempdir
    os.environ.update(dict.fromkeys(REDIRECTED, folder))
    tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = directory
        for name in REDIRECTED:
            os.environ.pop(name, None)
        os.environ.update(before)


def _is_of_disk(error: Exception) -> bool:
    """Also of the compiler's output."""
    return re.search("No space left|quota exceeded", str(error)) is not None


def _full(folder: Path) -> str:
    return f"{folder}: the disk is full ({shutil.disk_usage(folder).free / 1e6:.1f} MB free)"
