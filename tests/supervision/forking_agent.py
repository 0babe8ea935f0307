"""Stands in for a host agent with a template: `python -m tests.supervision.forking_agent [SECONDS]`.

Prints what each of two processes that its template has forked sees of itself, a JSON line each; with SECONDS they live
as long, and their pids are printed first.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from zmqrl.agent.process_spawner import entry_command
from zmqrl.entry import PARENT_VARIABLE, die_with_parent, read_line
from zmqrl.supervision import host_template
from zmqrl.supervision.host_template import HostTemplate, with_template
from zmqrl.supervision.own_session import adopt_orphans

AGENT, PR_GET_PDEATHSIG = "zmqrl.agent", 2


def seen(role: str) -> dict[str, Any]:
    inherited = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]  # without that of the folder itself
    boot = read_line(0).decode()
    die_with_parent()
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number))
    return {
        "role": role,
        "boot": boot,
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "dies_by": number.value,
        "descriptors": inherited,
        "threads": len(os.listdir("/proc/self/task")),
        "torch": "torch" in sys.modules,
        "executed": sys.orig_argv,
        "words": Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0"),
        "shown": Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0"),
        "variables": dict(os.environ),
        "drawn": [random.random(), float(np.random.random())],
    }


def agent(template: HostTemplate, lives_s: str | None) -> None:
    reports, report = os.pipe()
    for index in range(2):
        read, write = os.pipe()
        variables = {"INDEX": str(index), PARENT_VARIABLE: str(os.getpid()), "ODD": os.fsdecode(b"\xff=")}
        words = entry_command("worker", "run-1", index)
        process = template.fork(words, variables, (read, 2, 2, report))
        print(process.pid, flush=True)
        os.write(write, b"boot\n")
        if lives_s is None:
            print(json.dumps(json.loads(read_line(reports))), process.wait(), flush=True)
    if lives_s is not None:
        time.sleep(float(lives_s))
    template.end()


if __name__ == "__main__":
    adopt_orphans()
    given = sys.argv[1] if len(sys.argv) > 1 else None
    own = with_template(AGENT, "run-1")
    if own == AGENT:
        there = host_template.here()
        assert there is not None
        agent(there, given)
    else:
        os.write(3, json.dumps(seen(own)).encode() + b"\n")
        time.sleep(float(given or 0.0))
        sys.exit(7)
