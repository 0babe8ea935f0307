"""Weights & Biases: a run of a project, or of an offline directory. Steps are the numbers of rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from zmqrl.errors import ConfigError
from zmqrl.metrics.upload import Destination, NumberedRow, UploadedRun, UploadError, imported, service_errors

SETTINGS = {
    "console": "off", "silent": True, "disable_git": True, "disable_code": True,
    "x_disable_stats": True, "x_disable_meta": True,
}  # fmt: skip
"""What is recorded is the run, not this process."""
HEADER_BYTES, BLOCK_BYTES = 7, 32_768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
"""Parts of a record in the log format of LevelDB, which `.wandb` files have."""


class WandbRun(Destination):
    """A killed upload leaves a file that may lack the last rows: the next one adds a file of the same run."""

    def __init__(self, run: UploadedRun, folder: Path | None) -> None:
        """`folder`: of offline directories; None: the service."""
        self._run, self._folder = run, folder
        self._session: Any = None

    def open(self) -> int:
        wandb, run = imported("wandb", "wandb"), self._run
        begin = 0 if self._folder is None else self._stored(self._folder)
        with service_errors("W&B", wandb.Error, OSError), _usage_errors(wandb.errors):
            self._session = wandb.init(
                project=run.project,
                id=run.id,
                name=run.directory.name,
                config={**run.config},
                dir=self._folder,
                mode="online" if self._folder is None else "offline",
                resume="allow" if self._folder is None else None,
                reinit="create_new",
                settings=wandb.Settings(**SETTINGS),
            )
            self._session.define_metric("*", step_metric="env_steps")
        return max(begin, int(self._session.step))

    def write(self, rows: Sequence[NumberedRow]) -> None:
        with service_errors("W&B", imported("wandb", "wandb").Error, OSError):
            for step, values in rows:
                self._session.log({**values}, step=step, commit=True)

    def close(self, exit_code: int | None) -> None:
        if self._session is not None:
            with service_errors("W&B", imported("wandb", "wandb").Error, OSError):
                self._session.finish(exit_code=exit_code or 0)

    def _stored(self, folder: Path) -> int:
        """The step after the last row in the files of the run; a process of wandb may outlive a killed upload."""
        folder.mkdir(parents=True, exist_ok=True)
        files = list(folder.glob(f"wandb/offline-run-*-{self._run.id}/run-{self._run.id}.wandb"))
        if (writer := _writer(files)) is not None:
            raise UploadError(f"process {writer} writes {self._run.id} in {folder}")
        found = (record.history.step.num for file in files for record in records(file) if record.HasField("history"))
        return 1 + max(found, default=-1)


@contextmanager
def _usage_errors(kinds: Any) -> Iterator[None]:
    """Errors that remain when the service is tried again."""
    try:
        yield
    except (kinds.UsageError, kinds.AuthenticationError) as error:
        fix = "check --project and `wandb login` (or WANDB_API_KEY), or write offline directories: --to FOLDER"
        raise ConfigError(f"W&B: {error}", key=(), fix=fix) from error


def records(file: Path) -> Iterator[Any]:
    """The complete records of a `.wandb` file, as messages of wandb."""
    message, data, place = imported("wandb.proto.wandb_internal_pb2", "wandb").Record, file.read_bytes(), HEADER_BYTES
    parts = b""
    while place + HEADER_BYTES <= len(data):
        if (left := BLOCK_BYTES - place % BLOCK_BYTES) < HEADER_BYTES:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        place += HEADER_BYTES
        if kind not in (FULL, FIRST, MIDDLE, LAST) or place + length > len(data):
            return  # the end of a file whose writer was killed
        parts = (b"" if kind in (FULL, FIRST) else parts) + data[place : place + length]
        place += length
        if kind in (FULL, LAST):
            yield message.FromString(parts)


def _writer(files: Sequence[Path]) -> int | None:
    """A process that has one of the files open."""
    names = {str(file.resolve()) for file in files}
    for process in psutil.process_iter() if names else ():
        with suppress(psutil.Error):
            if names & {file.path for file in process.open_files()}:
                return process.pid
    return None
