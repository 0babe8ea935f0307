"""`run.json`: which process drives a run, and whether it is there."""

from __future__ import annotations

import os
import shlex
import socket
import threading
from pathlib import Path

from zmqrl.config.codec import object_of
from zmqrl.config.paths import content_of
from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError, WireError
from zmqrl.messages.files import RunRecord, decode
from zmqrl.supervision.host_entry import user_name
from zmqrl.supervision.process_table import ProcessId, identify, is_alive
from zmqrl.supervision.run_owner import ACTIVE, OwnerState, owner_state

EARLIER_IDS = 20
"""Attempts by whose run ids a run is found."""


class RunInfo(RunRecord, frozen=True):
    """`run.json`: which process drives the run; what `status` and `stop` find it by."""

    def has_id(self, run_id: str) -> bool:
        """Whether an attempt of the run has this id."""
        return run_id == self.run_id or run_id in self.earlier_ids

    @property
    def place(self) -> str:
        """Where the launcher is that cannot be seen from here."""
        here = self.host == socket.gethostname()
        return f"in another pid namespace of {self.host} (a container)" if here else f"on {self.host}"


def info_of(plan: RunPlan, job: str | None, before: RunInfo | None) -> RunInfo:
    """`run.json` of an attempt that this process drives; `before`: that of the last attempt."""
    me = identify(os.getpid())
    assert me is not None
    return RunInfo(
        plan.run_id,
        me.pid,
        me.start_time,
        socket.gethostname(),
        plan.started_at,
        plan.config.run.preset,
        lineage=plan.lineage.id,
        attempt=plan.lineage.attempt,
        job=job,
        in_thread=threading.current_thread() is not threading.main_thread(),
        earlier_ids=() if before is None else (*before.earlier_ids, before.run_id)[-EARLIER_IDS:],
    )


def launcher_state(run_dir: Path, info: RunInfo, watch: bool = True) -> OwnerState:
    """What is known here of the launcher of a run: what every command decides by.

    Host names and pids do not show it: a container has pids of its own, and may have the name of its host.

    `info`: of the attempt; once another attempt has taken the directory over, this one has ended. `watch`: wait for up
    to 3 s to see a launcher that is elsewhere.
    """
    now = read_info(run_dir) if info.ended_at is None else info
    if now is None or now.run_id != info.run_id or now.ended_at is not None:
        return OwnerState.ENDED
    state = owner_state(run_dir, info.run_id, watch)
    if state is not None:
        return state
    if now.host != socket.gethostname():
        return OwnerState.UNKNOWN
    return OwnerState.HERE if is_alive(ProcessId(now.pid, now.start_time)) else OwnerState.ENDED


def is_live(run_dir: Path, info: RunInfo, watch: bool = True) -> bool:
    """Whether the run continues, on this machine or another: not one that has taken its directory over."""
    return launcher_state(run_dir, info, watch) in ACTIVE


def has_launcher_here(run_dir: Path, info: RunInfo) -> bool:
    """Whether the run continues, and this process sees its launcher: decided at once."""
    return launcher_state(run_dir, info, watch=False) is OwnerState.HERE


def other_user(run_dir: Path, info: RunInfo) -> str | None:
    """The user who can end the run, where this one may not signal its launcher, or not write its directory."""
    is_here = has_launcher_here(run_dir, info)
    try:
        uid = os.stat(f"/proc/{info.pid}" if is_here else run_dir).st_uid
    except FileNotFoundError:  # it has just ended
        return None
    is_allowed = os.geteuid() in (0, uid) or (not is_here and os.access(run_dir, os.W_OK))
    return None if is_allowed else user_name(uid)


def check_user(run_dir: Path, info: RunInfo) -> None:
    """Raise `ConfigError` where another user has to end the run."""
    user = other_user(run_dir, info)
    if user is not None:
        run = f"run {info.run_id} in {run_dir}"
        raise ConfigError.about(run, f"is of user {user}", f"ask {user} or root to end it")


def read_info(run_dir: Path) -> RunInfo | None:
    """`run.json` of a run directory; None when there is none or it cannot be read."""
    try:
        return _info(run_dir)
    except (OSError, ValueError, WireError):
        return None


def is_run(path: Path) -> bool:
    """Whether a path is a run directory, also one with damaged files."""
    return (path / "config.json").exists() or (path / "run.json").exists()


def refuse_damaged_info(run_dir: Path) -> None:
    """Raise `ConfigError` where the `run.json` of a run directory cannot be read."""
    if not is_run(run_dir):
        return
    if (cause := damage_of(run_dir)) is not None:
        message = f"{run_dir / 'run.json'} cannot be read: {cause}; restore the file from a copy of the run"
        if (run_dir / "config.json").exists():
            message += f", or start a new run with its weights: --init-from {shlex.quote(str(run_dir))}"
        raise ConfigError(message)


def damage_of(run_dir: Path) -> str | None:
    """Why `read_info` reads nothing there; None: it does."""
    try:
        _info(run_dir)
    except (OSError, ValueError, WireError) as error:
        return str(error.strerror if isinstance(error, OSError) else error)
    return None


def _info(run_dir: Path) -> RunInfo:
    content = content_of(run_dir / "run.json")
    object_of(content)  # its errors are of the file, those of `decode` of a message
    return decode(RunInfo, content)
