"""How a host agent starts a process of the run: its pipes, its log, its environment, its mark."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from zmqrl.agent.child_process import ChildProcess
from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Boot
from zmqrl.loading import importing_environment
from zmqrl.logs.process_log import start_line
from zmqrl.supervision.gpus import VISIBLE
from zmqrl.supervision.host_mark import RUN_VARIABLE
from zmqrl.supervision.host_template import ForkedProcess, HostTemplate, TemplateLost, here
from zmqrl.supervision.process_mark import TEMPLATE_NUMBER, process_mark, set_mark
from zmqrl.supervision.process_table import identify
from zmqrl.supervision.restarts import ProcessSlot

LOG = logging.getLogger(__name__)
KILL_S = 0.1

CommandLine = Callable[[str, str, int], Sequence[str]]
"""(role, run id, index) to argv."""
INHERITED_BY_LEARNER: Mapping[str, str | None] = MappingProxyType({"learner": None})


def entry_command(role: str, run_id: str, index: int) -> Sequence[str]:
    """The argv that names a process of a run, and nothing else in it does."""
    return [sys.executable, "-m", "zmqrl.entry", f"zmqrl.{role}", run_id, str(index)]


def template_of(boot: Boot) -> HostTemplate | None:
    """The template of this process, a host agent, with a mark of its own: the agent reaps orphans with a mark."""
    template = here()
    if template is not None:
        set_mark(template.pid, process_mark(boot.plan.run_id, boot.host, TEMPLATE_NUMBER))
    return template


def _opened(log: Path) -> BinaryIO:
    """To append to; nowhere when the disk takes no new file: no process depends on its log."""
    try:
        return log.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


def _pipe(of_read: contextlib.ExitStack, of_write: contextlib.ExitStack) -> tuple[int, int]:
    """Read and write end of a pipe, each closed by its stack."""
    read, write = os.pipe()
    of_read.callback(os.close, read)
    of_write.callback(os.close, write)
    return read, write


def _end(process: subprocess.Popen[bytes] | ForkedProcess) -> None:
    """Kill a process that was not started completely. One that the kernel holds is not waited for."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)


def _write_boot(fd: int, boot: Boot) -> None:
    line = json.dumps(to_json(boot), separators=(",", ":")).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError):  # it died at once: its pidfd shows it
        while line:
            line = line[os.write(fd, line) :]


class ProcessSpawner:
    """Starts processes. Only the agent's main thread may: a child dies with the thread that started it."""

    def __init__(
        self,
        log_dir: Path,
        parent_variable: str,
        command: CommandLine = entry_command,
        visible_gpus: Mapping[str, str | None] = INHERITED_BY_LEARNER,
        template: HostTemplate | None = None,
    ) -> None:
        """`visible_gpus`: of `zmqrl.agent.devices.Devices`. Without `template` each process is executed."""
        self._command, self._visible_gpus, self._template = command, visible_gpus, template
        self._environment = {**importing_environment(), parent_variable: str(os.getpid())}
        self._numbers = itertools.count()
        self.log_dir = log_dir
        self.log_dir.mkdir(parents=True, exist_ok=True)

    def start(self, boot: Boot, slot: ProcessSlot, spawn: int, shared: Mapping[str, int]) -> ChildProcess:
        """Start one process with the `shared` descriptors and their own pipes.

        `boot` is what all processes of that role on this host share; role, index, spawn and fds are filled in here.

        Raises:
            OSError: It cannot be started; nothing of it is left.
        """
        own = replace(boot, role=slot.role, index=slot.index, spawn=spawn)
        try:
            return self._started(own, slot, shared)
        except TemplateLost as error:
            LOG.warning("the template of this host is lost (%s): processes are started without it", error)
            self.close()
        # it may have forked the process before: that holds the pipes of before, and ends with them
        return self._started(own, slot, shared)

    def _started(self, boot: Boot, slot: ProcessSlot, shared: Mapping[str, int]) -> ChildProcess:
        # what `_started` has opened is closed if it fails; the child's ends of the pipes are closed in any case
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as inherited:
            stdin_read, stdin_fd = _pipe(inherited, undo)
            events_fd, events_write = _pipe(undo, inherited)
            wake_read, wake_fd = _pipe(inherited, undo) if slot.role == "worker" else (None, None)
            held = {**shared, "events": events_write, **({} if wake_read is None else {"wake": wake_read})}
            mark = process_mark(boot.plan.run_id, boot.host, next(self._numbers))
            log = self.log_dir / f"{boot.host}-{slot.role}-{slot.index}.log"
            with _opened(log) as output:
                log_start = output.tell()
                process, fds = self._begun(slot, boot.plan.run_id, stdin_read, output.fileno(), held)
                undo.callback(_end, process)
                set_mark(process.pid, mark)
                line = start_line(boot.plan.config, slot.role, slot.index, process.pid, boot.spawn)
                with contextlib.suppress(OSError):  # a full disk
                    os.write(output.fileno(), f"{line}\n".encode())
            inherited.close()  # else the write below waits for a process that has died
            _write_boot(stdin_fd, replace(boot, fds=fds))
            for fd in (events_fd, stdin_fd, wake_fd):
                if fd is not None:
                    os.set_blocking(fd, False)
            identity = identify(process.pid)
            if identity is None:  # it is not reaped
                raise OSError(f"/proc/{process.pid}/stat cannot be read")
            pipes = os.pidfd_open(process.pid), events_fd, stdin_fd, wake_fd
            undo.pop_all()
            return ChildProcess(slot, boot.spawn, process, identity, *pipes, log, log_start, line, mark)

    def close(self) -> None:
        """End the template: nothing more is started."""
        if self._template is not None:
            self._template.end()
            self._template = None

    def _begun(
        self, slot: ProcessSlot, run_id: str, stdin: int, output: int, held: Mapping[str, int]
    ) -> tuple[subprocess.Popen[bytes] | ForkedProcess, Mapping[str, int]]:
        """The process, and `held` by the numbers that descriptors have there. Without a template it is executed."""
        gpus = self._visible_gpus.get(slot.role, "")
        environment = {**self._environment, RUN_VARIABLE: run_id, **({} if gpus is None else {VISIBLE: gpus})}
        command, fds = self._command(slot.role, run_id, slot.index), tuple(held.values())
        if self._template is not None:
            process = self._template.fork(command, environment, (stdin, output, output, *fds))
            return process, dict(zip(held, itertools.count(3), strict=False))
        popen = subprocess.Popen(command, stdin=stdin, stdout=output, stderr=output, pass_fds=fds, env=environment)
        return popen, held
