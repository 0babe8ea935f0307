"""Standard output and error that never end a process, and the last lines of a log."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


TAIL_BYTES = 8_192
TAIL_LINES = 60
"""A traceback of what a user's env raised and of what was made of it."""


def tail_of(log: Path, since_byte: int = 0) -> tuple[str, ...]:
    """Its last lines; lines before `since_byte` are left out, unless the log was emptied since."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(since_byte if since_byte <= end else 0, end - TAIL_BYTES))
        return tuple(file.read().decode(errors="replace").splitlines()[-TAIL_LINES:])


class _LossyFile(io.FileIO):
    """The descriptor of another stream, which keeps it."""

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data)
        try:
            written = super().write(view)
        except OSError:
            return int(view.nbytes)
        return int(view.nbytes) if written is None else written


def lossy(stream: TextIO) -> TextIO:
    """A stream on the descriptor of `stream` whose writes raise no OSError; `stream` itself where it has none.

    A notebook's stream may have the descriptor of the kernel's terminal: what is written there is not in the notebook.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        stream.flush()
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):  # a notebook's, a test's, none at all
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_LossyFile(descriptor, "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=getattr(stream, "line_buffering", True) or getattr(stream, "write_through", False),
    )


@contextmanager
def lossy_output() -> Iterator[None]:
    """`sys.stdout` and `sys.stderr` raise no OSError inside."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = lossy(sys.stdout), lossy(sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            print(end="", file=stream, flush=True)  # None in a process without it
        sys.stdout, sys.stderr = before


@contextmanager
def output_as_errors(*, forks: bool = False) -> Iterator[TextIO]:
    """Inside, whatever is written to standard output goes to standard error, by native libraries and children too.

    Args:
        forks: A process that is forked inside outlives it, and must not hold standard output open: only what Python
            writes is redirected.

    Yields:
        What standard output was.
    """
    output = sys.stdout
    output.flush()
    if forks:
        with redirect_stdout(sys.stderr):
            yield output
        return
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with open(kept, "w", encoding="utf-8", closefd=False) as kept_output, redirect_stdout(sys.stderr):
            yield kept_output
    finally:
        os.dup2(kept, 1)
        os.close(kept)
