"""How a host that SSH cannot reach joins a run: a file with the address of the broker and a one-time token."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from zmqrl.config.codec import from_json, object_of, to_json
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError
from zmqrl.messages.command import Join
from zmqrl.messages.files import ConnectionFile

FORMAT = 2


def write_connection_file(folder: Path, boot: Boot, join: Join) -> Path:
    """`<folder>/<host>.connect`, readable by its owner alone: it holds a token. Returns the path.

    The folder and the one that it is in are made when they are not there, private both.
    """
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
    path, part = folder / f"{boot.host}.connect", folder / f".{boot.host}.connect"
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(to_json(ConnectionFile(FORMAT, boot, join)), file)
    os.replace(part, path)  # whole or not at all: its user may be waiting for it
    return path


def remove_connection_file(folder: Path, host: str) -> None:
    """Its token was used: the file admits no further host."""
    with contextlib.suppress(OSError):
        (folder / f"{host}.connect").unlink()


def read_connection_file(path: Path) -> tuple[Boot, Join]:
    """The host's boot, and the `join` command. ConfigError when it is none, or others can read it."""
    try:
        data = object_of(path.read_bytes())
        if "format" in data and path.stat().st_mode & 0o077:
            raise ConfigError.about(path, "contains a token and is readable by other users", f"run chmod 600 {path}")
        if data.get("format", FORMAT) != FORMAT:
            what = f"has format {data['format']!r}, this zmqrl reads {FORMAT}"
            raise ConfigError.about(path, what, "install the zmqrl version of the run")
        found = from_json(ConnectionFile, data)
    except OSError as error:
        raise ConfigError(f"connection file {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        fix = "use the file HOST.connect that the launcher wrote"
        raise ConfigError.about(path, f"is not a connection file: {error}", fix) from error
    return found.boot, found.join
