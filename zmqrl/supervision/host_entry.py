"""An agent's entry in the register of its machine (`zmqrl.supervision.host_lock`), and the files of that folder.

The folder is given by its descriptor throughout: no process can put another in its place.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pwd
import secrets
import socket
import stat
import time
from collections.abc import Callable
from urllib.parse import quote

from msgspec import Struct

from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Boot
from zmqrl.config.sections import HostSection
from zmqrl.supervision.host_mark import inner_namespace, pid_outside
from zmqrl.supervision.process_table import ProcessId, identify, is_alive

MOST_ENTRY_BYTES = 4096
MOST_ENTRIES = 10_000
MOST_TEXT = 200
FILE_MODE = 0o644
UNFINISHED_S = 60.0
OPTIONAL = ("namespace", "gpus", "cores")
"""Written only where there is something: earlier versions of zmqrl do not know these keys."""
YEAR_33658 = 1e12
"""Unix time; a number below it can be reckoned with."""


class Entry(Struct, frozen=True):
    """One agent, read from its file."""

    run_id: str
    pid: int
    start_time: int
    """Clock ticks after boot, as `/proc/<pid>/stat` has it."""
    user: str
    uid: int
    since: float
    """Unix time."""
    workers: int
    host: str
    """The host's name in the run."""
    launcher: str
    """User and machine that the run was launched from, `anna@laptop`; of zmqrl 0.2 the machine alone."""
    namespace: str = ""
    """The pid namespace that `wrap` has made around the agent, in which `pid` was taken; empty: none."""
    gpus: str = ""
    """UUIDs of the GPUs of its processes, separated by spaces."""
    cores: int = 0
    """Cores that the run holds; 0: as many as it has workers."""

    @property
    def held(self) -> int:
        """Cores that `workers: auto` of other runs leaves free."""
        return max(self.workers, self.cores)

    @property
    def process(self) -> ProcessId:
        """The agent."""
        return ProcessId(self.pid, self.start_time)

    @property
    def is_live(self) -> bool:
        """Whether the agent runs, and belongs to the user whose entry this is."""
        try:
            owner = os.stat(f"/proc/{self.pid}").st_uid
        except OSError:
            return False
        return owner == self.uid and is_alive(self.process)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(self.since))  # an age would differ at each attempt
        workers = f"{self.workers} worker{'s' * (self.workers != 1)}"
        return f"run {self.run_id} of user {self.user} since {since} ({workers}, from {self.launcher})"


def own_entry(boot: Boot, launcher: str) -> Entry:
    """This process as the agent of `boot`."""
    me = identify(os.getpid())
    assert me is not None
    return Entry(
        run_id=boot.plan.run_id,
        pid=me.pid,
        start_time=me.start_time,
        user=user_name(os.getuid()),
        uid=os.getuid(),
        since=time.time(),
        workers=len(boot.workers),
        host=boot.host,
        launcher=launcher or login_here(),
        namespace=inner_namespace(),
        cores=boot.plan.config.hosts.get(boot.host, HostSection()).cores or 0,
    )


def visible(entry: Entry) -> Entry | None:
    """`entry` with the pid of this process's pid namespace, 0 where the agent is gone.

    None within another namespace than the agent's, unless that is the host's own: its agent is hidden there.
    """
    own = inner_namespace()
    if entry.namespace == own:
        return entry
    return None if own else replace(entry, pid=pid_outside(entry.pid, entry.start_time, entry.uid) or 0)


@functools.cache
def user_name(uid: int) -> str:
    """The login name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def login_here() -> str:
    """The user of this process on this machine, `anna@laptop`; of `sudo` the one who called it."""
    return f"{os.environ.get('SUDO_USER') or user_name(os.getuid())}@{socket.gethostname()}"


def write(folder: int, entry: Entry) -> None:
    """Whole or not at all, readable for all, and never through a link that someone laid there."""
    data = {key: value for key, value in to_json(entry).items() if value or key not in OPTIONAL}
    write_file(folder, file_name(entry), json.dumps(data).encode(), for_all=True)


def write_file(folder: int, name: str, content: bytes, for_all: bool = False) -> None:
    """Write a file as `write` does. The umask of the process decides who may read it, unless it is `for_all`."""
    temporary = f".{secrets.token_hex(8)}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE, dir_fd=folder)
    try:
        os.write(file, content)
        if for_all:
            os.fchmod(file, FILE_MODE)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        remove(folder, temporary)
        raise
    finally:
        os.close(file)


def remove(folder: int, name: str) -> None:
    """Remove an entry; it may be gone already."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def remove_unfinished(folder: int) -> None:
    """What this user was killed over while he wrote it."""
    for name in _names(folder, _is_unfinished):
        remove(folder, name)


def read_all(folder: int) -> dict[str, Entry]:
    """Entries by file name; what cannot be an entry is left out."""
    return {name: entry for name in names(folder, ".json") if (entry := read(folder, name)) is not None}


def names(folder: int, suffix: str) -> list[str]:
    """Names of the files that end with `suffix`."""
    return _names(folder, lambda file: file.name.endswith(suffix))


def read(folder: int, name: str) -> Entry | None:
    """The content of a file, if its format is valid and its owner is the user that it names."""
    found = read_file(folder, name)
    return None if found is None else _parsed(found[0], found[1].st_uid)


def read_file(folder: int, name: str) -> tuple[bytes, os.stat_result] | None:
    """Content and state of a file; None for a pipe, a link, a large file, and one that this user may not read."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)  # it may be a fifo
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_ENTRY_BYTES:
            return None
        return os.read(file, MOST_ENTRY_BYTES), found
    except OSError:
        return None
    finally:
        os.close(file)


def file_name(entry: Entry) -> str:
    """One a run and host."""
    return f"{quote(entry.run_id, safe='')}-{quote(entry.host, safe='')}.json"


def _names(folder: int, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    with os.scandir(folder) as files:
        return [file.name for file in itertools.islice(files, MOST_ENTRIES) if wanted(file)]


def _is_unfinished(file: os.DirEntry[str]) -> bool:
    try:
        found = file.stat(follow_symlinks=False)
        is_old = time.time() - found.st_mtime > UNFINISHED_S  # a younger one may be on its way
        return file.name.startswith(".") and found.st_uid == os.getuid() and is_old
    except FileNotFoundError:
        return False


def _parsed(content: bytes, owner: int) -> Entry | None:
    try:
        entry = Entry(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    numbers = (entry.pid, entry.uid, entry.workers, entry.cores)
    texts = (entry.run_id, entry.host, entry.launcher, entry.namespace, entry.gpus)
    sound = (
        all(type(number) is int and 0 <= number < 2**31 for number in numbers)
        and type(entry.start_time) is int
        and all(isinstance(text, str) and len(text) <= MOST_TEXT and text.isprintable() for text in texts)
        and isinstance(entry.since, (int, float))
        and 0 <= entry.since < YEAR_33658
    )
    return replace(entry, user=user_name(owner)) if sound and entry.uid == owner and entry.pid > 0 else None
