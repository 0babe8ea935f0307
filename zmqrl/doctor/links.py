"""The host agent that examines a host, over the orchestrator's shell of that host."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import structs

from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import HostSection
from zmqrl.doctor.measurement import Failure
from zmqrl.errors import HostFailed, WireError
from zmqrl.messages.command import BeginExamination
from zmqrl.messages.doctor import Reply, read_reply
from zmqrl.messages.doctor_requests import Request, request_line
from zmqrl.messages.lines import handshake, line_of
from zmqrl.messages.orchestrator import Handshake
from zmqrl.orchestrators.handshake import SENTINEL
from zmqrl.orchestrators.host_commands import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    examiner_command,
    reaper_command,
    shell_handshake_command,
)
from zmqrl.orchestrators.host_start import start_fault, unended_prologue
from zmqrl.orchestrators.on_hosts import REAP_S, report_in
from zmqrl.orchestrators.piped import PipedShell
from zmqrl.ssh.shell import OUTPUT_LINES, HostShell, after_mark, printed
from zmqrl.supervision.host_mark import NO_RUN

LOOPBACK = "127.0.0.1"
END_S = 2.0
STDERR_TAIL = 4000
SHELL_S = 5.0
TRACEBACK = "Traceback (most recent call last)"
_MISSING = re.compile(r"No module named '?([\w.]+)'?")


class HostLink:
    """One agent. Its reader calls `replies`, then `failure` and `release`; another thread the rest. Owns the shell.

    Attributes:
        accepted: What to report to the user: host keys that were new and are now known.
        refused: Lines with the mark of messages that are invalid, by reason.
    """

    def __init__(self, host: str, shell: HostShell, section: HostSection, learner_is_here: bool = True) -> None:
        """Start it. HostFailed.

        `section`: with `tunnel` the host reaches what listens elsewhere through ports of its own. `learner_is_here`:
        such a tunnel needs no address of this machine.
        """
        self.accepted = shell.accepted
        self.refused: Counter[str] = Counter()
        self._host, self._shell, self._section, self._learner_is_here = host, shell, section, learner_is_here
        self._is_examining = self._has_handshake = self._cannot_start = False
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES)
        with contextlib.ExitStack() as undo:
            undo.callback(shell.close)
            descriptor, name = tempfile.mkstemp(prefix="zmqrl-doctor-", suffix=".log")
            os.close(descriptor)
            self._stderr = Path(name)
            undo.callback(self._stderr.unlink)
            self._pipe = shell.start(examiner_command(section, host), self._stderr)
            undo.pop_all()

    def send(self, request: Request) -> None:
        """Never blocks; no error when the agent is gone: `replies` ends then. HostFailed when it reads nothing."""
        if not self._is_examining:
            self._is_examining = True
            self._pipe.write(line_of(BeginExamination()))
        self._pipe.write(request_line(request))

    def replies(self) -> Iterator[Handshake | Reply]:
        """Its handshake and messages, until it ends or the connection is lost."""
        yield from self.replies_in(self._pipe.lines())

    def replies_in(self, lines: Iterable[str]) -> Iterator[Handshake | Reply]:
        """The messages in `lines`; a malformed one is counted, other output is ignored."""
        for line in lines:
            try:
                text = after_mark(line, SENTINEL)
                reply = read_reply(line) if text is None else handshake(text)
            except WireError as error:
                self.refused[error.reason] += 1
                continue
            if reply is None and not self._has_handshake:
                self._output.append(line)
            if reply is not None:
                self._has_handshake |= isinstance(reply, Handshake)
                yield reply

    @property
    def has_handshake(self) -> bool:
        """Whether its agent has started."""
        return self._has_handshake

    @property
    def has_prologue(self) -> bool:
        """Whether its agent starts after a prologue, which may take as long as `limits.start_s`."""
        return self._section.prologue is not None

    @property
    def printed(self) -> str:
        """What its login shell has printed, until there is a handshake."""
        lines = [*self._output, self._pipe.unfinished.decode(errors="replace")]
        return "" if self._has_handshake else printed(lines)

    @property
    def waits_for(self) -> str:
        """What an agent without handshake waits for, with its output: the prologue, or the login shell."""
        if self._has_handshake:
            return ""
        prologue = unended_prologue(
            self._host, self._section, self._stderr.read_text(encoding="utf-8", errors="replace")
        )
        return prologue or (f"its login shell printed: {self.printed}" if self.printed else "")

    def reaper_failure(self) -> Failure | None:
        """Why the end of a run could not be verified on a host with `wrap`. HostFailed."""
        if self._section.wrap is None:
            return None
        command = reaper_command(self._section, NO_RUN, self._host, 0.0)
        done = self._shell.run(command, REAP_S)
        if report_in(done.stdout) is not None:
            return None
        cause = f"the reaper does not start outside of hosts.{self._host}.wrap (`{self._section.wrap}`), where it sees "
        last = printed((done.stderr or done.stdout).decode(errors="replace").splitlines()[-1:])
        cause += f"every process of the host: {last or f'exit code {done.code}'}"
        return Failure("wrap", cause, f"install zmqrl outside of wrap, as {self._section.python}")

    def failure(self) -> Failure:
        """Why it ended, if it was before its time. After `replies` has ended."""
        code = self._pipe.exit_status(END_S)
        self.hang_up()  # then its stderr is whole
        stderr = self._stderr.read_text(encoding="utf-8", errors="replace")[-STDERR_TAIL:]
        fault = start_fault(self._host, self._section, stderr)
        if fault is not None:
            return Failure(*fault)
        failure = why_it_ended(code, stderr.strip() or self.printed)
        self._cannot_start = not self._has_handshake and (failure.check != "probe" or TRACEBACK in stderr)
        return failure

    def shell_handshake(self) -> Handshake | None:
        """What a shell finds where the agent cannot start because of what is installed. After `failure`."""
        if not self._cannot_start:
            return None
        try:
            done = self._shell.run(shell_handshake_command(self._section, self._host), SHELL_S)
        except HostFailed:
            return None  # the end of the agent is reported as it is
        replies = self.replies_in(done.stdout.decode(errors="replace").splitlines())
        found = next((reply for reply in replies if isinstance(reply, Handshake)), None)
        return None if found is None else structs.replace(found, python=self._section.python or "")

    def forwarded(self, addresses: Sequence[str], ports: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Where this host finds what listens at `addresses` and `ports`: there, or at a tunnel's end. HostFailed."""
        if not self._section.tunnel:
            return tuple(addresses), tuple(ports)
        places = (LOOPBACK,) if self._learner_is_here or not addresses else addresses
        return (LOOPBACK,), tuple(self._shell.forward_back([(place, port) for place in places]) for port in ports)

    def hang_up(self) -> None:
        """End the agent, and so `replies`; bounded. Safe when it has ended."""
        with contextlib.suppress(EOFError, OSError):  # the reader may be releasing it in this moment
            self._pipe.close()

    def release(self) -> None:
        """Give everything back, once the agent has ended."""
        self.hang_up()
        with contextlib.suppress(EOFError, OSError):
            self._shell.close()
        self._stderr.unlink(missing_ok=True)


def link_here(section: HostSection) -> HostLink:
    """An agent that is a child of this process, with its interpreter and working directory."""
    here = replace(section, python=sys.executable, workdir=".", prologue=None, wrap=None)
    return HostLink(LOCAL, PipedShell(LOCAL), here)


def why_it_ended(code: int | None, stderr: str) -> Failure:
    """Why an agent ended before its time, from exit code and stderr; what fixes it follows from the kind. Pure."""
    last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "no output")
    if code == NOT_FOUND:
        return Failure("python", f"python was not found: {last}")
    if code == NOT_EXECUTABLE:
        return Failure("python", f"python cannot be started: {last}")
    missing = _MISSING.search(last)
    if missing and missing[1].partition(".")[0] == "zmqrl":
        return Failure("zmqrl", f"zmqrl is missing or of another version in the host's Python: {last}")
    if missing:
        return Failure("packages", f"a package is missing in the host's Python: {last}")
    return Failure("probe", f"the probe exited (code {'unknown' if code is None else code}): {last}")
