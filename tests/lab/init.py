"""Process 1 of a host: private folders, sshd on request, reaps orphans; the host ends with it or with its stdin.

usage: init.py JSON    {"name": ..., "mounts": [[from, to], ...]}    no mounts: an ordinary process on this machine
Commands on stdin, a JSON line each: the argv of a server to start. Prints its pid, as the outside sees it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    setup = json.loads(sys.argv[1])
    print(os.readlink("/proc/self"), flush=True)  # before the host's own /proc hides the number
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    if setup["mounts"]:
        socket.sethostname(setup["name"])
        for command in setup["mounts"]:
            subprocess.run(command, check=True)
        os.makedirs("/run/sshd", 0o755, exist_ok=True)
    signal.signal(signal.SIGCHLD, reap)
    reap()
    for line in sys.stdin:
        argv = json.loads(line)
        quiet = [(os.POSIX_SPAWN_DUP2, os.open(os.devnull, os.O_RDWR), 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
        os.posix_spawn(argv[0], argv, os.environ, file_actions=quiet, setsigdef=[signal.SIGCHLD], setsid=True)
    while descendants():
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()


def reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants() -> list[int]:
    parents = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat") as stat:
            text = stat.read()
            parents[int(name)] = int(text[text.rindex(")") + 2 :].split()[1])
    found = [os.getpid()]
    for parent in found:
        found += [pid for pid, its in parents.items() if its == parent]
    return found[1:]


main()
