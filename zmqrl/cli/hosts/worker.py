"""`worker --connect FILE`: participate in a run from a host that SSH cannot reach."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqrl.logs.printable import printable

if TYPE_CHECKING:
    from zmqrl.orchestrators.base import HostEvent

LEASE_EVERY_S = 1.0
POLL_EVERY_S = 0.2
GRACE_S = 10.0


@click.command("worker")
@click.option(
    "--connect",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    help="The connection file that the launcher wrote for this host, or a copy of it.",
)
def worker_command(file: Path) -> int:
    """Add workers on this machine to a run.

    Use it on a host that the launcher does not reach by SSH (`manual: true` in hosts.yaml). The command returns
    when the run ends. Ctrl-C removes this host from the run.
    """
    from zmqrl.launch.connection_file import read_connection_file
    from zmqrl.messages.agent import LeaseLost, Unreachable
    from zmqrl.messages.command import Lease
    from zmqrl.messages.orchestrator import AgentExited, Handshake
    from zmqrl.orchestrators.local import LocalOrchestrator

    boot, join = read_connection_file(file)
    orchestrator = LocalOrchestrator()
    orchestrator.deploy({boot.host: boot})
    code, lease_at = None, 0.0
    try:
        while code is None:
            if time.monotonic() >= lease_at:
                lease_at = time.monotonic() + LEASE_EVERY_S
                orchestrator.command(boot.host, Lease())
            for event in orchestrator.monitor(POLL_EVERY_S):
                if isinstance(event.event, Handshake):
                    orchestrator.command(boot.host, join)
                line = _line(event)
                if line:
                    click.echo(printable(f"{boot.host}: {line}"))
                if isinstance(event.event, (Unreachable, LeaseLost)):
                    code = 1
                elif isinstance(event.event, AgentExited) and code is None:
                    code = event.event.code or 0
    finally:
        teardown = orchestrator.undeploy(GRACE_S)
        ended = "1 process" if teardown.ended == 1 else f"{teardown.ended} processes"
        click.echo(f"{boot.host}: {ended} ended, {len(teardown.left)} left")
    return code


def _line(event: HostEvent) -> str | None:
    from zmqrl.messages.agent import Exited, Joined, LeaseLost, Restarting, RestartLimitReached, Unreachable
    from zmqrl.messages.process import ProcessFault, Ready
    from zmqrl.views.problem import shown_tail

    role, index = event.process
    match event.event:
        case Exited(expected=False) as exited:
            tail = [f"\n    {line}" for line in shown_tail(exited.log_tail)]
            return f"{role}-{index}: {exited.cause}{''.join(tail)}\n  log: {exited.log}"
        case Joined() as joined:
            return f"joined at {joined.address}, round trip {joined.milliseconds} ms"
        case Unreachable() as unreachable:
            return unreachable.cause
        case Ready():
            return f"{role}-{index} is ready"
        case Restarting() as restart:
            return f"{role}-{index}: restarting in {restart.in_s:g} s"
        case RestartLimitReached() as reached:
            return f"{role}-{index} failed and is not restarted: {reached.cause}"
        case LeaseLost() as lost:
            return f"no heartbeat from the {lost.source}: leaving the run"
        case ProcessFault() as fault:
            return fault.error
    return None
