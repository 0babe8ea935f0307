"""What a launcher publishes of its run to all users of its machine: a file in the machine's register, while it runs.

A file of another user is not trusted. It counts while its owner is the user that it names, and its launcher runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.errors import WireError
from zmqrl.messages.files import MODERATE, PublishedRun, decode
from zmqrl.supervision import host_entry
from zmqrl.supervision.host_lock import AGENTS, HostLock
from zmqrl.supervision.owner_record import machine
from zmqrl.supervision.process_table import ProcessId, identify, is_alive

SUFFIX = ".run"
RENEW_S = 5.0
SILENT_S = 30.0
"""Without a renewal for so long, a launcher is silent; one whose process cannot be seen from here has ended."""
MOST_RUNS = 1_000
"""Files that are read of one folder."""
RETURN = "train_return_mean_100"


class Publication:
    """Made, renewed and ended by the launcher of a run. Where the file cannot be written, the run is not shown.

    The umask of the launcher decides whether other users may read it.
    """

    def __init__(self, plan: RunPlan, prefix: Path = AGENTS) -> None:
        """Nothing is written yet."""
        me, env, kind = identify(os.getpid()), plan.config.env.id, str(plan.config.algorithm["kind"])
        assert me is not None
        here = (os.getuid(), *me, machine(), socket.gethostname())
        self._run = PublishedRun(plan.run_id, *here, env, kind, "starting", 0, None, plan.started_at)
        self._register, self._name = HostLock(prefix), f"{quote(plan.run_id, safe='')}{SUFFIX}"
        self._renewed_at_s: float | None = None

    def renew(self, status: Mapping[str, Any]) -> None:
        """Write the figures of `status.json`, every `RENEW_S` and when the state is another one."""
        before_s, now_s = self._renewed_at_s, time.monotonic()
        if before_s is not None and now_s - before_s < RENEW_S and status["phase"] == self._run.state:
            return
        self._renewed_at_s, last = now_s, status["metrics"].get(RETURN)
        shown = None if last is None or abs(last) > MODERATE else last
        run = replace(self._run, state=status["phase"], env_steps=status["env_steps"], train_return_mean_100=shown)
        self._run = run
        with contextlib.suppress(OSError, ValueError), self._register.own_folder() as folder:
            if before_s is None:
                _remove_ended(folder)
            host_entry.write_file(folder, self._name, msgspec.json.encode(run))

    def end(self) -> None:
        """Remove the file, if there is one."""
        if self._renewed_at_s is not None:
            with contextlib.suppress(OSError), self._register.own_folder() as folder:
                host_entry.remove(folder, self._name)


class Published(NamedTuple):
    """A file of the register."""

    run: PublishedRun
    silent_s: float
    """Since it was written."""

    @property
    def is_live(self) -> bool:
        """Whether the launcher runs, and belongs to the user whose file this is."""
        run = self.run
        if run.kernel != machine():  # a container that shares the register
            return abs(self.silent_s) < SILENT_S  # its owner can date it later
        try:
            owner = os.stat(f"/proc/{run.pid}").st_uid
        except OSError:
            return False
        return owner == run.uid and is_alive(ProcessId(run.pid, run.start_time))


def live_publications(register: HostLock) -> Iterator[Published]:
    """Files of all users whose launchers run."""
    for folder, owner in register.folders():
        for name in itertools.islice(host_entry.names(folder, SUFFIX), MOST_RUNS):
            found = _read(folder, name)
            if found is not None and found.run.uid == owner and found.is_live:
                yield found


def _read(folder: int, name: str) -> Published | None:
    """The content of a file, if its format is valid and its owner is the user that it names."""
    found = host_entry.read_file(folder, name)
    with contextlib.suppress(WireError):
        run = None if found is None else decode(PublishedRun, found[0])
        if run is not None and found is not None and run.uid == found[1].st_uid:
            return Published(run, time.time() - found[1].st_mtime)
    return None


def _remove_ended(folder: int) -> None:
    """What launchers of this user left that were killed."""
    for name in host_entry.names(folder, SUFFIX):
        found = _read(folder, name)
        if found is None or not found.is_live:
            host_entry.remove(folder, name)
