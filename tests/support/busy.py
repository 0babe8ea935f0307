"""`python -m tests.support.busy [--loops N] [--quota CORES] COMMAND...`: a command on a machine that others use too.

Alongside it N processes never rest (2 without options), each in a session of its own; or it has CORES cores, by a
cgroup, which needs root. Its exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
LOOP = "while True: pass"


@contextlib.contextmanager
def loops(count: int) -> Iterator[None]:
    """So many processes that use a core each, with the priority of this one."""
    command = [sys.executable, "-c", LOOP]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def quota(cores: float) -> Iterator[None]:
    """This process, and what it starts, has so many cores. SystemExit says what the machine lacks for that."""
    us, name = int(cores * PERIOD_US), f"zmqrl-busy-{os.getpid()}"
    by_version = (  # version 2, version 1
        (CGROUPS, {"cgroup.subtree_control": "+cpu"}, {"cpu.max": f"{us} {PERIOD_US}"}),
        (CGROUPS / "cpu", {}, {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(us)}),
    )
    root, above, settings = by_version[(CGROUPS / "cpu").is_dir()]
    group = root / name
    try:
        for file, text in above.items():
            (root / file).write_text(text)
        group.mkdir()
        for file, text in settings.items():
            (group / file).write_text(text)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        sys.exit(f"no quota can be set here ({error}); instead: taskset -c 0 COMMAND")
    try:
        yield
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def main(arguments: Sequence[str]) -> int:
    """The exit code of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.busy", description=__doc__)
    parser.add_argument("--loops", type=int, default=None)
    parser.add_argument("--quota", type=float, default=None, metavar="CORES")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        stack.enter_context(loops((0 if chosen.quota else 2) if chosen.loops is None else chosen.loops))
        if chosen.quota is not None:
            stack.enter_context(quota(chosen.quota))
        return subprocess.run(chosen.command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
