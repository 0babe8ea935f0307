"""The doctor's remote end: `python -m zmqrl.doctor.probe`. Orders on stdin, messages on stdout, nothing else.

It ends with its stdin, at most after `MOST_S`. Its first message needs the standard library alone: a host where
packages are missing can still say which ones.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import io
import json
import os
import queue
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zmqrl.doctor.env_process import EnvProcess
    from zmqrl.doctor.reach import Door
    from zmqrl.messages.doctor import Examine, Listen, Order, Word

MARK = "ZMQRL-PROBE"
"""As in `zmqrl.messages.doctor`."""
MOST_S = 150
PACKAGES = ("zmqrl", "pyzmq", "msgpack", "msgspec", "numpy", "gymnasium", "psutil", "torch")


class Probe:
    """Answers one order after the other; the main thread's."""

    def __init__(self, out: io.TextIOBase, scratch: Path) -> None:
        self._out, self._scratch = out, scratch
        self._env: EnvProcess | None = None
        self._door: Door | None = None

    def say(self, word: Word) -> None:
        """One line on what stdout was."""
        from zmqrl.messages.doctor import word_line

        self._out.write(word_line(word) + "\n")
        self._out.flush()

    def answer(self, order: Order | Exception) -> bool:
        """Whether there is more to come. An order that was none is raised."""
        if isinstance(order, Exception):
            raise order
        from zmqrl.doctor import reach, store_check
        from zmqrl.messages import doctor

        match order:
            case doctor.Echo():
                self.say(doctor.Clock(time.time()))
            case doctor.Examine():
                self._examine(order)
            case doctor.Reach():
                self.say(reach.reach(order))
            case doctor.Watch():
                watching = store_check.prepare(order)
                self.say(watching)
                if watching.error is None:
                    self.say(store_check.watch(order))
            case doctor.Write():
                self.say(store_check.write(order))
            case doctor.Forget():
                store_check.forget(order)
            case doctor.Finish():
                self._finish()
        return not isinstance(order, doctor.Finish)

    def _examine(self, order: Examine) -> None:
        from zmqrl.agent.host_lock import HostLock
        from zmqrl.doctor.curve import measure_curve
        from zmqrl.doctor.env_process import EnvProcess
        from zmqrl.doctor.locks import held_locks
        from zmqrl.doctor.machine import look_at_folder, look_at_machine
        from zmqrl.messages.doctor import Examined, Folders, Locks

        if order.env is not None:
            code = self._unpack(order.code) if order.code is not None else None
            self._env = EnvProcess(order, code)
        self.say(look_at_machine())
        self.say(Locks(held_locks(HostLock())))
        store = look_at_folder(order.store) if order.store is not None else None
        self.say(Folders(look_at_folder(order.workdir), store))
        self.say(measure_curve())
        if order.listen is not None:
            self._listen(order.listen)
        self.say(Examined())

    def _listen(self, order: Listen) -> None:
        from zmqrl.doctor.reach import Door

        self._door = Door(order)
        self.say(self._door.listening())

    def _unpack(self, code: str) -> Path:
        folder = self._scratch / "code"
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(code)), mode="r:") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 and 3.10.11 have none
            archive.extractall(folder)
        return folder

    def _finish(self) -> None:
        if self._door is not None:
            self._door.close()
        if self._env is not None:
            self.say(self._env.result())


def write_word(out: io.TextIOBase, name: str, **fields: object) -> None:
    """A line as `zmqrl.messages.doctor.word_line` writes it, with the standard library alone.

    Text that is not Unicode, such as of a file name, gets question marks: msgspec refuses surrogates.
    """
    text = json.dumps({"word": name, **fields}, ensure_ascii=False)
    out.write(f"{MARK} {text.encode(errors='replace').decode()}\n")
    out.flush()


def say_hello(out: io.TextIOBase) -> None:
    """Who and what this host is: `zmqrl.messages.doctor.Hello`."""
    versions: dict[str, str | None] = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "byteorder": sys.byteorder,
    }
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    with contextlib.suppress(ImportError, AttributeError):
        from zmqrl.messages.frames import PROTOCOL

        versions["protocol"] = str(PROTOCOL)
    write_word(out, "Hello", node=socket.gethostname(), user=_user(), python=sys.executable, versions=versions)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _read_orders(orders: queue.Queue[Order | Exception], scratch: str) -> None:
    # UTF-8 in every locale. A file of its own: a thread in `sys.stdin.buffer` makes the interpreter end with an error.
    for line in os.fdopen(os.dup(0), encoding="utf-8", errors="replace"):
        try:
            from zmqrl.messages.doctor import read_order

            orders.put(read_order(line))
        except Exception as error:  # noqa: BLE001 - also a package that is missing is raised in the main thread
            orders.put(error)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)  # nobody listens any more; the env process dies with us


def main() -> int:
    """Send the handshake, then answer until `Finish`."""
    signal.alarm(MOST_S)  # the kernel ends us, whatever hangs
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library's print is no word
    orders: queue.Queue[Order | Exception] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="zmqrl-doctor-") as scratch:
        probe = Probe(out, Path(scratch))
        say_hello(out)
        threading.Thread(target=_read_orders, args=(orders, scratch), name="stdin", daemon=True).start()
        try:
            while probe.answer(orders.get()):
                pass
        except Exception as error:  # noqa: BLE001 - the top loop of a process
            with contextlib.suppress(BrokenPipeError):
                write_word(out, "Broken", cause=f"{type(error).__name__}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
