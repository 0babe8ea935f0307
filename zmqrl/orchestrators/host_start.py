"""Why the command line of a host did not reach its host agent, from what was written to its stderr. Pure."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.host_commands import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    PROLOGUE_BEGINS,
    PROLOGUE_ENDED,
    WRAP_NOT_FOUND,
)
from zmqrl.ssh.shell import OUTPUT_LINES, printed
from zmqrl.supervision.host_mark import FOREIGN_PROC, STDIN_ENDED
from zmqrl.supervision.process_table import cause_of

INSTALL = "install the zmqrl of this machine there (over SSH: zmqrl setup HOSTS.yaml --limit {host})"
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


def silent_end(host: str, section: HostSection, code: int | None, stderr: str, output: str, log: Path) -> HostFailed:
    """Why a host agent ended before its handshake.

    Args:
        host: Its name.
        section: Its own.
        code: Exit code of the agent.
        stderr: The end of what it wrote there.
        output: What it printed.
        log: The file that has its stderr.
    """
    fault = start_fault(host, section, stderr)
    if fault is not None:
        return fault.of(host)
    python, install = section.python, INSTALL.format(host=host)
    tail = stderr.strip().splitlines()[-5:]
    if code in (NOT_FOUND, NOT_EXECUTABLE):
        where = "" if section.wrap is None else f" within hosts.{host}.wrap (`{section.wrap}`)"
        return HostFailed(host, f"{python} was not found{where}", f"set hosts.{host}.python, or {install}")
    if any("No module named" in line and "zmqrl" in line for line in tail):
        return HostFailed(host, f"zmqrl is not installed in {python}", install)
    if any("No space left" in line for line in tail):
        fix = f"free disk space there, or set hosts.{host}.workdir to another disk"
        return HostFailed(host, f"No space left on device for {section.workdir}", fix)
    cause = f"the host agent {_end(code)} before its handshake"
    if not tail and output:
        fix = "another command than the agent has run there (ForceCommand?); use an account with a shell"
        return HostFailed(host, f"{cause}; it printed: {output}", fix)
    return HostFailed(host, ": ".join([cause, *tail[-1:]]), f"see {log}")


def _end(code: int | None) -> str:
    """Clause about an exit code; the command of an engine has one of its own where it lost its program."""
    if code in range(128):
        return f"exited with code {code}"
    known = "" if code is None or code == -1 else f" ({cause_of(code)})"
    return f"was killed, or its connection was lost{known},"


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
