"""What must hold between `hosts`, `learner`, `security` and the mode; each fault names its key and the fix."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from zmqrl.config.hosts import LOCAL, filled, near, shortened
from zmqrl.config.sections import Config, HostSection
from zmqrl.config.windows import Windows
from zmqrl.config.yaml_source import shown
from zmqrl.errors import ConfigError

BY_SSH = ("ssh", "user", "port", "identity", "jump", "tunnel")
AROUND_PYTHON = {"prologue": "after this line", "wrap": "within this command"}
"""Keys, and what replaces each on this machine."""
NOT_LOCAL = (*BY_SSH, "python", "workdir", "manual")
# Names become file names, and arguments on the command lines of ssh: none may be taken for an option.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\-]*")
_JUMP = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9._:%@\\\[\]-]*(,[A-Za-z0-9_\[][A-Za-z0-9._:%@\\\[\]-]*)*")
_PYTHON = re.compile(r"(?:~?/[^\x00-\x1f]+|[A-Za-z0-9_][A-Za-z0-9._-]*)")
_FOLDER = re.compile(r"~|~?/[^\x00-\x1f]*")
_LINE = re.compile(r"[^\x00\r\n]*[^\x00\s][^\x00\r\n]*")
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHAPES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "ssh": (_ADDRESS, "must be a name or an address; the user goes into `user`, the port into `port`"),
    "user": (_USER, "invalid user name"),
    "jump": (_JUMP, "must be [user@]host[:port], several separated by commas"),
    "python": (_PYTHON, "must be an absolute path, begin with ~/, or be a command name on the PATH of the host"),
    "workdir": (_FOLDER, "must be an absolute path or begin with ~/ (SSH has no base for relative paths)"),
    "prologue": (
        _LINE,
        "must be one line of sh, not empty; separate commands by ';', or use a file: . FILE",
    ),
    "worker_device": (_DEVICE, "must be cpu, cuda, cuda:N or auto"),
    "wrap": (_LINE, "must be a command in one line, not empty"),
}


def check_hosts(config: Config) -> None:
    """Raise `ConfigError` for the first thing that cannot be."""
    for check in _CHECKS:
        check(config)


def _check_names(config: Config) -> None:
    for name in config.hosts:
        if not _HOST.fullmatch(name):
            fix = "for an address with other characters, write NAME: {ssh: ADDRESS}"
            raise ConfigError("host names consist of letters, digits, '.', '_' and '-'", key=("hosts", name), fix=fix)


def _check_keys(config: Config) -> None:
    for name, host in config.hosts.items():
        _check_local(name, host)
        _check_manual(name, host)
        _check_shapes(f"hosts.{name}", host)
        for variable, value in host.env.items():
            if not _VARIABLE.fullmatch(variable):
                what = "names of environment variables consist of letters, digits and '_', and begin with no digit"
                raise ConfigError(what, key=("hosts", name, "env", variable))
            if "\0" in value:
                raise ConfigError("contains a NUL character", key=("hosts", name, "env", variable), value=shown(value))
    _check_shapes("defaults", config.defaults)


def _check_local(name: str, host: HostSection) -> None:
    if name != LOCAL:
        return
    for key in NOT_LOCAL:
        value = getattr(host, key)
        if value is not None and value is not False:
            raise ConfigError(
                "the name local means this machine, which uses the interpreter of the launcher and is not "
                "reached by SSH",
                key=("hosts", "local", key),
                value=shown(value),
                fix="remove the key, or give the host another name",
            )
    for key in AROUND_PYTHON:
        if (value := getattr(host, key)) is not None:
            what = "it does not apply to this machine, whose processes run in the environment of the launcher"
            fix = f"start `zmqrl launch` itself {AROUND_PYTHON[key]}"
            raise ConfigError(what, key=("hosts", "local", key), value=shown(value), fix=fix)
    for key in ("env", "nice"):
        value = getattr(host, key)
        if value is not None and value != {}:
            what = "processes on this machine inherit environment and niceness of the launcher"
            fix = "set them there: env NAME=VALUE nice -n 10 zmqrl launch ..."
            raise ConfigError(what, key=("hosts", "local", key), value=shown(value), fix=fix)


def _check_manual(name: str, host: HostSection) -> None:
    for key in (*BY_SSH, "python", *AROUND_PYTHON) if host.manual else ():
        value = getattr(host, key)
        if value is not None and value is not False:
            what = "a manual host is not reached by SSH: it joins with `zmqrl worker --connect FILE`"
            fix = "remove the key, or remove manual: true"
            raise ConfigError(what, key=("hosts", name, key), value=shown(value), fix=fix)


def _check_shapes(where: str, section: object) -> None:
    for key, (shape, what) in _SHAPES.items():
        value = getattr(section, key, None)
        if value is not None and not shape.fullmatch(value):
            raise ConfigError(f"{where}.{key}: {shown(value)}: {what}")
    _check_wrap(where, getattr(section, "wrap", None))


def _check_wrap(where: str, wrap: str | None) -> None:
    if wrap is None:
        return
    try:
        command = shlex.split(wrap)[0]
    except ValueError as error:
        fault = str(error)[:1].lower() + str(error)[1:]
        raise ConfigError(f"{where}.wrap: {shown(wrap)}: {fault}; quote words as in a shell") from error
    if not command or command.startswith("-") or "=" in command:
        raise ConfigError(
            f"{where}.wrap: {shown(wrap)}: must begin with a command; set environment variables in hosts.NAME.env"
        )


def _check_sharing(config: Config) -> None:
    for name, host in config.hosts.items():
        for key, value in (("only", host.only), ("yield_when", host.yield_when)):
            if value is not None and host.manual:
                what = "the launcher cannot control the agent of a manual host"
                raise ConfigError(what, key=("hosts", name, key), fix="remove the key")
            if value is not None and config.mode.in_process:
                raise ConfigError(
                    f"mode {config.run.mode} has no rollout workers", key=("hosts", name, key), fix="remove the key"
                )
        if host.only is not None:
            try:
                Windows.of(host.only)
            except ValueError as error:
                raise ConfigError(str(error), key=("hosts", name, "only"), value=shown(host.only)) from error
        if host.yield_when is not None and host.yield_when.load is None and not host.yield_when.user_active:
            raise ConfigError(
                "the host would never yield", key=("hosts", name, "yield_when"), fix="set load, or user_active: true"
            )


def _check_learner(config: Config) -> None:
    name = config.learner.host
    host = config.hosts.get(name)
    if host is None and name != LOCAL:
        known = list(dict.fromkeys([LOCAL, *config.hosts]))
        what, fix = "unknown host", f"{near(name, known)}hosts: {shortened(known)}"
        raise ConfigError(what, key=("learner", "host"), value=repr(name), fix=fix)
    if host is not None and (host.manual or host.tunnel):
        key, why = ("manual", "is started manually") if host.manual else ("tunnel", "cannot be reached by other hosts")
        what = f"the learner runs on this host (learner.host), which {why}"
        fix = f"set another learner.host or remove {key}"
        raise ConfigError(what, key=("hosts", name, key), value="true", fix=fix, others=(("learner", "host"),))


def _check_logins(config: Config) -> None:
    """Each machine has one agent of a run. Names are not resolved here: a launch does that."""
    known: dict[tuple[object, ...], str] = {}
    for name, host in config.hosts.items() if config.orchestrator.kind in ("auto", "ssh") else ():
        if name == LOCAL or host.manual or (host.workers == 0 and name != config.learner.host):
            continue
        login = filled(host, config.defaults)
        address = host.ssh or name
        other = known.setdefault((address.lower(), login.user, login.port, login.jump), name)
        if other != name:
            what = f"{name} and {other} are the same host"
            fix = f"list it once, with the total number of workers{_of_a_range(host, config.hosts[other])}"
            raise ConfigError(what, key=("hosts", name, "ssh"), value=shown(address), fix=fix)


def _of_a_range(host: HostSection, other: HostSection) -> str:
    is_possible = host.ssh is not None and host == other
    return "; all hosts of a range such as node[01:03] have the same ssh: omit it there" if is_possible else ""


def _check_mode(config: Config) -> None:
    for name, host in config.hosts.items() if config.mode.in_process else ():
        if name not in (LOCAL, config.learner.host) and host.workers != 0:
            raise ConfigError(
                f"mode {config.run.mode} has no rollout workers",
                key=("hosts", name, "workers"),
                value=shown(host.workers),
                fix=f"set 0, use --limit {config.learner.host}, or set run.mode: sync, pipelined or async",
                others=(("run", "mode"),),
            )


def _check_curve(config: Config) -> None:
    learner = config.learner.host
    others = {n: h for n, h in config.hosts.items() if n != learner and h.workers != 0}
    for name, host in others.items() if config.security.curve == "off" else ():
        if learner != LOCAL or not host.tunnel:
            what = f"host {name} would connect to the learner's host {learner} over the network in plain text"
            fix = f"set auto, or a tunnel through SSH (hosts.{name}.tunnel: true, with learner.host: local)"
            raise ConfigError(what, key=("security", "curve"), value="'off'", fix=fix, others=(("learner", "host"),))


_CHECKS: tuple[Callable[[Config], None], ...] = (
    _check_names,
    _check_keys,
    _check_sharing,
    _check_learner,
    _check_logins,
    _check_mode,
    _check_curve,
)
