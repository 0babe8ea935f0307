"""A disk that loses what was not fsynced: records what `zmqrl.data_stores.files` does, and tells what a cut may leave.

A directory keeps its names, and a file its content, as of the last fsync of each. What came after may have reached the
disk or not: names in the order of the operations up to any of them, or only the removals, or all but these; content as
it was before, as zeros, half of it, or whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from zmqrl.data_stores import files
from zmqrl.run_files.run_directory import RESERVED
from zmqrl.supervision.owner_record import FOLDER

OPERATIONS = ("open_to_write", "write", "truncate", "sync", "rename", "unlink", "mkdir", "sync_directory")


@dataclass(eq=False)
class _File:
    content: bytearray = field(default_factory=bytearray)
    on_disk: bytes = b""


@dataclass(frozen=True)
class _Change:
    """Of a directory's names, whole or not at all."""

    removes: str | None = None
    adds: str | None = None
    what: _File | _Directory | None = None


@dataclass(eq=False)
class _Directory:
    """Its names, those that are on the disk, and the changes since."""

    names: dict[str, _File | _Directory] = field(default_factory=dict)
    on_disk: dict[str, _File | _Directory] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        self.pending.append(change)
        _apply(self.names, change)

    def after_cut(self, reached: Reached) -> dict[str, _File | _Directory]:
        names = dict(self.on_disk)
        for change in reached(self.pending):
            _apply(names, change)
        return names

    def most_pending(self) -> int:
        below = [d.most_pending() for d in self.names.values() if isinstance(d, _Directory)]
        return max([len(self.pending), *below])


Reached = Callable[[list[_Change]], list[_Change]]


def _apply(names: dict[str, _File | _Directory], change: _Change) -> None:
    if change.removes is not None:
        names.pop(change.removes, None)
    if change.adds is not None and change.what is not None:
        names[change.adds] = change.what


def _first(n: int) -> Reached:
    return lambda pending: pending[:n]


def _removals(pending: list[_Change]) -> list[_Change]:
    return [change for change in pending if change.adds is None]


def _others(pending: list[_Change]) -> list[_Change]:
    return [change for change in pending if change.adds is not None]


UNRECORDED = frozenset({FOLDER, RESERVED})
CONTENTS: dict[str, Callable[[_File], bytes]] = {
    "as before": lambda file: file.on_disk,
    "zeros": lambda file: bytes(len(file.content)),
    "half": lambda file: bytes(file.content[: len(file.content) // 2]).ljust(len(file.content), b"\0"),
    "whole": lambda file: bytes(file.content),
}


class CutDisk:
    """Everything below `root`, an existing empty directory. `at_each` is called after each operation."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.operations = root, 0
        self.at_each: Callable[[], None] = lambda: None
        self._top = _Directory()
        self._open: dict[int, _File] = {}
        self._seen: set[int] = set()
        for name in OPERATIONS:
            monkeypatch.setattr(files, name, self._recorded(getattr(files, name), getattr(self, f"_{name}")))

    def cuts(self, at: Path) -> Iterator[Path]:
        """Each state that a cut now may leave and that was not given before, made in a folder of its own below `at`."""
        prefixes = (_first(n) for n in range(self._top.most_pending() + 1))
        for reached in (*prefixes, _removals, _others):
            for content in CONTENTS.values():
                state = dict(_state(self._top, reached, content, ""))
                known = hash(frozenset(state.items()))
                if known not in self._seen:
                    self._seen.add(known)
                    yield _make(at / str(known), state)

    def forget(self) -> None:
        """What may be left is to be given again: something else is expected of it from now on."""
        self._seen.clear()

    def check(self) -> None:
        """Every file was written by the recorded operations alone, but for hidden ones that no resume reads."""
        written = dict(_state(self._top, lambda pending: pending, CONTENTS["whole"], ""))
        paths = {str(path.relative_to(self.root)): path for path in self.root.rglob("*")}
        found = {name: path.read_bytes() if path.is_file() else None for name, path in paths.items()}
        assert {name: found[name] for name in found if not UNRECORDED & {*Path(name).parts}} == written

    def _recorded(self, real: Callable[..., Any], model: Callable[..., None]) -> Callable[..., Any]:
        def operation(*args: Any) -> Any:
            result = real(*args)
            model(*args, *([result] if real.__name__ == "open_to_write" else []))
            self.operations += 1
            self.at_each()
            return result

        return operation

    def _directory(self, path: str) -> _Directory:
        found = self._top
        for part in Path(path).relative_to(self.root).parts:
            inner = found.names[part]
            assert isinstance(inner, _Directory)
            found = inner
        return found

    def _place(self, path: str) -> tuple[_Directory, str]:
        return self._directory(os.path.dirname(path)), os.path.basename(path)

    def _file(self, path: str) -> _File:
        directory, name = self._place(path)
        file = directory.names[name]
        assert isinstance(file, _File)
        return file

    def _open_to_write(self, path: str, fd: int) -> None:
        directory, name = self._place(path)
        if name not in directory.names:
            directory.change(_Change(adds=name, what=_File()))
        self._open[fd] = self._file(path)

    def _write(self, fd: int, content: files.Buffer, offset: int) -> None:
        file = self._open[fd].content
        file.extend(bytes(max(0, offset + len(content) - len(file))))
        file[offset : offset + len(content)] = content

    def _truncate(self, fd: int, nbytes: int) -> None:
        del self._open[fd].content[nbytes:]

    def _sync(self, fd: int) -> None:
        file = self._file(os.readlink(f"/proc/self/fd/{fd}"))
        file.on_disk = bytes(file.content)

    def _rename(self, path: str, to: str) -> None:
        directory, name = self._place(path)
        directory.change(_Change(name, os.path.basename(to), directory.names[name]))

    def _unlink(self, path: str) -> None:
        directory, name = self._place(path)
        directory.change(_Change(removes=name))

    def _mkdir(self, path: str) -> None:
        directory, name = self._place(path)
        directory.change(_Change(adds=name, what=_Directory()))

    def _sync_directory(self, path: str) -> None:
        if Path(path).is_relative_to(self.root):
            directory = self._directory(path)
            directory.on_disk, directory.pending = dict(directory.names), []


def _state(
    directory: _Directory, reached: Reached, content: Callable[[_File], bytes], prefix: str
) -> Iterator[tuple[str, bytes | None]]:
    """Path and content, None for a directory."""
    for name, what in directory.after_cut(reached).items():
        if isinstance(what, _Directory):
            yield prefix + name, None
            yield from _state(what, reached, content, f"{prefix}{name}/")
        else:
            is_settled = bytes(what.content) == what.on_disk
            yield prefix + name, what.on_disk if is_settled else content(what)


def _make(folder: Path, state: dict[str, bytes | None]) -> Path:
    folder.mkdir()
    for path, content in state.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
    return folder
