"""Requests of other commands to a running launcher, a file each in the run directory."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from zmqrl.data_stores.files import keep_owner
from zmqrl.errors import ConfigError, DeadlineExceeded, WireError
from zmqrl.messages.files import RequestAnswer, ScaleRequest, decode
from zmqrl.messages.lines import line_of
from zmqrl.run_files.run_info import read_info

FOLDER = "requests"
POLL_EVERY_S = 0.05
MAX_BYTES = 1 << 20
TAKEN_S = 5.0
"""A request that the launcher has removed is answered at once: so much longer is waited, and no answer is left."""


def send_request(run_dir: Path, request: ScaleRequest, deadline_s: float) -> str:
    """Put a request and wait for its answer. A command that is interrupted withdraws its request.

    Raises:
        ConfigError: The launcher refuses it; the message is its own.
        DeadlineExceeded: It does not answer.
        WireError: Its answer is none.
    """
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    keep_owner(str(folder), str(run_dir))  # or the launcher could remove no request
    name = secrets.token_hex(6)
    request_path, answer_path = folder / f"{name}.json", folder / f"{name}.answer"
    try:
        _write(request_path, request)
        if not _appears(answer_path, deadline_s) and (_removed(request_path) or not _appears(answer_path, TAKEN_S)):
            info = read_info(run_dir)
            hint = ""
            if info is not None and info.host != socket.gethostname():
                hint = f"; the run was started on {info.host}: run the command on that host"
            raise DeadlineExceeded(f"no answer from the launcher of {run_dir} within {deadline_s:g} s{hint}")
        answer = decode(RequestAnswer, answer_path.read_bytes())
    finally:
        for path in (request_path, answer_path):
            path.unlink(missing_ok=True)
    if answer.refused is not None:
        raise ConfigError(answer.refused)
    return answer.done or ""


def _appears(path: Path, deadline_s: float) -> bool:
    until = time.monotonic() + deadline_s
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_EVERY_S)  # a file is all that two processes of any two times share
    return True


def _removed(path: Path) -> bool:
    """Remove a request. False: the other end was faster: the launcher answers, or the command has given up."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


class Requests:
    """The launcher's end."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER
        self._earlier: set[Path] = set()
        """Files of an earlier attempt that could not be removed."""
        self._is_to_clear = False
        """Whether the folder could not be read when the attempt began."""

    def clear(self) -> None:
        """An attempt begins: what commands and the launcher of an earlier one left in the folder is removed.

        A file that cannot be removed is never served.

        Raises:
            OSError: The folder cannot be read.
        """
        self._is_to_clear = True
        with contextlib.suppress(FileNotFoundError):
            self._earlier = set(self._folder.iterdir())
        self._is_to_clear = False
        self._remove_earlier()

    def _remove_earlier(self) -> None:
        for path in list(self._earlier):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                self._earlier.remove(path)

    def waiting(self) -> Iterator[tuple[Path, ScaleRequest | WireError]]:
        """Requests that are there, or why one is none, each with the name to answer under.

        Raises:
            OSError: The folder cannot be used now.
        """
        if self._is_to_clear:
            self.clear()
        self._remove_earlier()
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            if path in self._earlier or not path.is_file():  # a folder may have such a name
                continue
            request = _read(path)
            if _removed(path):  # first: what cannot be removed would be served for ever
                yield path, request

    def answer(self, path: Path, answer: RequestAnswer) -> None:
        """What became of the request."""
        _write(path.with_suffix(".answer"), answer)


def _read(path: Path) -> ScaleRequest | WireError:
    try:
        if path.stat().st_size >= MAX_BYTES:
            return WireError("size", f"a request of more than {MAX_BYTES} bytes")
        return decode(ScaleRequest, path.read_bytes())
    except OSError as error:
        return WireError("unreadable", str(error))
    except WireError as error:
        return error


def _write(path: Path, message: ScaleRequest | RequestAnswer) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(line_of(message))
    temporary.replace(path)
