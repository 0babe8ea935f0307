"""Settings of ssh for a login: from the ssh client (`ssh -G`), or read here where there is none."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.config.sections import DefaultsSection
from zmqrl.errors import HostFailed

_INCLUDE = re.compile(r"^\s*include\b", re.IGNORECASE | re.MULTILINE)
STANDARD = {
    "port": "22",
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
CLIENT_S = 10.0
NOT_AN_IDENTITY = "zmqrl-end-of-identities"
"""A placeholder identity: ssh prints its default identities only where none is configured; this separates them."""
USER_CONFIG = "~/.ssh/config"
SYSTEM_CONFIG = "/etc/ssh/ssh_config"


@dataclass(frozen=True)
class Wanted:
    """One login to resolve, before the ssh configuration has been read."""

    host: str
    name: str
    user: str | None
    port: int | None
    identity: str | None
    jump: str | None
    fallback: DefaultsSection


def from_client(client: str, wanted: Wanted, config: Path | None, *more: str) -> Mapping[str, Sequence[str]]:
    """Every setting that the ssh client would use, by lower-case name; those that may stand often have many values."""
    options = [
        *(["-l", wanted.user] if wanted.user else []),
        *(["-p", str(wanted.port)] if wanted.port else []),
        *(["-J", wanted.jump] if wanted.jump else []),
        *more,
    ]
    with tempfile.NamedTemporaryFile(prefix="zmqrl-ssh-") as layered:
        layered.write(os.fsencode(_layers(wanted.fallback, config)))
        layered.flush()
        command = [client, "-F", layered.name, *options, "-G", "--", wanted.name]
        try:
            done = subprocess.run(command, capture_output=True, timeout=CLIENT_S, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            why = f"`ssh -G {wanted.name}` took longer than {CLIENT_S:g} s"
            raise HostFailed(wanted.host, why, f"check Match exec in {config or USER_CONFIG}") from None
    if done.returncode:
        output = os.fsdecode(done.stderr).strip() or f"exit {done.returncode}"
        raise HostFailed(wanted.host, f"ssh rejects its configuration: {output}", f"try: ssh -G {wanted.name}")
    found: dict[str, list[str]] = {}
    for line in os.fsdecode(done.stdout).splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)
    return found


def _layers(fallback: DefaultsSection, config: Path | None) -> str:
    """A configuration for ssh, which takes the first value it reads: the user's, the system's, then our defaults."""
    return "\n".join([*includes(config), _block(fallback), ""])


def includes(config: Path | None) -> list[str]:
    """Lines that read the configurations of the user and the system, or `config`."""
    return [f'Include "{path}"' for path in _files(config)]


def without_client(wanted: Wanted, config: Path | None) -> Mapping[str, Sequence[str]]:
    """The same without an ssh client. HostFailed when only ssh can read the files."""
    import paramiko

    requested = DefaultsSection(user=wanted.user, port=wanted.port, jump=wanted.jump)
    files, texts = [Path(path).expanduser() for path in _files(config)], []
    for file in files:
        try:
            texts.append(os.fsdecode(file.read_bytes()))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise HostFailed(wanted.host, f"{file} cannot be read: {error.strerror}", f"ls -l {file}") from error
        if _INCLUDE.search(texts[-1]) and not file.is_relative_to("/etc"):
            why = f"{file} has Include, which only the ssh client supports"
            raise HostFailed(wanted.host, why, "install it: apt install openssh-client")
    text = "\n".join([_block(requested), *texts, _block(wanted.fallback)])
    try:
        looked_up = paramiko.SSHConfig.from_text(text).lookup(wanted.name)
    except paramiko.SSHException as error:
        raise HostFailed(wanted.host, f"{files[0]} cannot be parsed: {error}", f"correct {files[0]}") from error
    settings: dict[str, Any] = {"user": getpass.getuser(), **STANDARD, **looked_up}
    if wanted.jump:
        settings.pop("proxycommand", None)
    return {key: value if isinstance(value, list) else [value] for key, value in settings.items()}


def _files(config: Path | None) -> list[str]:
    return [str(config.absolute())] if config else [USER_CONFIG, SYSTEM_CONFIG]


def _block(values: DefaultsSection) -> str:
    """Settings of every host, where no earlier line sets them."""
    settings = {"User": values.user, "Port": values.port, "ProxyJump": values.jump, "IdentityFile": NOT_AN_IDENTITY}
    return "\n".join(["Host *", *(f"  {key} {value}" for key, value in settings.items() if value)])
