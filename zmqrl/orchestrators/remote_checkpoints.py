"""Files of a learner on another host: there before it starts, and copied here while it runs and at the end."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path

from zmqrl.config.plan import INITIAL, Boot, RunPlan
from zmqrl.config.sections import Config, HostSection
from zmqrl.data_stores import files
from zmqrl.data_stores.checkpoints import COPIED, COPIED_DURING_RUN, checkpoint_names, is_whole, newest_whole
from zmqrl.data_stores.copies import pause_s
from zmqrl.data_stores.make import is_shared
from zmqrl.errors import HostFailed, unusable
from zmqrl.orchestrators.host_commands import for_login_shell, quoted
from zmqrl.ssh.clients import connect
from zmqrl.ssh.shell import FileShell, Finished

SEE_FILES = "see the files of the host"
LIST_S = 15.0
CLOSE_S = 3.0
RETRIES_AFTER_S = (2.0, 8.0)
"""Waits before the further attempts to collect what a learner has left."""


class LearnerFiles:
    """Files of the learner of a run, where its host does not share them with this machine."""

    def __init__(self, plan: RunPlan, warn: Callable[[str, str], None]) -> None:
        """`warn`: takes host and text, from any thread."""
        self._plan, self._warn = plan, warn
        self._initial, self._here = Path(plan.run_dir) / INITIAL, Path(plan.store_path)
        self._mirror: Mirror | None = None
        self._is_closed, self._lock = False, threading.Lock()

    def has_files(self, host: str) -> bool:
        """Whether `send` has something to send."""
        return self._has_initial(host) or self._has_checkpoints(host)

    def send(self, host: FileShell, folder: str) -> None:
        """What the learner needs in its run directory `folder`, before its agent starts. HostFailed."""
        if self._has_initial(host.host):
            host.put(self._initial, f"{folder}/{INITIAL}")
        if self._has_checkpoints(host.host):
            send(host, self._here, f"{folder}/checkpoints")

    def mirror(self, host: FileShell, folder: str) -> None:
        """Begin to copy its checkpoints to here, until `close`; nothing after it, as for a start that ends late."""
        every_s = self._plan.config.run.checkpoint_every_s
        with self._lock:
            if self._keeps_copies(host.host) and not self._is_closed:
                self._mirror = Mirror(host, f"{folder}/checkpoints", self._here, every_s, self._warn)

    def collect(self, host: FileShell, folder: str) -> bool:
        """Copy what the learner has left, and remove it there. False: not all was copied, which the user is warned of.

        A copy that the mirror has begun ends before: it counts, and has its own deadlines.
        """
        if not self._keeps_copies(host.host) or not host.is_alive():
            return True
        if self._mirror is not None:
            self._mirror.join()
        for after_s in (0.0, *RETRIES_AFTER_S):
            time.sleep(after_s)
            why = self._attempt(host, folder)
            if why is None or not host.is_alive():
                break
        if why is not None:
            self._warn(host.host, why)
            return False
        try:
            remove(host, folder)
        except HostFailed as error:
            self._warn(error.host, f"{error.cause}; {error.fix}")
        return True

    def _attempt(self, host: FileShell, folder: str) -> str | None:
        """Copy what the learner has left; why that failed."""
        try:
            collect(host, f"{folder}/checkpoints", self._here)
        except OSError as error:
            return f"the host's checkpoints cannot be copied to {self._here}: {error.strerror}"
        except Exception as error:  # noqa: BLE001 - also of too little memory: the end of the hosts is verified after it
            failed = unusable(host.host, error)
            return f"{failed.cause}; {failed.fix}"
        return None

    def close(self) -> None:
        """End the copies during the run. Safe to call twice."""
        with self._lock:
            self._is_closed = True
        if self._mirror is not None:
            self._mirror.close()

    def _has_initial(self, host: str) -> bool:
        return host == self._plan.config.learner.host and self._initial.is_file()

    def _has_checkpoints(self, host: str) -> bool:
        return self._plan.resume and self._keeps_copies(host)

    def _keeps_copies(self, host: str) -> bool:
        """Whether checkpoints are in the run directory of `host`, which goes with the run, and have copies here."""
        return host == self._plan.config.learner.host and not is_shared(self._plan.config.store)


def run_folder(boot: Boot, section: HostSection) -> str:
    """Run directory of a host other than this machine."""
    return f"{section.workdir}/{boot.plan.run_dir}"


def send(connection: FileShell, checkpoints: Path, folder: str) -> None:
    """Send the newest FULLs, the best and the newest kept version to the remote `folder`. HostFailed on error.

    From the kept one the learner finds for which multiples of `store.keep_every` a version is kept.
    """
    for kind, most in COPIED_DURING_RUN.items():
        for name in newest_whole(checkpoints, kind, most or 1):
            connection.put(checkpoints / name, f"{folder}/{name}")


def collect(connection: FileShell, folder: str, checkpoints: Path) -> None:
    """The final version, the best one and the last FULL. HostFailed when they are unavailable."""
    if not bring(connection, folder, checkpoints, COPIED):
        raise HostFailed(connection.host, f"a checkpoint in {folder} is damaged", SEE_FILES)


def bring_left(host: str, config: Config, folder: str, checkpoints: Path) -> None:
    """Copy what an attempt that ended without collecting left in its run directory `folder` on `host`, and remove it.

    It stays where a file is damaged. HostFailed when it is unreachable.
    """
    connection = connect(config, host)
    try:
        if bring(connection, f"{folder}/checkpoints", checkpoints, COPIED, check_here=True):
            with contextlib.suppress(HostFailed):  # the copies are here
                remove(connection, folder)
    finally:
        connection.close()


def bring(
    connection: FileShell, folder: str, checkpoints: Path, kinds: Mapping[str, int | None], check_here: bool = False
) -> bool:
    """Copy the checkpoints of the remote `folder` that are newer than those here; the newest of each kind stay.

    Damaged files count neither among what is copied nor among what is kept.

    Args:
        connection: To the host of `folder`.
        folder: Where the learner writes; it may not be there yet.
        checkpoints: The directory here.
        kinds: What is copied, and how many of each kind are kept here; None: all of them.
        check_here: Files here count only if they can be loaded.

    Returns:
        Whether everything newer was copied: a file may be replaced while it is read.

    Raises:
        HostFailed: the folder cannot be listed, or a file not be copied.
        OSError: a file cannot be written here.
    """
    there, whole = _listed(connection, folder), True
    checkpoints.mkdir(parents=True, exist_ok=True)
    for kind, most in kinds.items():
        here = checkpoint_names(os.listdir(checkpoints), kind).items()
        whole_here = {v for name, v in here if not check_here or is_whole(checkpoints / name)}
        newest_here: tuple[int, ...] = max(whole_here, default=())
        listed = checkpoint_names(there, kind).items()
        newer = [name for name, v in listed if (v not in whole_here if most is None else v > newest_here)]
        copied: set[str] = set()
        while newer and (most is None or len(copied) < most):
            name = newer.pop()
            if _copy(connection, f"{folder}/{name}", checkpoints):
                copied.add(name)
            else:
                whole = False
        if most is not None:
            _keep(checkpoints, kind, most, copied)
    return whole


def _listed(connection: FileShell, folder: str) -> list[str]:
    """Names in the remote `folder`; none where it is not there."""
    listed = _run(connection, f"ls {quoted(folder)} 2>/dev/null || test ! -e {quoted(folder)}")
    if listed.code != 0:
        host = connection.host
        raise HostFailed(host, f"the host's checkpoints in {folder} cannot be listed", SEE_FILES)
    return listed.stdout.decode(errors="replace").split()


def _keep(checkpoints: Path, kind: str, most: int, whole: Set[str]) -> None:
    """Remove what is older than the newest `most` that can be loaded; `whole` are known to be."""
    names = list(checkpoint_names(os.listdir(checkpoints), kind))
    if len(names) > most:
        kept = newest_whole(checkpoints, kind, most, whole)
        for name in names[: names.index(kept[-1])] if len(kept) == most else ():
            (checkpoints / name).unlink(missing_ok=True)


def remove(connection: FileShell, folder: str) -> None:
    """The remote run folder of one host, and the run's when nothing else is in it."""
    connection.remove_tree(folder)
    _run(connection, f"rmdir {quoted(posixpath.dirname(folder))}")


class Mirror:
    """A thread that copies FULL and best of a remote learner to the run directory while the run is running."""

    def __init__(
        self, connection: FileShell, folder: str, checkpoints: Path, every_s: float, warn: Callable[[str, str], None]
    ) -> None:
        """`every_s`: the least time between two copies; `warn`: takes host and text, from the thread."""
        self._connection, self._folder, self._checkpoints = connection, folder, checkpoints
        self._every_s, self._warn = every_s, warn
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror of checkpoints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No copy begins any more; one that is being made has `CLOSE_S` to end. Safe to call twice."""
        self._closed.set()
        self._thread.join(CLOSE_S)

    def join(self) -> None:
        """After `close`: the copies that it has begun have ended. Each of their steps has a deadline."""
        self._thread.join()

    def _run(self) -> None:
        wait_s, failing = self._every_s, False
        while not self._closed.wait(wait_s) and self._connection.is_alive():
            begun = time.monotonic()
            try:
                bring(self._connection, self._folder, self._checkpoints, COPIED_DURING_RUN)
                failing = False
            except (HostFailed, OSError) as error:
                if not failing and self._connection.is_alive():
                    host, why = self._connection.host, getattr(error, "cause", str(error))
                    self._warn(
                        host,
                        f"the host's checkpoints are not copied to {self._checkpoints}: {why}; the copy is retried",
                    )
                failing = True
            wait_s = pause_s(self._every_s, time.monotonic() - begun)


def _copy(connection: FileShell, path: str, checkpoints: Path) -> bool:
    """One remote file, verified before it has its name here, and durable. False: it was replaced while it was read."""
    folder, name = posixpath.split(path)
    link, temporary = f".{name}.mirror.tmp", checkpoints / f".{name}.{threading.get_ident()}.tmp"
    # A second name keeps the content: the learner writes over files that it has retired, but for those with two names.
    pair = f"{shlex.quote(name)} {shlex.quote(link)}"
    linked = _run(connection, f"cd {quoted(folder)} && {{ ln -f {pair} || cp {pair}; }} 2>/dev/null")
    if linked.code != 0:
        return False
    try:
        connection.get(f"{folder}/{link}", temporary)
        if not is_whole(temporary):
            return False
        files.sync_file(str(temporary))
        files.rename(str(temporary), str(checkpoints / name))
        files.sync_directory(str(checkpoints))
    finally:
        temporary.unlink(missing_ok=True)
        _run(connection, f"rm -f {quoted(f'{folder}/{link}')}")
    return True


def _run(connection: FileShell, script: str) -> Finished:
    return connection.run(for_login_shell(script), LIST_S)
