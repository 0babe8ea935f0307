"""`logs`: the logs of the processes of a run, of all hosts."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqrl.cli.run.on import RUN_HELP, OnCommand
from zmqrl.errors import ConfigError, FolderOfRuns
from zmqrl.logs.printable import printable

if TYPE_CHECKING:
    from zmqrl.run_files.run_info import RunInfo

POLL_EVERY_S = 0.2
LINES = 20


@click.command("logs", cls=OnCommand, epilog=RUN_HELP)
@click.argument("run", required=False)
@click.argument("who", required=False)
@click.option("-f", "--follow", is_flag=True, help="Follow the logs until the run ends.")
@click.option(
    "-n",
    "lines",
    type=click.IntRange(1),
    metavar="N",
    help=f"Show the last N lines of each log. Default: {LINES}; with --grep: all.",
)
@click.option("--grep", metavar="X", help="Show only lines that match the regular expression X.")
@click.option("--json", "as_data", is_flag=True, help="Print each log line as a JSON object.")
def logs_command(
    run: str | None, who: str | None, follow: bool, lines: int | None, grep: str | None, as_data: bool
) -> None:
    """Show the logs of RUN.

    WHO selects logs: HOST, ROLE, ROLE-INDEX, HOST/ROLE-INDEX, or HOST/INDEX for a worker. ROLE is agent
    (the host agent), broker, evaluator, learner or worker. A single argument is RUN if it names a run, otherwise WHO.
    """
    pattern = _pattern(grep)
    directory, info, who = _found(run, who)
    logs = _logs(directory, who)
    if not logs:
        known = _names(directory)
        if not known:
            raise ConfigError.about(directory, "has no logs")
        raise ConfigError(f"no log of {who!r} in {directory}", fix=f"known: {known}")
    from zmqrl.run_files.run_info import is_live

    first = -lines if lines else (0 if grep else -LINES)
    new = {log.path: log.read(to_the_end=not follow) for log in _oldest_first(logs)}
    if not any(new.values()) and not any(log.is_unreadable for log in logs.values()):
        click.echo(f"no log lines yet in {directory / 'logs'}", err=True)
    matching = {path: [line for line in found if pattern.search(line)] for path, found in new.items()}
    if any(new.values()) and not any(matching.values()):
        click.echo(f"no line in {directory / 'logs'}{f' of {who}' if who else ''} matches {grep!r}", err=True)
    for path, found in matching.items():
        _show(logs[path], found[first:], as_data)
    while follow:
        follow = is_live(directory, info)  # before we look: what it wrote last is still shown
        logs = {**_logs(directory, who), **logs}
        for log in _oldest_first(logs):
            _show(log, [line for line in log.read(to_the_end=not follow) if pattern.search(line)], as_data)
        time.sleep(POLL_EVERY_S if follow else 0.0)  # a log is a file: there is nothing to wait on


@dataclass
class Log:
    """One log, read from where the last reading ended."""

    path: Path
    is_unreadable: bool = False
    _at: int = 0
    _begun: bytes = field(default=b"", repr=False)

    @property
    def written_at(self) -> float:
        """Unix time of its last line."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0

    @property
    def name(self) -> str:
        """`host/role-index`; `launcher` for the launcher's."""
        host, role, index = _parts(self.path)
        return f"{host}/{role}-{index}" if index else self.path.stem

    def is_of(self, who: str) -> bool:
        """Whether `who` names it: its host, role, worker, or all of these."""
        host, role, index = _parts(self.path)
        if not index:
            return who == self.path.stem
        names = {host, role, f"{role}-{index}", f"{host}/{role}", f"{host}/{role}-{index}", self.path.stem}
        return who in names or (role == "worker" and who == f"{host}/{index}")

    def read(self, to_the_end: bool) -> list[str]:
        """Lines since the last call; `to_the_end`: the writer has ended, and an incomplete line counts."""
        lines = self._new_lines()
        if to_the_end and self._begun:
            lines.append(self._begun.decode(errors="replace"))
            self._begun = b""
        return lines

    def _new_lines(self) -> list[str]:
        """Lines that were finished since the last call; of a log that was emptied, from its new beginning."""
        try:
            with self.path.open("rb") as file:
                if self._at > file.seek(0, 2):
                    self._at, self._begun = 0, b""
                file.seek(self._at)
                read = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            if not self.is_unreadable:
                self.is_unreadable = True
                click.echo(f"{self.path} cannot be read: {error.strerror}", err=True)
            return []
        self._at += len(read)
        *lines, self._begun = (self._begun + read).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def _parts(path: Path) -> tuple[str, str, str]:
    """Host, role, index of `<host>-<role>-<index>.log`; a host's name may have dashes."""
    parts = path.stem.rsplit("-", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 and parts[2].isdecimal() else ("", path.stem, "")


def _logs(directory: Path, who: str | None) -> dict[Path, Log]:
    folder = directory / "logs"
    names = os.listdir(folder) if folder.is_dir() else []  # `glob` takes an unreadable one for an empty one
    logs = [Log(folder / name) for name in sorted(names) if name.endswith(".log")]
    return {log.path: log for log in logs if who is None or log.is_of(who)}


def _oldest_first(logs: dict[Path, Log]) -> list[Log]:
    """Lines have no timestamps: the logs are ordered by their last lines."""
    return sorted(logs.values(), key=lambda log: log.written_at)


def _found(run: str | None, who: str | None) -> tuple[Path, RunInfo, str | None]:
    """A single argument that names no run is WHO, of the default run."""
    from zmqrl.cli.run.find_run import find_run
    from zmqrl.run_files.run_info import is_run

    try:
        return (*find_run(run), who)
    except FolderOfRuns:
        raise
    except ConfigError as error:
        if run is None or who is not None or is_run(Path(run)):
            raise
        try:
            directory, info = find_run(None)
        except ConfigError as no_run:
            raise ConfigError(f"no run {run!r}; {no_run}") from None
        if not _logs(directory, run):
            raise ConfigError(
                f"{error}; {directory} has no log with this name", fix=f"known: {_names(directory) or 'none'}"
            ) from error
        return directory, info, run


def _names(directory: Path) -> str:
    return ", ".join(log.name for log in _logs(directory, None).values())


def _pattern(grep: str | None) -> re.Pattern[str]:
    try:
        return re.compile(grep or "")
    except re.error as error:
        what = f"is not a valid regular expression: {error}"
        raise ConfigError(what, key=("--grep",), value=repr(grep), is_subject=True) from error


def _show(log: Log, lines: list[str], as_data: bool) -> None:
    for line in lines:
        click.echo(json.dumps({"process": log.name, "line": line}) if as_data else printable(f"{log.name}: {line}"))
