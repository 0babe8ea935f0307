"""The command `examine` of a host agent: requests of `zmqrl doctor` on stdin, messages on stdout, nothing of a run.

It ends with its stdin, at most after `MOST_S`.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import queue
import shutil
import signal
import tarfile
import tempfile
import threading
import time
from pathlib import Path

from zmqrl.doctor import machine
from zmqrl.doctor.env_process import EnvProcess
from zmqrl.doctor.reach import EchoServer, measure_curve, reach
from zmqrl.errors import WireError
from zmqrl.messages import doctor, doctor_requests
from zmqrl.messages.doctor import Reply, reply_line
from zmqrl.messages.doctor_requests import Request, read_request
from zmqrl.supervision.host_lock import HostLock

MOST_S = 150


class Examiner:
    """Answers one request after the other; the main thread's."""

    def __init__(self, out: io.TextIOBase) -> None:
        self._out = out
        self._code: Path | None = None
        """Where the modules of the user are, if there are any."""
        self._env: EnvProcess | None = None
        self._server: EchoServer | None = None

    def remove_code(self) -> None:
        """Safe in any thread."""
        if self._code is not None:
            shutil.rmtree(self._code, ignore_errors=True)

    def send(self, reply: Reply) -> None:
        """One line on what stdout was."""
        self._out.write(reply_line(reply) + "\n")
        self._out.flush()

    def answer(self, request: Request | WireError) -> bool:
        """Whether there is more to come. The error of an invalid line is raised."""
        match request:
            case WireError():
                raise request
            case doctor_requests.Echo():
                self.send(doctor.Clock(time.time()))
            case doctor_requests.Examine():
                self._examine(request)
            case doctor_requests.Reach():
                self.send(reach(request))
            case doctor_requests.Watch():
                watching = machine.prepare(request)
                self.send(watching)
                if watching.error is None:
                    self.send(machine.watch(request))
            case doctor_requests.Write():
                self.send(machine.write(request))
            case doctor_requests.Forget():
                machine.forget(request)
            case doctor_requests.Finish():
                self._finish()
        return not isinstance(request, doctor_requests.Finish)

    def _examine(self, request: doctor_requests.Examine) -> None:
        if request.env is not None:
            code = self._unpack(request.code) if request.code is not None else None
            self._env = EnvProcess(request, code)
        self.send(machine.examine_machine())
        self.send(doctor.Locks(machine.held_locks(HostLock())))
        store = machine.examine_folder(request.store) if request.store is not None else None
        self.send(doctor.Folders(machine.examine_folder(request.workdir), store))
        self.send(measure_curve())
        if request.listen is not None:
            self._server = EchoServer(request.listen)
            self.send(self._server.listening())
        self.send(doctor.Examined())

    def _unpack(self, code: str) -> Path:
        self._code = folder = Path(tempfile.mkdtemp(prefix="zmqrl-doctor-"))
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(code)), mode="r:") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 and 3.10.11 have none
            archive.extractall(folder)
        return folder

    def _finish(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._env is not None:
            self.send(self._env.result())


def _read_requests(requests: queue.Queue[Request | WireError], examiner: Examiner) -> None:
    # UTF-8 in every locale. A file of its own: a thread in `sys.stdin.buffer` makes the interpreter end with an error.
    for line in os.fdopen(os.dup(0), encoding="utf-8", errors="replace"):
        try:
            requests.put(read_request(line))
        except WireError as error:
            requests.put(error)
    examiner.remove_code()
    os._exit(1)  # the doctor has gone; the env process dies with us


def main() -> int:
    """Answer until `Finish`. Exit code 1 when the doctor has gone, or a request cannot be carried out."""
    signal.alarm(MOST_S)  # the kernel ends us, whatever hangs
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library's print is not a reply
    requests: queue.Queue[Request | WireError] = queue.Queue()
    examiner = Examiner(out)
    threading.Thread(target=_read_requests, args=(requests, examiner), name="stdin", daemon=True).start()
    try:
        while examiner.answer(requests.get()):
            pass
    except Exception as error:  # noqa: BLE001 - the top loop of a process
        with contextlib.suppress(BrokenPipeError):
            examiner.send(doctor.Broken(f"{type(error).__name__}: {error}"))
        return 1
    finally:
        examiner.remove_code()
    return 0
