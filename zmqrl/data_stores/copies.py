"""Copies of the checkpoints of a directory at a URL, and of a URL in a directory."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path

from zmqrl.data_stores import tensors
from zmqrl.data_stores.checkpoints import COPIED, checkpoint_names
from zmqrl.data_stores.objects import Objects
from zmqrl.errors import ConfigError, StoreError
from zmqrl.types import Version

NAMED = {"v": "version", "full-": "full checkpoint", "best-": "best version", "kept-": "kept version"}
BUSY_SHARE = 0.2
"""The most of the time that copying may take of a connection while the run is running."""
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Error numbers of a file system without hard links: exFAT, CIFS, buckets that are mounted."""
LENGTH_BYTES = 8
"""Size of the first field of a safetensors file: the length of its header, which follows."""
LISTINGS = 5
"""How often the checkpoints of a copy are listed that are replaced while they are fetched."""


def copy_newest(checkpoints: Path, objects: Objects, there: Collection[str], same: set[str] | None = None) -> list[str]:
    """Copy the newest checkpoints that are not `there` yet, then delete the others there.

    A learner may retire its newest checkpoints during each upload; an older one is copied in place of a retired one.

    `same`: names of those that are known to have the content of today; new ones are added.

    Returns:
        The kinds of `COPIED` that have files here and none there: all are damaged, or were retired meanwhile.

    Raises:
        StoreError: The service does not take one, or this machine does not see the directory.
    """
    missing, same = [], set() if same is None else same
    for kind, most in COPIED.items():
        listed = _listed(checkpoints)
        here = checkpoint_names(listed, kind)
        if not here:
            objects.delete(_later(checkpoint_names(there, kind), listed))
            continue
        oldest, newest = min(here.values()), max(here.values())
        known = checkpoint_names({*here, *there}, kind).items()
        # Others there are of an earlier start of the run: `--from-scratch` moved them aside here.
        newest_first = [name for name, version in reversed(known) if oldest <= version <= newest]
        whole = (name for name in newest_first if _is_copied(checkpoints / name, objects, there, same))
        copied = [*islice(whole, most)]
        if copied:
            objects.delete([name for name in checkpoint_names(there, kind) if name not in copied])
        else:
            missing.append(kind)
    return missing


def _later(there: Mapping[str, Version], here: Sequence[str]) -> list[str]:
    """Names in `there` later than every checkpoint here: of a training that `--from-scratch` has abandoned."""
    versions = [version for kind in COPIED for version in checkpoint_names(here, kind).values()]
    return [name for name, version in there.items() if versions and version > max(versions)]


def _listed(checkpoints: Path) -> list[str]:
    try:
        return os.listdir(checkpoints)
    except OSError as error:
        raise StoreError("is not visible on this machine", place=str(checkpoints), cause=f"{error.strerror}") from error


def pause_s(every_s: float, took_s: float) -> float:
    """Seconds until the next copy, after one that took `took_s`; `every_s` at least."""
    return max(every_s, took_s * (1 / BUSY_SHARE - 1))


def fetch_newest(objects: Objects, kinds: Iterable[str], folder: Path) -> None:
    """Write the checkpoints of `kinds` to `folder`, which has none, the newest first.

    Raises:
        ConfigError: Its writer replaced them while they were fetched, time and again.
        StoreError: The service does not answer, or refuses.
        OSError: A file cannot be written.
    """
    for _ in range(LISTINGS):
        names = objects.names()
        newest_first = [name for kind in kinds for name in reversed(checkpoint_names(names, kind))]
        if all(_is_fetched(objects, name, folder / name) for name in newest_first):
            return
    what = f"is being written: checkpoints were replaced there while they were fetched, {LISTINGS} times"
    raise ConfigError.about(objects.url, what, "try again, or stop that run first")


def fetch_object(objects: Objects, name: str, path: Path) -> bool:
    """Write an object to a file; False without the object, and no file is made. StoreError, OSError."""
    file = None
    try:
        for piece in objects.pieces(name):
            file = file or path.open("wb")
            file.write(piece)
    finally:
        if file is not None:
            file.close()
    return file is not None


def _is_fetched(objects: Objects, name: str, path: Path) -> bool:
    """False where it was deleted meanwhile."""
    try:
        return path.exists() or fetch_object(objects, name, path)
    except StoreError:
        path.unlink(missing_ok=True)
        if name in objects.names():
            raise
        return False


def _is_copied(path: Path, objects: Objects, there: Collection[str], same: set[str]) -> bool:
    """Whether a checkpoint is there, now or before: one of this name may be of a training that was abandoned."""
    is_there = path.name in there
    if (is_there and (path.name in same or _is_same(path, objects))) or _copy(path, objects):
        same.add(path.name)
        return True
    return is_there  # what was damaged here later may be whole there


def _is_same(path: Path, objects: Objects) -> bool:
    """Whether the copy equals the file, by its head, which has the digest of all of it; a retired file is equal."""
    try:
        with path.open("rb") as file:
            nbytes, length = os.fstat(file.fileno()).st_size, file.read(LENGTH_BYTES)
            head = length + file.read(min(nbytes, int.from_bytes(length, "little")))
    except FileNotFoundError:
        return True
    return bool(head) and objects.starts_with(path.name, nbytes, head)


def _copy(path: Path, objects: Objects) -> bool:
    """False where it was retired meanwhile, or does not verify."""
    link = path.with_name(f".{path.name}.{secrets.token_hex(4)}.mirror.tmp")
    try:
        _keep(path, link)
        if not _is_whole(link):
            return False
        objects.put(path.name, link)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(
            "cannot be copied", name=path.name, place=str(path.parent), cause=f"{error.strerror}"
        ) from error
    finally:
        link.unlink(missing_ok=True)
    return True


def _keep(path: Path, link: Path) -> None:
    """Have the content of a checkpoint under a second name, or a copy of it where the file system has no hard links.

    The learner writes over files that it has retired, but for those with two names. FileNotFoundError: retired.
    """
    try:
        os.link(path, link)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with path.open("rb") as file, link.open("wb") as copy:
            shutil.copyfileobj(file, copy)
            if path.stat().st_ino != os.fstat(file.fileno()).st_ino:  # retired: the content may be of another version
                raise FileNotFoundError(path) from None


def _is_whole(path: Path) -> bool:
    """Whether a file verifies, which may be larger than the memory."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            tensors.verify(content)
    except (StoreError, ValueError):  # an empty file cannot be mapped
        return False
    return True
