"""`python -m zmqrl.agent.reaper RUN [GRACE_S [HOST]]`: end what is left of a run on this machine, without its launcher.

Prints one JSON object on stdout, `{"ended": [...], "killed": [...], "left": [...]}`, each of them `role-index (pid n)`.
It may be called as often as one likes: what is gone is not mentioned.
"""

from __future__ import annotations

import logging
import math
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from zmqrl.agent.run_processes import AGENT, STRAY, processes_of
from zmqrl.errors import ConfigError
from zmqrl.messages.lines import line_of
from zmqrl.messages.orchestrator import Reaped
from zmqrl.supervision.host_lock import AGENTS, HostLock
from zmqrl.supervision.host_mark import inner_namespace
from zmqrl.supervision.process_table import ProcessId, await_gone, kill, send
from zmqrl.wire.runtime_folder import remove_left_folder

LOG = logging.getLogger(__name__)
GRACE_S = 5.0
MOST_GRACE_S = 3600.0
KILL_WAIT_S = 5.0
"""SIGKILL needs no one's consent: what is there after it hangs in the kernel."""
ROUNDS = 3
"""What an agent started while we looked is found by looking again."""
RUN_ID = re.compile(r"[^/\0]+")


def reap(run_id: str, grace_s: float = GRACE_S, host: str | None = None, register: Path = AGENTS) -> Reaped:
    """Ask, wait `grace_s`, kill, look again. Bounded by `grace_s` and `ROUNDS` times `KILL_WAIT_S`.

    With `host` the agents of the run's other hosts are left alone: two hosts of a run can be one machine.

    Raises:
        ConfigError: `run_id` cannot be one.
    """
    if not RUN_ID.fullmatch(run_id) or run_id in (".", ".."):
        raise ConfigError(f"{run_id!r} is not a run id; `zmqrl status` lists them")
    names = processes_of(run_id, host, register)
    agents = [process for process, name in names.items() if name == AGENT]  # each ends its own processes
    for process in agents or [process for process, name in names.items() if name != STRAY]:
        send(process, signal.SIGTERM)
    await_gone(names, grace_s)
    killed: set[ProcessId] = set()
    for _ in range(ROUNDS):
        names |= {p: name for p, name in processes_of(run_id, host, register).items() if p not in names}
        alive = await_gone(names, 0.0)
        if not alive:
            break
        # Agents last: the kernel ends their children with them, and those would count as ended by themselves.
        killed |= {process for process in sorted(alive, key=lambda each: names[each] == AGENT) if kill(process)}
        await_gone(alive, KILL_WAIT_S)
    left = set(await_gone(names, 0.0))
    if not left and not processes_of(run_id, None, register):
        _clean(run_id, register)

    def shown(processes: set[ProcessId]) -> tuple[str, ...]:
        return tuple(sorted(f"{names[process]} (pid {process.pid})" for process in processes))

    return Reaped(ended=shown(set(names) - killed - left), killed=shown(killed - left), left=shown(left))


def _clean(run_id: str, register: Path) -> None:
    """What the agent would have removed at its end."""
    remove_left_folder(run_id)
    try:
        HostLock(register).forget(run_id)
    except (ConfigError, OSError) as error:
        LOG.warning("run %s remains registered on this machine: %s", run_id, error)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 when nothing is left, 3 when something is, 2 for arguments that mean nothing."""
    try:
        run_id, grace_s, host = _parsed(arguments)
        if inner_namespace():
            raise ConfigError(
                f"within hosts.{host or 'NAME'}.wrap the processes of the host are hidden (pid namespace): "
                "install zmqrl also outside of wrap, at hosts.NAME.python"
            )
        reaped = reap(run_id, grace_s, host)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"\n{line_of(reaped).decode()}", end="")  # what a login shell has printed may lack the end of its line
    return 3 if reaped.left else 0


def _parsed(arguments: Sequence[str]) -> tuple[str, float, str | None]:
    usage = ConfigError("usage: python -m zmqrl.agent.reaper RUN [GRACE_S [HOST]]")
    if not 1 <= len(arguments) <= 3:
        raise usage
    try:
        grace_s = float(arguments[1]) if len(arguments) > 1 else GRACE_S
    except ValueError as error:
        raise usage from error
    if not (math.isfinite(grace_s) and 0 <= grace_s <= MOST_GRACE_S):
        raise usage
    return arguments[0], grace_s, arguments[2] if len(arguments) > 2 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
