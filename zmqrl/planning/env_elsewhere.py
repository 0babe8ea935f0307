"""`env.check: false`: the properties of an env from the first host with workers, where this machine has none."""

from __future__ import annotations

import base64
import queue
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from zmqrl.config.codec import from_json, to_json
from zmqrl.config.hosts import is_remote
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError, HostFailed, WireError
from zmqrl.messages.check import data_of, read_report
from zmqrl.messages.lines import line_of
from zmqrl.orchestrators.host_commands import examiner_command
from zmqrl.orchestrators.make import access_of
from zmqrl.ssh.code_sync import make_archive
from zmqrl.ssh.shell import Pipe, printed
from zmqrl.supervision.check_process import call_of
from zmqrl.supervision.served_call import Served, Subject
from zmqrl.supervision.template import CALLS, TEMPLATE
from zmqrl.types import EnvSpec

CHECK = ("env", "check")
LOOK_S = 0.5
"""Between two looks at the log of a call that has not ended."""


def env_elsewhere(config: Config) -> EnvSpec:
    """Make, step and close the env in a check process of the host. ConfigError: as of a check here, or no such host."""
    hosts = [name for name, host in config.hosts.items() if is_remote(name, host) and host.workers != 0]
    if not hosts:
        what = "no other host with workers could make the env"
        raise ConfigError(what, key=CHECK, value="False", fix="remove the key")
    access = access_of(config, hosts[:1])
    host, shell = next(iter(access.shells(hosts[:1])))
    if isinstance(shell, HostFailed):
        raise ConfigError(str(shell), key=CHECK, value="False") from shell
    with ExitStack() as undo:
        undo.callback(shell.close)
        log = Path(undo.enter_context(tempfile.NamedTemporaryFile(prefix="zmqrl-check-")).name)
        pipe = shell.start(examiner_command(access.section(host), host, TEMPLATE), log)
        undo.callback(pipe.close)
        return from_json(EnvSpec, _called(config, host, pipe, log))


def _called(config: Config, host: str, pipe: Pipe, log: Path) -> Any:
    subject, limit_s = Subject(f"{config.env.id!r} on host {host}", ("env", "id")), config.limits.start_s
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(pipe, lines), name=f"check on {host}", daemon=True).start()
    archive = make_archive(config.code)
    code = None if archive is None else base64.b64encode(archive.content).decode()
    pipe.write(f"{data_of(code)}\n".encode())
    pipe.write(line_of(call_of(f"{CALLS}:env", [to_json(config.env), config.run.seed], limit_s)))
    served = Served(subject, limit_s)
    while served.ended is None:
        try:
            line = lines.get(timeout=min(LOOK_S, max(0.0, served.until - time.monotonic())))
        except queue.Empty:
            served.show_place(_text(log))
            if time.monotonic() < served.until:
                continue
            if served.is_late:
                raise ConfigError("the host does not answer", key=subject.key, value=subject.value) from None
            served.give_up()
            pipe.write(b"\n")
            continue
        if line is None:
            what = f"the check has ended: {printed(_text(log).splitlines()) or 'no output'}"
            raise ConfigError(what, key=subject.key, value=subject.value)
        with suppress(WireError):  # a login shell prints too
            served.take(read_report(line.encode()))
    return served.value(_text(log))


def _read(pipe: Pipe, lines: queue.Queue[str | None]) -> None:
    for line in pipe.lines():
        lines.put(line)
    lines.put(None)


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")
