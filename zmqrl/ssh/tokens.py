"""Tokens and variables of the environment that `ssh -G` leaves in the values of ssh_config."""

from __future__ import annotations

import getpass
import hashlib
import os
import pwd
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zmqrl.errors import HostFailed

_TOKEN = re.compile(r"%([a-zA-Z%])|\$\{([^}]+)\}")


@dataclass(frozen=True)
class Tokens:
    """What `ssh -G` leaves in a value: `%` and a letter, and in paths variables of the environment, `${NAME}`."""

    host: str
    values: dict[str, str]

    def command(self, text: str) -> str:
        """Text of ProxyCommand with its tokens expanded; its shell knows the variables."""
        return _TOKEN.sub(lambda match: self.values.get(match[1], match[0]), text)

    def path(self, text: str) -> str:
        """Absolute. HostFailed when a variable is not set, as ssh refuses it."""
        return os.path.abspath(os.path.expanduser(_TOKEN.sub(self._value, text.strip('"'))))

    def agent(self, value: str | None) -> str | None:
        """Socket of the agent, `none` or None, as of `Target`; `$NAME` names a variable with the whole path."""
        if value in (None, "SSH_AUTH_SOCK", "none"):
            return value if value == "none" else None
        if value.startswith("$") and not value.startswith("${"):
            return os.environ.get(value[1:], "none")
        return self.path(value)

    def _value(self, match: re.Match[str]) -> str:
        if match[2] is None:
            return self.values.get(match[1], match[0])
        if match[2] not in os.environ:
            cause = f"the ssh configuration uses ${{{match[2]}}}, and this variable is not set"
            raise HostFailed(self.host, cause, f"set it: export {match[2]}=VALUE; or write the path itself")
        return os.environ[match[2]]


def token_values(name: str, one: Mapping[str, str], jump_host: str) -> dict[str, str]:
    """Values of the tokens `%h`, `%n`, ..., as ssh_config(5) defines them.

    Args:
        name: What the user gives to ssh.
        one: The settings for it.
        jump_host: The last jump host; empty without one.
    """
    here, alias = socket.gethostname(), one.get("hostkeyalias", "none")
    values = {
        "h": one["hostname"],
        "n": name,
        "p": one["port"],
        "r": one["user"],
        "k": name if alias == "none" else alias,
        "j": jump_host,
        "d": str(Path.home()),
        "i": str(os.getuid()),
        "u": _local_user(),
        "l": here,
        "L": here.partition(".")[0],
        "%": "%",
    }
    connection = "".join(values[name] for name in "lhprj")  # ssh itself is asked where it is installed
    return {**values, "C": hashlib.sha1(connection.encode(), usedforsecurity=False).hexdigest()}


def _local_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return getpass.getuser()
