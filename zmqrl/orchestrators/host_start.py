"""Why the command line of a host did not reach its host agent, from what was written to its stderr. Pure."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.host_commands import NOT_FOUND, PROLOGUE_BEGINS, PROLOGUE_ENDED, WRAP_NOT_FOUND
from zmqrl.ssh.shell import OUTPUT_LINES, printed
from zmqrl.supervision.host_mark import FOREIGN_PROC, STDIN_ENDED

FUNCTIONS = (
    "`sh` reads no start-up file: begin the prologue with those that define module and conda, such as "
    ". /etc/profile.d/modules.sh; . ~/miniconda3/etc/profile.d/conda.sh"
)


class StartFault(NamedTuple):
    """What is wrong with `prologue` or `wrap` of a host."""

    key: str
    cause: str
    fix: str

    def of(self, host: str) -> HostFailed:
        """Failure of a host that has this fault."""
        return HostFailed(host, self.cause, self.fix)


class Prologue(NamedTuple):
    """The last prologue in the stderr of a host."""

    code: int | None
    """None: it has not ended."""
    output: str


def start_fault(host: str, section: HostSection, stderr: str) -> StartFault | None:
    """The fault of `prologue` or `wrap` that `stderr` shows; None where it shows none."""
    prologue = last_prologue(stderr)
    if section.prologue is not None and prologue is not None and prologue.code:
        cause = f"hosts.{host}.prologue failed with exit code {prologue.code}: `{section.prologue}`; {prologue.output}"
        fix = FUNCTIONS if prologue.code == NOT_FOUND else "try it there: sh -c 'PROLOGUE'"
        return StartFault("prologue", cause, fix)
    if section.wrap is None:
        return None
    lines, wrap = stderr.splitlines(), f"hosts.{host}.wrap (`{section.wrap}`)"
    if WRAP_NOT_FOUND in lines:
        cause = f"{wrap}: {shlex.split(section.wrap)[0]} was not found"
        return StartFault("wrap", cause, f"install it there, or put it on PATH with hosts.{host}.prologue")
    if STDIN_ENDED in lines:
        cause = f"{wrap} does not pass stdin on: the host agent receives its commands there"
        return StartFault("wrap", cause, "use its option that keeps stdin open, such as `docker exec -i`")
    if FOREIGN_PROC in lines:
        cause = f"{wrap} makes a pid namespace without its own /proc"
        return StartFault("wrap", cause, "mount it: unshare --mount-proc")
    return None


def unended_prologue(host: str, section: HostSection, stderr: str) -> str | None:
    """What a prologue that still runs has printed; None where none runs."""
    prologue = last_prologue(stderr)
    if section.prologue is None or prologue is None or prologue.code is not None:
        return None
    return f"hosts.{host}.prologue has not ended: `{section.prologue}`; {prologue.output}"


def last_prologue(stderr: str) -> Prologue | None:
    """The last one whose begin is in `stderr`."""
    _, begins, text = stderr.rpartition(f"{PROLOGUE_BEGINS}\n")
    if not begins:
        return None
    output, ended, rest = text.rpartition(PROLOGUE_ENDED)
    code = rest.partition("\n")[0]
    lines = (output if ended else text).splitlines()
    shown = printed(lines[-OUTPUT_LINES:])
    return Prologue(int(code) if code.isdecimal() else None, f"it printed: {shown}" if shown else "it printed nothing")
