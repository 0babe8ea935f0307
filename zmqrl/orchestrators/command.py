"""Hosts behind commands of this machine, as templates: containers, batch systems, MPI, another SSH client."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot
from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.config.sections import Config as RunConfig
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.host_commands import job_name
from zmqrl.orchestrators.piped import PLACE_OF_LINE, PipedShell, finished
from zmqrl.orchestrators.shell_orchestrator import ShellOrchestrator
from zmqrl.ssh.shell import printed

ANSWER_S = 15.0
HOST, RUN_ID, NAME = "{host}", "{run_id}", "{name}"
KNOWN = {
    "run": (HOST, PLACE_OF_LINE),
    "start": (HOST, RUN_ID, NAME, PLACE_OF_LINE),
    "remaining": (HOST, RUN_ID, NAME),
    "cancel": (),
}
"""Placeholders by key."""
_PLACEHOLDER = re.compile(r"\{\w+\}")


@dataclass(frozen=True)
class CommandConfig:
    """A command of this machine runs programs on each host, with their stdin and stdout (hosts/commands.md)."""

    __pydantic_config__ = FORBID_UNKNOWN

    run: tuple[str, ...]
    """Runs its further words, `sh -c LINE`, on the host `{host}`; `{command}` is another place for LINE alone."""
    start: tuple[str, ...] = ()
    """Runs the host agent in the same way, as job `{name}` of the run `{run_id}`; empty: by `run`."""
    remaining: tuple[str, ...] = ()
    """Prints the ids of what the engine still has of `{name}`, one a line; empty: the reaper finds it, by `run`."""
    cancel: tuple[str, ...] = ()
    """Ends the ids that are its further words."""

    def __post_init__(self) -> None:
        """ValueError for an unknown placeholder, a missing one or command, and `remaining` or `cancel` alone."""
        if not self.run:
            raise ValueError("run must have a command")
        for key, known in KNOWN.items():
            for placeholder in _PLACEHOLDER.findall(" ".join(getattr(self, key))):
                if placeholder not in known:
                    raise ValueError(f"{key} has an unknown {placeholder}; known there: {', '.join(known) or 'none'}")
            if any(PLACE_OF_LINE in word != PLACE_OF_LINE for word in getattr(self, key)):
                raise ValueError(f"{key} has {PLACE_OF_LINE} as a part of a word; it must be a word of its own")
        if bool(self.remaining) != bool(self.cancel):
            raise ValueError("remaining and cancel need each other: set both, or none")
        if self.remaining and not _selects_a_host(self.remaining):
            missing = f"remaining must have {NAME}, or {RUN_ID} and {HOST}"
            raise ValueError(f"{missing}: cancel ends all that it lists, which may be of other runs")
        if NAME in " ".join(self.remaining) and not _selects_a_host(self.start):
            missing = f"start must have {NAME}, by which remaining finds the host agent"
            raise ValueError(f"{missing}: as a name of the job or container, or as a variable of it (env JOB={NAME})")


class CommandOrchestrator(ShellOrchestrator):
    """A command per host; what remains of a run is listed by another command, or found by the reaper."""

    Config = CommandConfig

    @classmethod
    def shell(cls, config: CommandConfig, run: RunConfig, host: str) -> PipedShell:
        return PipedShell(host, _filled(config.run, host))

    def shells(self, boots: Mapping[str, Boot]) -> Iterator[tuple[str, PipedShell]]:
        for host in boots:
            start = _filled(self.config.start, host, self.plan.run_id)
            yield host, PipedShell(host, _filled(self.config.run, host), start=start)

    @classmethod
    def access(cls, config: CommandConfig, run: RunConfig) -> CommandAccess:
        return CommandAccess(config, run)


class CommandAccess(HostAccess):
    """Hosts by `run`, and what remains of a run by `remaining` and `cancel`."""

    config: CommandConfig

    def __init__(self, config: CommandConfig, run: RunConfig) -> None:
        super().__init__(config, run)
        self.lists_jobs = bool(config.remaining)

    def shells(self, hosts: Sequence[str]) -> Iterator[tuple[str, PipedShell]]:
        for host in hosts:
            yield host, CommandOrchestrator.shell(self.config, self.run, host)

    def remaining(self, host: str, run_id: str) -> Sequence[str]:
        lines = _output(host, "remaining", _filled(self.config.remaining, host, run_id)).splitlines()
        return [line.strip() for line in lines if line.strip()]

    def cancel(self, names: Sequence[str]) -> None:
        """HostFailed also where an id has ended meanwhile; `remaining` shows the result."""
        _output(LOCAL, "cancel", [*self.config.cancel, *names])


def _output(host: str, key: str, command: Sequence[str]) -> str:
    done = finished(host, command, ANSWER_S)
    if done.code != 0:
        cause = f"orchestrator.{key} ended with exit code {done.code}"
        reported = printed(done.stderr.decode(errors="replace").splitlines())
        raise HostFailed(host, f"{cause}: {reported}" if reported else cause, f"try: {shlex.join(command)}")
    return done.stdout.decode(errors="replace")


def _selects_a_host(words: Sequence[str]) -> bool:
    """Whether a command can tell the jobs of one host of one run from others."""
    found = set(_PLACEHOLDER.findall(" ".join(words)))
    return NAME in found or {RUN_ID, HOST} <= found


def _filled(words: Sequence[str], host: str, run_id: str = "") -> list[str]:
    values = {HOST: host, RUN_ID: run_id, NAME: job_name(run_id, host)}
    return [_PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), word) for word in words]
