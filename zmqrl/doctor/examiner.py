"""The command `examine` of a host agent: orders of `zmqrl doctor` on stdin, messages on stdout, nothing of a run.

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

from zmqrl.agent.host_lock import HostLock
from zmqrl.doctor import machine
from zmqrl.doctor.env_process import EnvProcess
from zmqrl.doctor.reach import EchoServer, measure_curve, reach
from zmqrl.errors import WireError
from zmqrl.messages import doctor
from zmqrl.messages.doctor import Order, Word, read_order, word_line

MOST_S = 150


class Examiner:
    """Answers one order after the other; the main thread's."""

    def __init__(self, out: io.TextIOBase, scratch: Path) -> None:
        self._out, self._scratch = out, scratch
        self._env: EnvProcess | None = None
        self._server: EchoServer | None = None

    def send(self, word: Word) -> None:
        """One line on what stdout was."""
        self._out.write(word_line(word) + "\n")
        self._out.flush()

    def answer(self, order: Order | WireError) -> bool:
        """Whether there is more to come. The error of an invalid line is raised."""
        match order:
            case WireError():
                raise order
            case doctor.Echo():
                self.send(doctor.Clock(time.time()))
            case doctor.Examine():
                self._examine(order)
            case doctor.Reach():
                self.send(reach(order))
            case doctor.Watch():
                watching = machine.prepare(order)
                self.send(watching)
                if watching.error is None:
                    self.send(machine.watch(order))
            case doctor.Write():
                self.send(machine.write(order))
            case doctor.Forget():
                machine.forget(order)
            case doctor.Finish():
                self._finish()
        return not isinstance(order, doctor.Finish)

    def _examine(self, order: doctor.Examine) -> None:
        if order.env is not None:
            code = self._unpack(order.code) if order.code is not None else None
            self._env = EnvProcess(order, code)
        self.send(machine.look_at_machine())
        self.send(doctor.Locks(machine.held_locks(HostLock())))
        store = machine.look_at_folder(order.store) if order.store is not None else None
        self.send(doctor.Folders(machine.look_at_folder(order.workdir), store))
        self.send(measure_curve())
        if order.listen is not None:
            self._server = EchoServer(order.listen)
            self.send(self._server.listening())
        self.send(doctor.Examined())

    def _unpack(self, code: str) -> Path:
        folder = self._scratch / "code"
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(code)), mode="r:") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 and 3.10.11 have none
            archive.extractall(folder)
        return folder

    def _finish(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._env is not None:
            self.send(self._env.result())


def _read_orders(orders: queue.Queue[Order | WireError], scratch: str) -> None:
    # UTF-8 in every locale. A file of its own: a thread in `sys.stdin.buffer` makes the interpreter end with an error.
    for line in os.fdopen(os.dup(0), encoding="utf-8", errors="replace"):
        try:
            orders.put(read_order(line))
        except WireError as error:
            orders.put(error)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)  # nobody listens any more; the env process dies with us


def main() -> int:
    """Answer until `Finish`. Exit code 1 when the doctor has gone, or an order cannot be carried out."""
    signal.alarm(MOST_S)  # the kernel ends us, whatever hangs
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library's print is no word
    orders: queue.Queue[Order | WireError] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="zmqrl-doctor-") as scratch:
        examiner = Examiner(out, Path(scratch))
        threading.Thread(target=_read_orders, args=(orders, scratch), name="stdin", daemon=True).start()
        try:
            while examiner.answer(orders.get()):
                pass
        except Exception as error:  # noqa: BLE001 - the top loop of a process
            with contextlib.suppress(BrokenPipeError):
                examiner.send(doctor.Broken(f"{type(error).__name__}: {error}"))
            return 1
    return 0
