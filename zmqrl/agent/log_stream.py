"""Logs of a remote host on their way to the launcher: what processes wrote since the last look, as `log` events."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zmqrl.agent.output import AgentOutput
from zmqrl.messages.agent import LogText

MOST_BYTES = 65_536
"""Of one log at one look."""
MOST_PENDING_BYTES = 1_000_000
"""While so much waits for the launcher, logs stay where they are."""


class LogStream:
    """Follows the files of one folder."""

    def __init__(self, folder: Path, output: AgentOutput) -> None:
        self._folder, self._output = folder, output
        self._at: dict[Path, int] = {}

    def follow(self, names: Iterable[str]) -> None:
        """Send what is new in `<name>.log`, as far as the connection takes it."""
        for name in names:
            if self._output.pending_bytes > MOST_PENDING_BYTES:
                return
            text = self._new(self._folder / f"{name}.log")
            if text:
                self._output.send(LogText(name, text.decode(errors="replace")))

    def _new(self, path: Path) -> bytes:
        try:
            with path.open("rb") as log:
                end = log.seek(0, 2)
                at = self._at.get(path, 0)
                at = log.seek(at if at <= end else 0)  # it was emptied
                text = log.read(MOST_BYTES)
        except OSError:
            return b""
        self._at[path] = at + len(text)
        return text
