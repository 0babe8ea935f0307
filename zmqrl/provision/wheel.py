"""A wheel of the zmqrl that runs here: built from its checkout, or put together again from what pip installed."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from zmqrl.errors import ConfigError

PACKAGE = Path(__file__).parents[1]
CHECKOUT_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
BUILD = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
BUILD_S = 120.0
NOT_SHIPPED = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "RECORD.jws")
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Wheel:
    """A wheel file in memory."""

    name: str
    """File name, such as zmqrl-0.1.0-py3-none-any.whl."""
    version: str
    content: bytes
    digest: str
    """sha256 over name and content of every file of the package: what `remote_install` computes of an installed one."""


def make_wheel(package: Path = PACKAGE) -> Wheel:
    """The wheel of `package`, a folder named zmqrl in a checkout or in site-packages.

    Raises:
        ConfigError: It is neither, or the build failed.
    """
    if all((package.parent / name).is_file() for name in CHECKOUT_FILES):
        return _described(*_built(package))
    return _described(*_repacked(package))


def _described(name: str, content: bytes) -> Wheel:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {f: archive.read(f) for f in archive.namelist() if f.startswith("zmqrl/") and not f.endswith("/")}
    return Wheel(name, name.split("-")[1], content, digest_of(files))


def digest_of(files: dict[str, bytes]) -> str:
    """sha256 over the files of a package by their names, in order."""
    lines = (f"{name} {hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _built(package: Path) -> tuple[str, bytes]:
    """Built in a copy: a build leaves folders behind, and the checkout is the user's."""
    with tempfile.TemporaryDirectory(prefix="zmqrl-wheel-") as folder:
        source = Path(folder)
        shutil.copytree(package, source / "zmqrl", ignore=shutil.ignore_patterns("__pycache__"))
        for name in CHECKOUT_FILES:
            shutil.copy(package.parent / name, source)
        command = [sys.executable, "-I", "-c", BUILD]
        done = subprocess.run(
            command, cwd=source, capture_output=True, encoding="utf-8", errors="replace", timeout=BUILD_S, check=False
        )
        if done.returncode != 0:
            tail = (done.stderr.strip().splitlines() or ["no output"])[-1]
            fix = f"try: {sys.executable} -m pip install 'setuptools>=77.0.3'"
            raise ConfigError(f"no wheel could be built from {package.parent}: {tail}", fix=fix)
        wheel = next(source.glob("*.whl"))
        return wheel.name, wheel.read_bytes()


def _repacked(package: Path) -> tuple[str, bytes]:
    """Wheel from the files that pip recorded, with a separate RECORD; scripts are made again where it is installed."""
    dist = _distribution(package)
    root = package.parent
    names = [str(path) for path in dist.files or () if _belongs(str(path))]
    files = {name: (root / name).read_bytes() for name in sorted(names)}
    info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/WHEEL"))
    record = "".join(f"{name},sha256={_urlsafe(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), data, zipfile.ZIP_DEFLATED)
    return f"zmqrl-{dist.version}-py3-none-any.whl", content.getvalue()


def _distribution(package: Path) -> Distribution:
    try:
        dist = distribution("zmqrl")
    except PackageNotFoundError as error:
        raise _no_wheel(package) from error
    if not any(str(path) == "zmqrl/__init__.py" for path in dist.files or ()) or not _is_root(dist, package.parent):
        raise _no_wheel(package)
    return dist


def _is_root(dist: Distribution, root: Path) -> bool:
    return Path(str(dist.locate_file("."))).resolve() == root.resolve()


def _no_wheel(package: Path) -> ConfigError:
    why = f"not installed by pip and not a checkout ({', '.join(CHECKOUT_FILES)} alongside)"
    what = f"no wheel can be built from zmqrl in {package}: {why}"
    return ConfigError(what, fix="start zmqrl from one of these")


def _belongs(name: str) -> bool:
    """Whether a recorded file is part of the wheel; what pip made on installing is not."""
    folder, _, file = name.partition("/")
    if name.endswith(".pyc") or ".." in name.split("/"):
        return False
    return folder == "zmqrl" or (folder.endswith(".dist-info") and file not in NOT_SHIPPED)


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
