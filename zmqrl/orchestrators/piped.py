"""A program on a host, over the stdin and stdout of a command of this machine: any program, a shell, the agent."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from zmqrl.config.plan import Boot
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.agent import Agent, AgentLog, HostEnd, Warn
from zmqrl.orchestrators.host_start import start_fault
from zmqrl.ssh.shell import Finished, HostShell, Pipe

END_S = 2.0
CHUNK = 65536
CANCEL_S, CANCEL_AGAIN_S = 10.0, 0.1
RECORDS_END_S = 2.0
"""What an engine may take to record that a command has ended."""


class PipedProcess(Pipe):
    """Owns the process. What it does not read of its stdin delays no other process."""

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        stderr: Path,
        environment: Mapping[str, str] | None = None,
        begun: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Start `command` in a session of its own; its stderr is appended to the file. HostFailed.

        `environment`: None: that of this process. `begun`: the command has been started.
        """
        stderr.parent.mkdir(parents=True, exist_ok=True)
        try:
            with stderr.open("ab") as log:
                self._process = begun or subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise _not_started(host, command, error) from error
        self._has_reader = False
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, name=f"stdin of {host}", daemon=True)
        try:
            self._sender.start()
        except RuntimeError:  # no further thread: nothing else would end the command
            with self._process:
                self._process.kill()
            raise

    @property
    def pid(self) -> int:
        """Process id of the command."""
        return self._process.pid

    def write(self, data: bytes) -> None:
        self._unsent.put(data)

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        self._has_reader = True
        with self._process.stdout as stdout:
            yield from self.split(iter(partial(os.read, stdout.fileno(), CHUNK), b""))

    def exit_status(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """SIGTERM and the end of its stdin.

        The command of an engine ends on SIGTERM what it has queued there. One that misses the signal while it starts
        the agent passes on the end of stdin, which ends an agent that has no boot.
        """
        self._unsent.put(None)
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.wait(END_S)

    def close(self) -> None:
        self._unsent.put(None)
        if self.exit_status(END_S) is None:
            self.terminate()
        if self.exit_status(END_S) is None:
            self.kill()
        self._sender.join(END_S)
        if not self._has_reader:  # else the reader closes it
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _send(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended: the reader reports
            while (line := self._unsent.get()) is not None:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


class PipedAgent(Agent):
    """The host agent on the stdin and stdout of a command of this machine, which ends when the agent ends.

    A kind overrides `remaining` and `cancel` where its engine knows what is left of a host's part of the run.
    """

    def __init__(
        self,
        boot: Boot,
        warn: Warn,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        begun: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Start `command`, with `environment` in place of that of this process; its stderr is appended to `log`.

        `begun`: the command has been started so.

        Raises:
            HostFailed: The command cannot be started.
        """
        super().__init__(boot, warn)
        self.log = AgentLog(log)
        self.process = PipedProcess(boot.host, command, log, environment, begun)

    def remaining(self) -> Sequence[str]:
        """What the engine still has of this agent and its processes, by names that `cancel` takes. HostFailed."""
        return ()

    def cancel(self, names: Sequence[str]) -> None:
        """End these; `remaining` shows the result. HostFailed."""
        del names

    def lines(self) -> Iterator[str]:
        yield from self.process.lines()

    def unfinished(self) -> bytes:
        return self.process.unfinished

    def write(self, line: bytes) -> None:
        self.process.write(line)

    def wait(self, timeout_s: float) -> int | None:
        return self.process.exit_status(timeout_s)

    def stderr(self) -> str:
        return self.log.text()

    def silent_end(self, code: int | None) -> HostFailed | None:
        fault = start_fault(self.host, self.section, self.stderr())
        if fault is not None:
            return fault.of(self.host)
        tail = self.stderr().strip().splitlines()[-1:]
        cause = ": ".join([f"the host agent exited with code {code} before its handshake", *tail])
        return HostFailed(self.host, cause, f"see {self.log.path}")

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def release(self) -> None:
        self.process.close()

    def end(self) -> HostEnd:
        killed: tuple[str, ...] = ()
        left: Sequence[str] = ()
        cancel_at = time.monotonic() + RECORDS_END_S
        until = cancel_at + CANCEL_S
        try:
            while (left := self.remaining()) and time.monotonic() < until:
                if time.monotonic() >= cancel_at:
                    killed = killed or tuple(left)
                    self.cancel(left)
                time.sleep(CANCEL_AGAIN_S)  # an engine has no event for the end of a job
        except HostFailed as error:
            left = (f"? (unreachable: {error.cause})",)
        self.process.close()
        return HostEnd(tuple(f"{self.host}/{name}" for name in killed), tuple(f"{self.host}/{name}" for name in left))


class PipedShell(HostShell):
    """`sh -c COMMAND` behind a command that runs its arguments on the host; without one, on this machine."""

    def __init__(self, host: str, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """`environment`: of the command; None: that of this process."""
        self._host, self._prefix, self._environment = host, tuple(prefix), environment

    def run(self, command: str, timeout_s: float) -> Finished:
        argv = self.argv(command)
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                env=self._environment,
            )
        except OSError as error:
            raise _not_started(self._host, argv, error) from error
        except subprocess.TimeoutExpired as error:
            why = f"`{' '.join(self._prefix)}` did not end within {timeout_s:g} s"
            raise HostFailed(self._host, why, "check the state of the command") from error
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, command: str, stderr: Path) -> PipedProcess:
        return PipedProcess(self._host, self.argv(command), stderr, self._environment)

    def close(self) -> None:
        """Nothing is held between two commands."""

    def argv(self, command: str) -> list[str]:
        """The command of this machine."""
        return [*self._prefix, "sh", "-c", command]


def _not_started(host: str, command: Sequence[str], error: OSError) -> HostFailed:
    return HostFailed(host, f"{command[0]} cannot be started: {error.strerror}", f"install {command[0]} here")
