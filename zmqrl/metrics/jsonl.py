"""`metrics.jsonl`: a JSON object a line, first `wall_s`, `env_steps`, `attempt`; appended without blocking a run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from zmqrl.config.paths import regular
from zmqrl.types import WHOLE_LIMIT, Whole

MOST_PENDING_BYTES = 4_000_000
"""While so much waits for the disk, further records are left out."""
TAIL_BYTES = 65_536
"""More than the longest row."""
BLOCK_BYTES, MOST_LINE_BYTES = 262_144, 1 << 24
SCORE = "eval_"
"""Begin of names that rows of the evaluator alone have."""
FIRST = {"wall_s", "env_steps"}
"""Names that every row has."""
_NUMBERS = msgspec.json.Decoder(dict[str, Whole | float])


class AppendFile:
    """Opened at the first write, and again after an error. Its bytes keep their order, so no record is torn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._pending = bytearray()

    def write(self, record: bytes) -> None:
        """Append `record` to what waits, and write all of it.

        Raises:
            OSError: Not everything is written; the next `write` or `flush` continues.
        """
        if len(self._pending) < MOST_PENDING_BYTES:
            self._pending += record
        self.flush()

    def flush(self) -> None:
        """Write what waits. Raises OSError as `write` does."""
        try:
            while self._pending:
                del self._pending[: os.write(self._descriptor(), self._pending)]
        except OSError:
            self._release()
            raise

    def close(self) -> None:
        """Write what waits and close the file. Raises OSError as `write` does. Safe to call twice."""
        self.flush()
        self._release()

    def _descriptor(self) -> int:
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self._fd

    def _release(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


class MetricsLog:
    """Appends rows; a resumed run continues in the same file."""

    def __init__(self, path: Path, attempt: int) -> None:
        self._file = AppendFile(path)
        self._attempt = attempt
        self._begin = b"" if _ends_with_a_line(path) else b"\n"

    def write(self, wall_s: float, env_steps: int, values: Mapping[str, float]) -> None:
        """One row, on disk as far as the kernel is concerned when this returns. OSError: see `AppendFile.write`."""
        row = {"wall_s": round(wall_s, 3), "env_steps": env_steps, "attempt": self._attempt, **values}
        begin, self._begin = self._begin, b""
        self._file.write(begin + json.dumps(row).encode() + b"\n")

    def close(self) -> None:
        """Close the file. Safe to call twice. OSError: rows that still waited are lost."""
        self._file.close()


def _ends_with_a_line(path: Path) -> bool:
    """False after a kill that cut the last line off."""
    try:
        with path.open("rb") as file:
            file.seek(-1, 2)
            return file.read() == b"\n"
    except OSError:  # there is none, or it is empty
        return True


def last_metrics(path: Path) -> dict[str, float] | None:
    """The last readable row of training; None when there is none. Only the end of the file is read: it may be large.

    Scores of the evaluator are passed over: their env steps are those of the version, which may be long past.
    """
    rows = (row for row in last_rows(path) if not any(name.startswith(SCORE) for name in row))
    return next(rows, None)


def last_rows(path: Path) -> Iterator[dict[str, float]]:
    """The readable rows at the end of the file, the last one first."""
    with open(path, "rb", opener=regular) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().splitlines()
    yield from (row for row in map(_row, reversed(lines)) if row is not None)


def read_metrics(path: Path) -> Iterator[dict[str, float]]:
    """All rows of a run, also of attempts that were repeated (`attempts.current_metrics` is without those).

    Lines that are none are left out, such as one that was cut off by a kill.
    """
    return (row for lines in Lines(path, cut_too=True) for row in rows_in(lines) if row is not None)


class Lines:
    """Lines from byte `end` on, in blocks. Afterwards `end` is behind the last whole one.

    The bytes after it are a line that is being written. A line of more than `MOST_LINE_BYTES` is not read, nor is what
    follows it.
    """

    def __init__(self, path: Path, end: int = 0, cut_too: bool = False) -> None:
        """`cut_too`: the last line counts where its end is missing, too."""
        self._path, self._cut_too, self.end = path, cut_too, end

    def __iter__(self) -> Iterator[bytes]:
        with open(self._path, "rb", opener=regular) as file:
            file.seek(self.end)
            while block := file.read(BLOCK_BYTES) + file.readline(MOST_LINE_BYTES):
                whole = block[: block.rfind(b"\n") + 1]
                self.end += len(whole)
                if whole or self._cut_too:
                    yield block if self._cut_too else whole
                if len(whole) < len(block):
                    return


def rows_in(lines: bytes) -> list[dict[str, float] | None]:
    """The row of each line that is not blank; None: it is none."""
    try:  # several times as fast, and without NaN
        return [row if row.keys() >= FIRST else None for row in _NUMBERS.decode_lines(lines)]
    except (msgspec.MsgspecError, RecursionError):
        return [_row(line) for line in lines.split(b"\n") if line.strip()]


def _row(line: bytes) -> dict[str, float] | None:
    """The row of a line: a JSON object of numbers, with `wall_s` and `env_steps`; None for any other line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_row = isinstance(row, dict) and row.keys() >= FIRST
    return row if is_row and all(map(_is_number, row.values())) else None


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < WHOLE_LIMIT)
