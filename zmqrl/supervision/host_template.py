"""The template of a host: a fork of the host agent that imports what the processes of the run need, and forks them.

It never imports torch or the user's code, starts no thread, opens no zmq context, and holds no descriptor but its
socket and its log. What it forks is a child of the agent, which starts processes by exec where the template is missing.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from zmqrl.loading import add_own_paths, limit_threads, loading
from zmqrl.messages.check import Become, read_request
from zmqrl.messages.lines import line_of
from zmqrl.supervision.host_mark import NO_RUN
from zmqrl.supervision.own_session import die_with
from zmqrl.supervision.shown_command import ROLE, assume, packed, show

IMPORTED = (
    "gymnasium",
    "zmqrl.acting.numpy_policy",
    "zmqrl.broker.process",
    "zmqrl.evaluator.process",
    "zmqrl.learner.process",
    "zmqrl.rollout.worker",
)
TEMPLATE = "zmqrl.template"
MOST_BYTES, MOST_DESCRIPTORS = 1 << 20, 16
START_S, ANSWER_S, END_S = 60.0, 10.0, 1.0
"""For the imports of the template and its first answer; for each further one; for its end."""
STDIN, STDOUT, STDERR = range(3)

_here: HostTemplate | None = None


def _has_ended(pidfd: int, timeout_s: float) -> bool:
    watched = select.poll()
    watched.register(pidfd, select.POLLIN)
    return bool(watched.poll(timeout_s * 1000))


def here() -> HostTemplate | None:
    """The template of this process, a host agent; None where it has none."""
    return _here


class TemplateLost(Exception):
    """A template has ended, or does not answer. It may have forked the process that was requested."""


class ForkedProcess:
    """A child of this process that `subprocess` has not started, with those methods of `Popen` that an agent uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: Any = None  # as that of `Popen`: None until `wait`

    def wait(self, timeout: float | None = None) -> int:
        """Exit code, or the negative number of the signal. TimeoutExpired."""
        if self.returncode is None:
            if timeout is not None:
                pidfd = os.pidfd_open(self.pid)
                has_ended = _has_ended(pidfd, timeout)
                os.close(pidfd)
                if not has_ended:
                    raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return int(self.returncode)

    def send_signal(self, number: int) -> None:
        """Signal it, unless it was reaped."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class HostTemplate:
    """The template as its agent holds it."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self._pidfd, self._channel = pid, os.pidfd_open(pid), channel
        channel.settimeout(START_S)

    def fork(self, words: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> ForkedProcess:
        """A new child of this process, with this environment alone; `descriptors` are 0, 1, 2, ... there.

        Raises:
            TemplateLost: `end` it.
        """
        try:
            socket.send_fds(self._channel, [line_of(Become(*packed(words, environment)))], descriptors)
            answer = self._channel.recv(MOST_BYTES)
        except OSError as error:
            raise TemplateLost(error) from error
        self._channel.settimeout(ANSWER_S)
        if not answer:
            raise TemplateLost("it has ended")
        return ForkedProcess(int(answer))

    def end(self) -> None:
        """End and reap it; it has no children."""
        self._channel.close()
        with suppress(ChildProcessError, ProcessLookupError):  # it was reaped as an orphan
            if not _has_ended(self._pidfd, END_S):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                _has_ended(self._pidfd, END_S)
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        os.close(self._pidfd)


def with_template(role: str, run_id: str | None) -> str:
    """Fork the template of this process, a host agent of a run, before there are threads.

    Returns:
        `role` in the agent; later, in each process that the template forks, the role of that.
    """
    global _here
    if run_id is None or run_id == NO_RUN:
        return role
    try:
        of_agent, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        agent, pid = os.getpid(), os.fork()
    except OSError:  # processes are started by exec
        return role
    if pid:
        channel.close()
        _here = HostTemplate(pid, of_agent)
        return role
    of_agent.close()
    try:
        request, descriptors = _serve(channel, agent, (sys.executable, "-m", "zmqrl.entry", TEMPLATE, run_id, "0"))
    except BaseException:  # noqa: BLE001 - nothing of the agent may be run here
        traceback.print_exc()
        os._exit(1)
    return _become(request, descriptors)


def _serve(channel: socket.socket, agent: int, words: Sequence[str]) -> tuple[Become, Sequence[int]]:
    """Fork at each request until the agent closes the socket. Returns in the processes that were forked."""
    die_with(agent)
    show(words, dict(os.environb))
    channel = _alone(channel)
    limit_threads()
    with loading():
        for name in IMPORTED:
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import has started a thread")
    while True:
        content, descriptors, _, _ = socket.recv_fds(channel, MOST_BYTES, MOST_DESCRIPTORS)
        if not content:
            os._exit(0)
        request = read_request(content)
        assert isinstance(request, Become)
        pid = _fork_orphan()
        if pid is None:
            channel.close()
            return request, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(b"%d" % pid)


def _alone(channel: socket.socket) -> socket.socket:
    """Close all that was inherited, but stderr and `channel`."""
    own, null = channel.detach(), os.open(os.devnull, os.O_RDWR)
    for descriptor in (STDIN, STDOUT):
        os.dup2(null, descriptor)
    kept = STDERR + 1
    if own != kept:
        os.dup2(own, kept, inheritable=False)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    return socket.socket(fileno=kept)


def _fork_orphan() -> int | None:
    """Fork a process whose parent ends: it becomes a child of the agent, the next subreaper above.

    Returns:
        Its pid, once it is that; None in it.
    """
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            pid = os.fork()
            if pid:
                os.write(write, b"%d" % pid)
        except OSError:
            pid = 1
        if pid:
            os._exit(0)
    if between:
        os.waitpid(between, 0)
    os.close(write)
    answer = os.read(read, 32) if between else b""
    os.close(read)
    return int(answer) if between else None


def _become(request: Become, descriptors: Sequence[int]) -> str:
    """Be the process of a request. Returns its role once the agent has sent its boot, or has ended."""
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, len(descriptors)) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for number, descriptor in enumerate(above):
        os.dup2(descriptor, number)
        os.close(descriptor)
    assume((request.words, request.environment))
    add_own_paths()
    sys.modules["numpy"].random.seed()  # that of Python has a new seed after each fork
    select.select([STDIN], [], [])
    return request.words[ROLE]
