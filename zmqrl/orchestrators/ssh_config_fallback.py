"""The user's ssh configuration on a machine without an ssh client."""

from __future__ import annotations

import getpass
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zmqrl.errors import HostFailed

_INCLUDE = re.compile(r"^\s*include\b", re.IGNORECASE | re.MULTILINE)


STANDARD = {
    "port": "22",
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}


def read_without_client(
    host: str, name: str, files: Sequence[Path], before: str, after: str
) -> dict[str, Sequence[str]]:
    """Settings by lower-case name, as `ssh -G` names them; those that may stand often have many values.

    `before` and `after` are blocks of the same form that stand above and below the files. HostFailed when only ssh can
    read them.
    """
    import paramiko

    texts = []
    for file in files:
        try:
            texts.append(file.read_text())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise HostFailed(host, f"{file} cannot be read: {error.strerror}", f"ls -l {file}") from error
        if _INCLUDE.search(texts[-1]) and not file.is_relative_to("/etc"):
            why = f"{file} has Include, which only the ssh client supports"
            raise HostFailed(host, why, "install it: apt install openssh-client")
    try:
        looked_up = paramiko.SSHConfig.from_text("\n".join([before, *texts, after])).lookup(name)
    except paramiko.SSHException as error:
        raise HostFailed(host, f"{files[0]} cannot be parsed: {error}", f"correct {files[0]}") from error
    settings: dict[str, Any] = {"user": getpass.getuser(), **STANDARD, **looked_up}
    return {key: value if isinstance(value, list) else [value] for key, value in settings.items()}
