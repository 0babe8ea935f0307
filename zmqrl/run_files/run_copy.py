"""A copy of a run directory over two byte streams: only what is missing is sent, and every file is verified.

The copy names what it has (`CopyRequest`), and the run's host answers with frames: one byte for the kind, four for the
length, then the payload. Files are whole or not at all under their names; the beginning of a file whose transfer was
cut is kept as `.NAME.part`. Names with a leading dot are the launcher's own (locks, temporary files) and not copied.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar

import msgspec

from zmqrl.data_stores import files, tensors
from zmqrl.errors import StoreError, WireError, ZmqrlError
from zmqrl.messages.files import CopiedEnd, CopiedFile, CopyRequest, HeldFile, NotCopied, RetiredFile, decode

BEGINS = b"\nZMQRL-RUN-COPY\n"
"""Before the first frame; what precedes it is output of a login shell."""
HEAD = struct.Struct(">cI")
FILE, DATA, END, MISSING, RETIRED, DONE = b"F", b"D", b"E", b"M", b"R", b"Z"
CHUNK = 1 << 18
CHECKPOINTS, CHECKPOINT = "checkpoints", ".safetensors"
LAST = ("summary.json", "config.json", "run.json")
"""A directory in which these are has what they refer to."""
T = TypeVar("T", CopiedFile, CopiedEnd, NotCopied, RetiredFile)


class CopyFailed(ZmqrlError):
    """The copy is incomplete: what was received whole is kept, and the next attempt continues."""


def send(run_dir: Path, request: CopyRequest, out: BinaryIO) -> None:
    """Write the files of `run_dir` that the copy lacks to `out`, as they are now."""
    out.write(BEGINS)
    for path in _names(run_dir):
        if not _is_text(path):
            shown = os.fsencode(path).decode(errors="backslashreplace")
            _frame(out, MISSING, msgspec.json.encode(NotCopied(shown, "its name is not UTF-8")))
            continue
        try:
            _send_file(run_dir, path, request, out)
        except (OSError, StoreError) as error:
            if not isinstance(error, FileNotFoundError):  # removed since it was listed
                cause = str(getattr(error, "strerror", None) or error)
                _frame(out, MISSING, msgspec.json.encode(NotCopied(path, cause)))
    for path in request.held:
        if _is_checkpoint(PurePosixPath(path)) and not (run_dir / path).exists():
            _frame(out, RETIRED, msgspec.json.encode(RetiredFile(path)))
    _frame(out, DONE)
    out.flush()


def _is_text(path: str) -> bool:
    """Whether a message can have it: of other bytes than UTF-8, Python makes surrogates."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_checkpoint(path: PurePosixPath) -> bool:
    """Directly in the folder of checkpoints, which removes old ones."""
    return path.parent == PurePosixPath(CHECKPOINTS) and path.suffix == CHECKPOINT


def _names(run_dir: Path) -> list[str]:
    found = []
    for folder, folders, names in os.walk(run_dir):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        found += [path.relative_to(run_dir).as_posix() for path in paths if path.is_file() and not path.is_symlink()]
    return sorted(found, key=lambda path: (LAST.index(path) if path in LAST else -1, path))


def _send_file(run_dir: Path, path: str, request: CopyRequest, out: BinaryIO) -> None:
    with _opened(run_dir / path) as file:
        size = os.fstat(file.fileno()).st_size
        held, part = request.held.get(path), request.parts.get(path)
        if held is not None and held.nbytes == size and held.sha256 == _digest_of(file, size).hexdigest():
            return
        offset = 0
        if part is not None and part.nbytes <= size and part.sha256 == _digest_of(file, part.nbytes).hexdigest():
            offset = part.nbytes
        digest = _digest_of(file, offset)
        _frame(out, FILE, msgspec.json.encode(CopiedFile(path, offset)))
        while chunk := file.read(min(CHUNK, size - offset)):
            digest.update(chunk)
            offset += len(chunk)
            _frame(out, DATA, chunk)
        _frame(out, END, msgspec.json.encode(CopiedEnd(digest.hexdigest())))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; a checkpoint under a second name, verified: the learner writes over retired files with only one.

    StoreError when it is damaged.
    """
    if path.suffix != CHECKPOINT:
        with path.open("rb") as file:
            yield file
        return
    link = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        os.link(path, link)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links, or one that is read-only
        link = path
    try:
        with link.open("rb") as file:
            tensors.verify(file.read())
            yield file
    finally:
        if link != path:
            link.unlink(missing_ok=True)


def _digest_of(file: BinaryIO, nbytes: int) -> hashlib._Hash:
    """Digest of the first `nbytes`; the file is left behind them."""
    digest = hashlib.sha256()
    file.seek(0)
    while nbytes and (chunk := file.read(min(CHUNK, nbytes))):
        digest.update(chunk)
        nbytes -= len(chunk)
    return digest


def _frame(out: BinaryIO, kind: bytes, payload: bytes = b"") -> None:
    out.write(HEAD.pack(kind, len(payload)) + payload)


def request_of(copy: Path) -> CopyRequest:
    """What the directory `copy` has; it may not exist yet."""
    held, parts = {}, {}
    for folder, folders, names in os.walk(copy):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path, is_part = Path(folder, name), name.startswith(".") and name.endswith(".part")
            relative = path.relative_to(copy)
            if path.is_symlink() or (name.startswith(".") and not is_part) or not _is_text(str(relative)):
                continue
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                found = HeldFile(size, _digest_of(file, size).hexdigest())
            if is_part:
                parts[relative.with_name(name[1 : -len(".part")]).as_posix()] = found
            else:
                held[relative.as_posix()] = found
    return CopyRequest(held, parts)


class CopyReceiver:
    """Writes what arrives to the directory of the copy. One thread."""

    def __init__(self, copy: Path, warn: Callable[[str], None]) -> None:
        """`copy` exists; `warn` takes a line for the user."""
        self._copy, self._warn = copy, warn
        self._unread, self._begun = b"", False
        self._file: BinaryIO | None = None
        self._path = ""
        self._digest = hashlib.sha256()
        self.is_done = False
        """Every file was received and is durable."""
        self.files = self.nbytes = 0

    def take(self, chunk: bytes) -> bool:
        """The next bytes; whether more are expected. CopyFailed; OSError when a file cannot be written."""
        self._unread += chunk
        if not self._begun:
            _, found, rest = self._unread.partition(BEGINS)
            if not found:
                return True
            self._begun, self._unread = True, rest
        while not self.is_done and len(self._unread) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._unread)
            if length > CHUNK:
                raise CopyFailed(f"malformed frame of {length} bytes")
            if len(self._unread) < HEAD.size + length:
                break
            payload, self._unread = self._unread[HEAD.size :][:length], self._unread[HEAD.size + length :]
            self._handle(kind, payload)
        return not self.is_done

    def close(self) -> None:
        """Keep the beginning of a file whose rest did not arrive."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _handle(self, kind: bytes, payload: bytes) -> None:
        if kind == FILE and self._file is None:
            self._begin(_read(CopiedFile, payload))
        elif kind == DATA and self._file is not None:
            self._file.write(payload)
            self._digest.update(payload)
            self.nbytes += len(payload)
        elif kind == END and self._file is not None:
            self._end(_read(CopiedEnd, payload))
        elif kind == MISSING and self._file is None:
            left_out = _read(NotCopied, payload)
            self._warn(f"{left_out.path} is not copied: {left_out.cause}")
        elif kind == RETIRED and self._file is None:
            path = PurePosixPath(_read(RetiredFile, payload).path)
            if not _is_checkpoint(path):
                raise CopyFailed(f"{str(path)!r} is not a checkpoint")
            (self._copy / path).unlink(missing_ok=True)
        elif kind == DONE and self._file is None:
            self._finish()
        else:
            raise CopyFailed(f"unexpected frame {kind!r}")

    def _begin(self, begun: CopiedFile) -> None:
        path = PurePosixPath(begun.path)
        if path.is_absolute() or any(part.startswith(".") for part in path.parts) or not path.name:
            raise CopyFailed(f"{begun.path!r} is not a file of a run directory")
        self._path = begun.path
        part = self._part
        files.make_directory(str(part.parent))
        self._file = part.open("r+b" if begun.offset else "wb")
        self._digest = _digest_of(self._file, begun.offset) if begun.offset else hashlib.sha256()
        self._file.truncate()

    def _end(self, end: CopiedEnd) -> None:
        assert self._file is not None
        self._file.flush()
        try:
            files.sync(self._file.fileno())
        except OSError:  # the next sync would succeed without what was lost: nothing of it is continued
            self._part.unlink()
            raise
        self.close()
        if self._digest.hexdigest() != end.sha256:
            self._part.unlink()
            raise CopyFailed(f"{self._path}: the bytes received do not match their digest {end.sha256:.12}")
        files.rename(str(self._part), str(self._copy / self._path))
        self.files += 1

    def _finish(self) -> None:
        for folder, _, names in os.walk(self._copy, topdown=False):
            for name in names:
                if name.startswith(".") and name.endswith(".part"):  # of a file that is not there any more
                    Path(folder, name).unlink()
            files.sync_directory(folder)
        self.is_done = True

    @property
    def _part(self) -> Path:
        path = self._copy / self._path
        return path.with_name(f".{path.name}.part")


def _read(kind: type[T], payload: bytes) -> T:
    try:
        return decode(kind, payload)
    except WireError as error:
        raise CopyFailed(f"malformed {kind.__name__}: {error}") from error
