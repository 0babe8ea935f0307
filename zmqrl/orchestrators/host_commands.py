"""Command lines for the shell of a host. They are visible there with `ps` and contain no secrets."""

from __future__ import annotations

import json
import shlex

from zmqrl.config.sections import HostSection
from zmqrl.orchestrators.handshake import PACKAGES, SENTINEL

REAP_GRACE_S = 5.0
NO_RUN = "-"
"""In the place of the run id: an agent of no run, which examines its host."""
REMOTE_RUNS = "runs"
"""Below the work directory of a host; in it a folder per host, since hosts may share their homes."""
_VERSIONS_THERE = (
    "import json,platform,sys; from importlib import metadata; "
    'found={(one.metadata["Name"] or "").lower(): one.version for one in reversed([*metadata.distributions()])}; '
    'print(json.dumps({"python": platform.python_version(), "byteorder": sys.byteorder, "machine": platform.machine(), '
    f"**{{name: found.get(name) for name in {json.dumps(PACKAGES)}}}}}))"
)
"""`Handshake.versions`, as far as the standard library of a host's Python knows them."""
_MACHINE_THERE = """printf '{"machine":"%s"}' "$(uname -m)\""""
_HANDSHAKE_THERE = (
    f"""printf '{SENTINEL}{{"pid":0,"time":0,"node":"%s","user":"%s","versions":%s}}\\n' """
    """"$(uname -n)" "$(id -un)" "$versions\""""
)


def agent_command(section: HostSection, run_id: str, code: str | None = None) -> str:
    """Starts the host agent in the work directory; `code` is the folder of the user's own modules there."""
    start = f"{environment(section, code)}{quoted(section.python)} -m zmqrl.entry zmqrl.agent {shlex.quote(run_id)} 0"
    return f"{_in_workdir(section)} && exec nice -n {section.nice or 0} {start}"


def reaper_command(section: HostSection, run_id: str, host: str, grace_s: float = REAP_GRACE_S) -> str:
    """Ends what is left of the run there; makes no folder."""
    start = f"{environment(section)}{quoted(section.python)} -m zmqrl.agent.reaper"
    return f"cd {quoted(section.workdir)} 2>/dev/null; {start} {shlex.quote(run_id)} {grace_s:g} {shlex.quote(host)}"


def handshake_command(section: HostSection) -> str:
    """Prints the handshake of a host's zmqrl, and ends."""
    return f"{environment(section)}{quoted(section.python)} -m zmqrl.orchestrators.handshake"


def quoted(path: str | None) -> str:
    """Quoted for the remote shell, which knows what `~` is there."""
    path = path or ""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def environment(section: HostSection, code: str | None = None) -> str:
    """`env NAME=VALUE ... `, which can be seen there by `ps`; `code` is put before the host's own PYTHONPATH."""
    values = dict(section.env)
    if code is not None:
        values["PYTHONPATH"] = ":".join([code, *([values["PYTHONPATH"]] if "PYTHONPATH" in values else [])])
    settings = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return f"env {' '.join(settings)} " if settings else ""


def _in_workdir(section: HostSection) -> str:
    return f"mkdir -p {quoted(section.workdir)} && cd {quoted(section.workdir)}"


def examiner_command(section: HostSection) -> str:
    """Starts a host agent that only examines its host, in the work directory if it exists; makes no folder."""
    start = f"{environment(section)}{quoted(section.python)} -m zmqrl.entry zmqrl.agent {NO_RUN} 0"
    return f"cd {quoted(section.workdir)} 2>/dev/null; exec {start}"


def shell_handshake_command(section: HostSection) -> str:
    """The handshake of a host where zmqrl does not start: by `sh`, and by its Python if it has one.

    One line without `!`, for the login shells of any host.
    """
    python = f"{environment(section)}{quoted(section.python)} -c {shlex.quote(_VERSIONS_THERE)} 2>/dev/null"
    script = f"versions=$({python}) || versions=$({_MACHINE_THERE}); {_HANDSHAKE_THERE}"
    return f"exec sh -c {shlex.quote(script)}"
