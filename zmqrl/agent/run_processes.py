"""Processes on this machine of one run of this user, found by unique marks, never by a similar name.

Four marks, each compared whole: the argv that `entry` is started with, the environment variable that the command line
of a host and the agent give to their processes (and they to whatever they start), the resource limit that the agent
sets for them (`supervision.process_mark`), and the agent's entry in the register of the machine. Pids are those of this
process's pid namespace, also for processes in one that `hosts.NAME.wrap` has made: they are found by the mark of their
host, and the pids that they report of themselves are not used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from zmqrl.config.hosts import LOCAL
from zmqrl.supervision.host_lock import AGENTS, HostLock
from zmqrl.supervision.host_mark import HOST_VARIABLE, NO_RUN, RUN_VARIABLE, HostMark, pid_namespace
from zmqrl.supervision.process_mark import marked_by_host
from zmqrl.supervision.process_table import ProcessId, identify, is_alive

ROLES = frozenset({"agent", "template", "broker", "learner", "worker", "evaluator"})
AGENT, STRAY = "agent-0", "stray"


def processes_of(run_id: str, host: str | None = None, register: Path = AGENTS) -> dict[ProcessId, str]:
    """Processes of a run that live now: named `role-index`, or `stray` if a user's env started it.

    With `host` without what belongs to the agents of the run's other hosts, as registered.
    """
    entries = [e for e in HostLock(register).entries() if e.uid == os.getuid() and e.run_id == run_id]
    names = dict(_marked(run_id, host))
    for entry in entries:
        if entry.is_live:
            names[entry.process] = AGENT
    for process in marked_by_host(run_id, host or LOCAL):
        names.setdefault(process, STRAY)
    others = {entry.pid for entry in entries if host not in (None, entry.host)}
    return {p: name for p, name in names.items() if p.pid != os.getpid() and _session(p.pid) not in others}


def agents() -> Iterator[tuple[int, str]]:
    """Pid and run id of this user's host agents."""
    for pid in _own_pids():
        role = role_in(_words(pid, "cmdline"))
        if role is not None and role[0] == AGENT:
            yield pid, role[1]


def role_in(argv: list[str]) -> tuple[str, str] | None:
    """`role-index` and run id of `PYTHON -m zmqrl.entry zmqrl.ROLE RUN INDEX`, and of nothing else."""
    if len(argv) != 6 or argv[1:3] != ["-m", "zmqrl.entry"] or argv[4] == NO_RUN:
        return None
    package, _, role = argv[3].partition(".")
    if package != "zmqrl" or role not in ROLES or not argv[5].isdecimal():
        return None
    return f"{role}-{argv[5]}", argv[4]


def _marked(run_id: str, host: str | None) -> Iterator[tuple[ProcessId, str]]:
    for pid in _own_pids():
        process = identify(pid)
        argv, environment = _words(pid, "cmdline"), _words(pid, "environ")
        if process is None or not is_alive(process):
            continue  # read before: it is the very process that was looked at
        mark = _mark_in(environment)
        if host is not None and mark is not None and mark.host != host:
            continue
        role = role_in(argv)
        if role is not None and role[1] == run_id:
            yield process, role[0]
        elif f"{RUN_VARIABLE}={run_id}" in environment:
            yield process, STRAY


def _own_pids() -> Iterable[int]:
    """This user's, without those of containers: they are other hosts, as little as they may know of it.

    A pid namespace that the command line of a host has made from this one belongs to this host.
    """
    here = pid_namespace()
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit() or os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            if os.readlink(f"/proc/{name}/ns/pid") == here or _is_wrapped(int(name), here):
                yield int(name)
        except OSError:
            continue  # it ended while we looked


def _is_wrapped(pid: int, here: str) -> bool:
    mark = _mark_in(_words(pid, "environ"))
    return mark is not None and mark.namespace == here


def _mark_in(environment: Iterable[str]) -> HostMark | None:
    start = f"{HOST_VARIABLE}="
    return next((HostMark.parse(word.removeprefix(start)) for word in environment if word.startswith(start)), None)


def _words(pid: int, file: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
