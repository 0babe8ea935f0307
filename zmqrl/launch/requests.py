"""How other commands ask a running launcher for something: a file per request in the run directory, and its answer."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zmqrl.errors import ConfigError, DeadlineExceeded

FOLDER = "requests"
LOOK_EVERY_S = 0.05
MAX_BYTES = 65_536


def ask(run_dir: Path, request: Mapping[str, Any], deadline_s: float) -> str:
    """Put a request and wait for its answer.

    Raises:
        ConfigError: The launcher refuses it; the message is its own.
        DeadlineExceeded: It does not answer.
    """
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    name = secrets.token_hex(6)
    asked, answered = folder / f"{name}.json", folder / f"{name}.answer"
    _write(asked, request)
    until = time.monotonic() + deadline_s
    while not answered.exists():
        if time.monotonic() > until:
            asked.unlink(missing_ok=True)
            raise DeadlineExceeded(f"the launcher of {run_dir} did not answer within {deadline_s:g} s")
        time.sleep(LOOK_EVERY_S)  # a file is all that two processes of any two times share
    answer = json.loads(answered.read_text())
    answered.unlink()
    if "refused" in answer:
        raise ConfigError(str(answer["refused"]))
    return str(answer["done"])


class Requests:
    """The launcher's end."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER

    def waiting(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """Requests that are there, each with the name to answer under. OSError: the folder cannot be used now."""
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            try:
                request = json.loads(path.read_text()) if path.stat().st_size < MAX_BYTES else None
            except (OSError, ValueError):
                request = None
            path.unlink(missing_ok=True)  # first: what cannot be removed would be served for ever
            if isinstance(request, dict):
                yield path, request

    def answer(self, path: Path, key: str, text: str) -> None:
        """`key`: done or refused."""
        _write(path.with_suffix(".answer"), {key: text})


def _write(path: Path, data: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data))
    temporary.replace(path)
