"""`worker --connect FILE`: take part in a run from a host that SSH cannot reach."""

from __future__ import annotations

import time
from pathlib import Path

import click

LEASE_EVERY_S = 1.0
LOOK_EVERY_S = 0.2
GRACE_S = 10.0


@click.command("worker")
@click.option("--connect", "file", type=click.Path(path_type=Path), required=True, help="The file that the run wrote.")
def worker_command(file: Path) -> int:
    """Run this host's workers of a run until it ends; Ctrl-C leaves it."""
    from zmqrl.launch.connection_file import read_connection_file
    from zmqrl.orchestrators.local import LocalOrchestrator

    boot, join = read_connection_file(file)
    orchestrator = LocalOrchestrator()
    orchestrator.deploy({boot.host: boot})
    code, lease_at = None, 0.0
    try:
        orchestrator.command(boot.host, join)
        while code is None:
            if time.monotonic() >= lease_at:
                lease_at = time.monotonic() + LEASE_EVERY_S
                orchestrator.command(boot.host, {"command": "lease"})
            for event in orchestrator.monitor(LOOK_EVERY_S):
                line = _line(event.event, event.data)
                if line:
                    click.echo(f"{boot.host}: {line}")
                if event.event in ("unreachable", "lease_lost"):
                    code = 1
                elif event.event == "agent_exit" and code is None:
                    code = int(event.data["code"] or 0)
    finally:
        teardown = orchestrator.undeploy(GRACE_S)
        click.echo(f"{boot.host}: {teardown.ended} processes ended, {len(teardown.left)} left")
    return code


def _line(name: str, data: object) -> str | None:
    """What the user is told of an event."""
    d = data if isinstance(data, dict) else {}
    if name == "exit" and not d["expected"]:
        from zmqrl.launch.problem import last_words

        tail = [f"\n    {line}" for line in last_words(d["log_tail"])]
        return f"{d['role']}-{d['index']}: {d['cause']}{''.join(tail)}\n  log: {d['log']}"
    told = {
        "joined": "joined at {address}, {milliseconds} ms away",
        "unreachable": "{cause}",
        "ready": "{role}-{index} is ready",
        "restart": "{role}-{index} is started again in {in_s:g} s",
        "gave_up": "{role}-{index} is given up: {cause}",
        "lease_lost": "the {source} has been silent too long: leaving the run",
        "fault": "{error}",
    }
    return told[name].format(**d) if name in told else None
