"""A real systemd, process 1 of namespaces of its own. It manages scopes and nothing else: it starts no service.

Needs root, systemd and a cgroup2 file system. It cannot change settings of this machine's kernel.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import WAIT_S

from .kernel import LabUnavailable

SYSTEMD = Path("/lib/systemd/systemd")
PRIVATE = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
BOOT = f"""
mount -t tmpfs run /run && mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 1
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys || exit 1
mkdir -p /run/systemd/system
printf '[Unit]\\nDefaultDependencies=no\\nAllowIsolate=yes\\n' > /run/systemd/system/lab.target
exec env -i "PATH=$PATH" container=other {SYSTEMD} --system --unit=lab.target --log-target=null
"""


@contextlib.contextmanager
def own_systemd() -> Iterator[list[str]]:
    """A prefix of commands that execute beside it, with its pids. LabUnavailable: what is missing here."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    roots = [Path(folder) for _, folder, kind, *_ in mounts if kind == "cgroup2"]
    if os.getuid() != 0 or not SYSTEMD.exists() or shutil.which("nsenter") is None or not roots:
        raise LabUnavailable("a systemd of its own needs root, systemd, util-linux and a cgroup2 file system")
    group = roots[0] / f"zmqrl-lab-{os.getpid()}"
    group.mkdir()
    own = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec unshare "$@"', "sh", *PRIVATE]
    command = [*own, "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "sh", "-c", BOOT]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield _prefix(process)
    finally:
        process.kill()
        process.wait(WAIT_S)
        _remove(group)


def _prefix(process: subprocess.Popen[bytes]) -> list[str]:
    until = time.monotonic() + WAIT_S
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):
            for pid in children.read_text(encoding="ascii").split():
                prefix = ["nsenter", "-t", pid, *(f"-{kind}" for kind in "mpuinC")]
                trial = [*prefix, "systemd-run", "--scope", "--quiet", "true"]
                if subprocess.run(trial, capture_output=True, timeout=WAIT_S).returncode == 0:
                    return prefix
        time.sleep(0.1)
    raise LabUnavailable(f"systemd cannot be process 1 here: exit code {process.poll()}")


def _remove(group: Path) -> None:
    until = time.monotonic() + WAIT_S
    while group.exists() and time.monotonic() < until:
        for folder in sorted((path for path in (group, *group.rglob("*")) if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):  # its last process is still ending
                folder.rmdir()
        time.sleep(0.05)
