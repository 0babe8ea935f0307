"""A program on a host, and a shell there, over the stdin and stdout of a command of this machine."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from zmqrl.errors import HostFailed
from zmqrl.ssh.shell import Finished, HostShell, Pipe

END_S = 2.0
CHUNK = 65536
PLACE_OF_LINE = "{command}"
SHOWN = 300
"""Characters of a command in a message."""


class PipedProcess(Pipe):
    """Owns the process. A thread writes to its stdin: one that does not read it delays no caller of `write`."""

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


class PipedShell(HostShell):
    """`sh -c LINE` behind a command that runs its further words on the host; without one, on this machine.

    A word `{command}` of the command is the place of LINE alone, for a command that joins its words, such as ssh.
    """

    def __init__(
        self,
        host: str,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        start: Sequence[str] = (),
    ) -> None:
        """`environment`: of the command; None: that of this process. `start`: in place of `prefix` for what stays."""
        self._host, self._prefix, self._environment, self._start = host, prefix, environment, start

    def run(self, command: str, timeout_s: float) -> Finished:
        return finished(self._host, _argv(self._prefix, command), timeout_s, self._environment)

    def start(self, command: str, stderr: Path) -> PipedProcess:
        return PipedProcess(self._host, _argv(self._start or self._prefix, command), stderr, self._environment)

    def close(self) -> None:
        """Nothing is held between two commands."""


def finished(
    host: str,
    command: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    input: bytes = b"",
) -> Finished:
    """How a command of this machine ended. HostFailed when it cannot be started, or takes longer.

    It has a session of its own: Ctrl-C is for this process, which may use the command to end a run.
    """
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        ) as process:
            try:
                stdout, stderr = process.communicate(input, timeout_s)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what it has started
                raise
    except OSError as error:
        raise _not_started(host, command, error) from error
    except subprocess.TimeoutExpired as error:
        why = f"`{' '.join(command)[:SHOWN]}` did not end within {timeout_s:g} s"
        raise HostFailed(host, why, "run it in a terminal, to see what it waits for") from error
    return Finished(process.returncode, stdout, stderr)


def _argv(prefix: Sequence[str], line: str) -> list[str]:
    if PLACE_OF_LINE in prefix:
        return [line if word == PLACE_OF_LINE else word for word in prefix]
    return [*prefix, "sh", "-c", line]


def _not_started(host: str, command: Sequence[str], error: OSError) -> HostFailed:
    return HostFailed(host, f"{command[0]} cannot be started: {error.strerror}", f"install {command[0]} here")
