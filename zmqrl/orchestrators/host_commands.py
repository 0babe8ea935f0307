"""Command lines for the shell of a host. They are visible there with `ps` and contain no secrets."""

from __future__ import annotations

import shlex

from zmqrl.config.sections import HostSection

REAP_GRACE_S = 5.0
FAR_RUNS = "runs"
"""Below the work directory of a host; in it a folder per host, since hosts may share their homes."""


def agent_command(section: HostSection, run_id: str, code: str | None = None) -> str:
    """Starts the host agent in the work directory; `code` is the folder of the user's own modules there."""
    start = f"{environment(section, code)}{far(section.python)} -m zmqrl.entry zmqrl.agent {shlex.quote(run_id)} 0"
    return f"{_in_workdir(section)} && exec nice -n {section.nice or 0} {start}"


def reaper_command(section: HostSection, run_id: str, host: str, grace_s: float = REAP_GRACE_S) -> str:
    """Ends what is left of the run there; makes no folder."""
    start = f"{environment(section)}{far(section.python)} -m zmqrl.agent.reaper"
    return f"cd {far(section.workdir)} 2>/dev/null; {start} {shlex.quote(run_id)} {grace_s:g} {shlex.quote(host)}"


def introduction_command(section: HostSection) -> str:
    """What has a host's zmqrl say what it is, and end."""
    return f"{environment(section)}{far(section.python)} -m zmqrl.orchestrators.handshake"


def far(path: str | None) -> str:
    """Quoted for the remote shell, which knows what `~` is there."""
    path = path or ""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def environment(section: HostSection, code: str | None = None) -> str:
    """`env NAME=VALUE ... `, which can be seen there by `ps`; `code` is put before the host's own PYTHONPATH."""
    values = dict(section.env)
    if code is not None:
        values["PYTHONPATH"] = ":".join([code, *([values["PYTHONPATH"]] if "PYTHONPATH" in values else [])])
    words = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return f"env {' '.join(words)} " if words else ""


def _in_workdir(section: HostSection) -> str:
    return f"mkdir -p {far(section.workdir)} && cd {far(section.workdir)}"


def module_command(section: HostSection, module: str) -> str:
    """Runs a module from the work directory, if it exists, as the host agent would be started."""
    return f"cd {far(section.workdir)} 2>/dev/null; exec {environment(section)}{far(section.python)} -m {module}"
