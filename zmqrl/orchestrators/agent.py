"""One host agent, however it was started: its handshake is compared, its boot sent, its end verified."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Boot
from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed
from zmqrl.messages.agent import HostFinished
from zmqrl.messages.command import Command, Stop
from zmqrl.messages.lines import line_of
from zmqrl.messages.orchestrator import Handshake
from zmqrl.orchestrators.handshake import (
    clock_warnings,
    missing_runtime,
    processor_refusal,
    refusals,
    versions,
    warnings,
)
from zmqrl.orchestrators.host_start import INSTALL, silent_end, unended_prologue
from zmqrl.ssh.shell import OUTPUT_LINES, Pipe, printed

KILL_WAIT_S = 3.0
LOG_TAIL_BYTES = 16_000
Warn: TypeAlias = Callable[[str, str], None]
INSTALL_RUNTIME = (
    "install it there: pip install '.[onnx]' in a checkout of zmqrl "
    "(over SSH: zmqrl setup HOSTS.yaml --limit {host} --extras onnx)"
)


@dataclass(frozen=True)
class HostEnd:
    """What is known of a host after its agent has gone."""

    killed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass
class AgentProgress:
    """What an agent has reported so far; read by the main thread after the reader has seen it."""

    started: dict[tuple[int, int], str] = field(default_factory=dict)
    """(pid, start time) to `host/role-index (pid n)`."""
    finished: HostFinished | None = None
    refused: Counter[str] = field(default_factory=Counter)
    """Its lines that are not events, by reason."""
    output: deque[str] = field(default_factory=lambda: deque(maxlen=OUTPUT_LINES))
    """The last lines before its handshake: of a login shell."""


class AgentLog:
    """What one agent has written to a log on this machine, to which its stderr is appended."""

    def __init__(self, path: Path) -> None:
        """Before the agent is started."""
        self.path, self._start = path, path.stat().st_size if path.is_file() else 0

    def text(self) -> str:
        """Its last lines."""
        if not self.path.is_file():
            return ""
        with self.path.open("rb") as file:
            file.seek(self._start)
            return file.read()[-LOG_TAIL_BYTES:].decode(errors="replace")


class Agent(ABC):
    """One host agent on its pipe, however it was started. `pipe.lines` is read by a separate thread.

    The main thread calls the rest, `send` also the thread that renews the leases.
    """

    section = HostSection()
    """Section of the agent's host, where its command line was composed from one."""

    def __init__(self, boot: Boot, warn: Warn, log: Path, start: Callable[[Path], Pipe]) -> None:
        """Start it.

        Args:
            boot: Sent to it after its handshake.
            warn: Called by the reader thread, with the host and a text for the user.
            log: Its stderr is appended to this file.
            start: Function that starts it with this log. HostFailed.
        """
        self.boot, self.host, self.warn = boot, boot.host, warn
        self.progress = AgentProgress()
        self._boot_lock = threading.Lock()
        self._is_booted = self._is_refused = self._is_stopped = False
        self.is_released = False
        """Whether `release` was called: its end is not the end of its host's part in the run."""
        self.log = AgentLog(log)
        self.pipe = start(log)
        self.began = time.monotonic()
        """Time from which the agent's handshake is waited for."""

    def write(self, line: bytes) -> None:
        """To its stdin; never blocks; no error when it is gone."""
        try:
            self.pipe.write(line)
        except HostFailed as error:
            self.warn(self.host, str(error))  # its reader reports the rest

    def overdue(self) -> HostFailed | None:
        """Once, why it is not waited for any longer: `limits.start_s` have passed without a handshake."""
        limit_s = self.boot.plan.config.limits.start_s
        if self._is_booted or self._is_refused or time.monotonic() - self.began < limit_s or not self.refuse_boot():
            return None
        return self.no_handshake(f"within limits.start_s ({limit_s:g} s)")

    def no_handshake(self, when: str) -> HostFailed:
        """What is known of an agent that has sent no handshake, and still runs."""
        prologue = unended_prologue(self.host, self.section, self.log.text())
        if prologue is not None:
            fix = "log in and try the prologue; raise limits.start_s if it takes that long"
            return HostFailed(self.host, f"no handshake of the host agent {when}; {prologue}", fix)
        output = f"its login shell printed: {self.output}" if self.output else "its login shell printed nothing"
        return HostFailed(
            self.host,
            f"no handshake of the host agent {when}; {output}",
            "log in and look for a start-up file that waits (.bashrc, .profile), or a file server that does not answer",
        )

    @property
    def output(self) -> str:
        """What was printed before the handshake, at its end."""
        return printed([*self.progress.output, self.pipe.unfinished.decode(errors="replace")])

    def on_handshake(self, handshake: Handshake) -> None:
        """The handshake was received: compare versions, then send the boot. HostFailed when it cannot participate."""
        late = self.overdue()  # the main thread may not have looked since
        if late is not None:
            raise late
        here, there = versions(), handshake.versions
        wrong = refusals(here, there)
        if wrong:
            fix = INSTALL.format(host=self.host)
            raise HostFailed(self.host, f"the host has another version of zmqrl: {', '.join(wrong)}", fix)
        processor = processor_refusal(there.get("machine"), self.boot.plan.config.run.mode)
        if processor is not None:
            raise HostFailed(self.host, processor, "exclude it with --limit")
        missing = missing_runtime(self.boot.plan.config, there)
        if missing is not None:
            raise HostFailed(self.host, missing, INSTALL_RUNTIME.format(host=self.host))
        for difference in (*warnings(here, there), *clock_warnings(handshake.time, time.time())):
            self.warn(self.host, difference)
        with self._boot_lock:
            if self._is_refused:
                return
            boot = replace(self.boot, age_s=time.monotonic() - self.boot.plan.began)
            self.write(json.dumps(to_json(boot)).encode() + b"\n")
            self._is_booted = True  # after: a lease may be sent at any moment
        if self._is_stopped:  # `send` sets this before it reads the other: one of both sends the stop, or each
            self.write(line_of(Stop()))

    @property
    def is_booted(self) -> bool:
        """Whether it was accepted and has its boot; before that nothing of the run is on its host."""
        return self._is_booted

    def refuse_boot(self) -> bool:
        """Whether it has no boot; it gets none from now on."""
        with self._boot_lock:
            self._is_refused = True
            return not self._is_booted

    def send(self, command: Command) -> None:
        """A command, once it has its boot, which is the first line that it reads. An earlier stop follows the boot.

        Nothing is sent after its end: it would wait in memory for as long as the run lasts.
        """
        if isinstance(command, Stop):  # leases come from another thread, and set nothing
            self._is_stopped = True
        if self._is_booted and self.wait(0.0) is None:
            self.write(line_of(command))

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, None while it runs."""
        return self.pipe.exit_status(timeout_s)

    def silent_end(self, code: int | None) -> HostFailed | None:
        """Why it ended before its handshake, where known."""
        self.pipe.close()  # so that the end of its output is in the log
        return silent_end(self.host, self.section, code, self.stderr(), self.output, self.log.path)

    def stderr(self) -> str:
        """The end of what it wrote there, without lines that its engine added."""
        return self.log.text()

    def cut_off(self) -> HostFailed | None:
        """Why its engine ended it after its handshake, where the engine reports that."""
        return None

    def terminate(self) -> None:
        """Terminate an agent that has no boot, and nothing to lose."""
        self.pipe.terminate()

    def kill(self) -> None:
        """Kill an agent that does not end on its own."""
        self.pipe.kill()

    def release(self) -> None:
        """Another agent of its host is started: end this one and what leads to it. In a thread of its own."""
        self.is_released = True
        self.pipe.close()

    @abstractmethod
    def end(self) -> HostEnd:
        """Kill what is left of the processes of an agent that is gone and read to its end, and look for it again."""
