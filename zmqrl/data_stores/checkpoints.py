"""Checkpoints by their names, and how they are read, alike for the files of a directory and the objects of a URL."""

from __future__ import annotations

import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore, Full, few
from zmqrl.errors import DamagedCheckpoints, StoreError
from zmqrl.types import Version

KINDS = ("best-", "kept-", "v", "full-")
"""Kinds of checkpoints: how their names begin."""
WEIGHTS = ("v", "kept-", "best-")
"""Kinds with the weights of a version."""
COPIED: Mapping[str, int | None] = {"v": 1, "full-": 2, "best-": 1, "kept-": None}
"""Which checkpoints belong to a copy of a run: kinds, and how many of each are kept there; None: all of them."""
COPIED_DURING_RUN = {kind: most for kind, most in COPIED.items() if kind != "v"}
"""Which of them come from a learner on another host before the run ends."""
_NAME = re.compile(r"(v|kept-|full-|best-)(\d+)-(\d+)\.safetensors")

_log = logging.getLogger(__name__)


def checkpoint_names(names: Iterable[str], kind: str) -> dict[str, Version]:
    """Checkpoints of `kind` (`v`, `kept-`, `full-`, `best-`) among `names` with their versions, oldest first."""
    matches = (m for m in map(_NAME.fullmatch, names) if m is not None and m[1] == kind)
    found = {m[0]: Version(int(m[2]), int(m[3])) for m in matches}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def in_order(names: Iterable[str]) -> list[str]:
    """Checkpoints among `names`, kind by kind: a FULL after the versions that a resume from it expects."""
    listed = list(names)
    return [name for kind in KINDS for name in checkpoint_names(listed, kind)]


def names_in(folder: Path) -> list[str]:
    """Names in a folder; none of one that is not there, or cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def newest_whole(folder: Path, kind: str, most: int, whole: Set[str] = frozenset()) -> list[str]:
    """The newest `most` of a kind that can be loaded, newest first; those in `whole` are not read."""
    names = reversed(checkpoint_names(names_in(folder), kind))
    return list(islice((name for name in names if name in whole or is_whole(folder / name)), most))


def is_whole(path: Path) -> bool:
    """Whether a checkpoint, which may be larger than the memory, can be read and is as it was written."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            tensors.verify(content)
    except (OSError, StoreError, ValueError):  # an empty file cannot be mapped
        return False
    return True


class FileDataStore(DataStore, ABC):
    """A store of named contents: whatever reads a checkpoint verifies it, and remembers what is damaged."""

    def __init__(self, place: str, keep: int, config: Any) -> None:
        super().__init__(place, keep, config)
        self.path, self._keep = place, keep
        self._damaged: dict[str, str] = {}
        """Why, by name of each that was not loaded, of any kind."""
        self._unreported: list[tuple[str, str]] = []
        """Name and report of each that `passed_over` returns next."""
        self._bad: set[str] = set()
        """Names of what was read and does not verify."""

    @abstractmethod
    def _names(self) -> list[str]:
        """All names at the place. StoreError when the listing fails."""

    @abstractmethod
    def _read_whole(self, name: str) -> bytes | None:
        """The content of a name; None where it was retired. OSError, StoreError."""

    def newest_full(self) -> Full | None:
        before = len(self._unreported)
        for version, content in self._verified("full-"):
            arrays, metadata = tensors.parse(content)
            return Full(version, arrays, json.loads(metadata["full"]))
        damaged = dict(self._unreported[before:])
        if len(damaged) > 1 or (damaged and not self._bad):  # what could not be read may be whole
            what = "no full checkpoint can be loaded, the run cannot continue"
            raise DamagedCheckpoints(what, tuple(damaged), cause=few([*damaged.values()], 3))
        return None

    def passed_over(self) -> list[str]:
        damaged, self._unreported = self._unreported, []
        return list(dict.fromkeys(report for _, report in damaged))

    def damaged(self) -> Mapping[str, str]:
        return self._damaged

    def best(self) -> tuple[Version, bytes, float] | None:
        for version, content in self._verified("best-"):
            return version, content, float(tensors.parse(content)[1]["score"])
        return None

    def newest(self) -> tuple[Version, bytes] | None:
        return next(self._verified("v"), None)

    def newest_kept(self) -> bytes | None:
        return next((content for _, content in self._verified("kept-")), None)

    def versions(self) -> list[Version]:
        names = self._names()
        return sorted({version for kind in WEIGHTS for version in checkpoint_names(names, kind).values()})

    def weights_of(self, version: Version) -> bytes | None:
        found = (content for kind in WEIGHTS for _, content in self._verified(kind, version))
        return next(found, None)

    def _verified(self, kind: str, only: Version | None = None) -> Iterator[tuple[Version, bytes]]:
        """Contents of that kind that verify, newest first; the first of the others are named in one line of the log."""
        new: list[str] = []
        for name, version in reversed(checkpoint_names(self._names(), kind).items()):
            if only not in (None, version):
                continue
            try:
                content = self._read_whole(name)
            except OSError as error:
                self._pass_over(kind, name, error, new)
                continue
            if content is None:
                continue  # retired between the listing and the reading
            try:
                _check_name(kind, version, tensors.verify(content))
            except StoreError as error:
                self._bad.add(name)
                self._pass_over(kind, name, error, new)
                continue
            _log_passed_over(new)
            new = []
            yield version, content
        _log_passed_over(new)

    def _pass_over(self, kind: str, name: str, error: Exception, new: list[str]) -> None:
        report = f"{name} in {self.path}: {error}"
        if kind != "v":  # after a power cut these may be many, and nothing is resumed from them
            self._unreported.append((name, report))
        if name not in self._damaged:
            new.append(report)
        self._damaged[name] = str(error)


def _log_passed_over(damaged: list[str]) -> None:
    if damaged:
        count = "1 checkpoint" if len(damaged) == 1 else f"{len(damaged)} checkpoints"
        _log.warning("%s cannot be loaded: %s", count, few(damaged))


def _check_name(kind: str, version: Version, metadata: Mapping[str, object]) -> None:
    """StoreError when the content is that of another name: a power cut kept a name of a file that was written again."""
    held = metadata.get("version", str(version))
    if ("full" in metadata) != (kind == "full-") or held != str(version):
        raise StoreError(
            f"the file holds {'a full checkpoint' if 'full' in metadata else 'weights'} of another version"
        )
