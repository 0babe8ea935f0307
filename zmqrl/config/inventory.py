"""Hosts of an Ansible inventory (INI, YAML or a program), as `ansible-inventory --list` prints it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zmqrl.config.codec import names_of
from zmqrl.config.sections import HostSection
from zmqrl.config.yaml_source import Branch, Leaf, Node, Source, shown
from zmqrl.errors import ConfigError

PROGRAM = "ansible-inventory"
LIMIT_S = 60.0
INVENTORY = ("inventory",)
LOCAL = "local"
OWN = "zmqrl_"
"""A variable `zmqrl_KEY` of a host or group is the key KEY of that host."""
MEANINGS = {
    "ansible_host": "ssh",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_private_key_file": "identity",
    "ansible_ssh_private_key_file": "identity",
}
"""Ansible's variables, and the keys of a host that they are. `ansible_python_interpreter` is another Python."""
OF_NO_HOST = frozenset({"all", "ungrouped"})


def hosts_of_inventory(path: Path, source: Source) -> Branch:
    """The `hosts` section that an inventory describes; `source`: where its path was written.

    Raises:
        ConfigError: Ansible is not installed, cannot read it, or a host of it cannot be used.
    """
    if not path.exists():
        raise _refused("no such file or folder", path, source)
    listed, stderr = _listed(path, source)
    members = {name: tuple(_members(listed, name)) for name in listed}
    variables: Mapping[str, Mapping[str, Any]] = listed.get("_meta", {}).get("hostvars", {})
    hosts: dict[str, Node] = {}
    for host in dict.fromkeys(_members(listed, "all")):
        place = Source(f"{path} (host {host})")
        groups = sorted(name for name, named in members.items() if host in named and name not in OF_NO_HOST)
        found = _keys(variables.get(host, {}), place)
        is_here = variables.get(host, {}).get("ansible_connection") == "local"
        keys = {"groups": groups, **{key: value for key, value in found.items() if key == "workers" or not is_here}}
        hosts[LOCAL if is_here else host] = Branch(place, {key: Leaf(value, place) for key, value in keys.items()})
    if not hosts:
        first = " ".join(stderr.split()).split(" [WARNING]:")[0]  # Ansible breaks lines
        printed = f"; {PROGRAM} printed: {first}" if first else ""
        raise _refused(f"the inventory lists no hosts{printed}", path, source)
    return Branch(source, hosts)


def _listed(path: Path, source: Source) -> tuple[Mapping[str, Any], str]:
    """What Ansible prints: group to its hosts and children, `_meta` with the variables of the hosts; and its stderr."""
    folders = [os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)]
    program = shutil.which(PROGRAM, path=os.pathsep.join(folders))
    if program is None:
        raise _refused(f"{PROGRAM} is not installed here: pip install ansible-core", path, source)
    command = [program, "--inventory", str(path), "--list"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            listed: Mapping[str, Any] = json.loads(done.stdout)
            return listed, done.stderr
    except subprocess.TimeoutExpired as error:
        what = f"{PROGRAM} did not end within {LIMIT_S:g} s"
        raise ConfigError(what, key=INVENTORY, source=str(source)) from error
    except ValueError as error:
        raise _refused(f"the output of {PROGRAM} is not JSON: {error}", path, source) from error
    lines = done.stderr.strip().splitlines() or ["no output"]
    raise _refused(f"{PROGRAM} exited with code {done.returncode}: {lines[-1]}", path, source)


def _refused(what: str, path: Path, source: Source) -> ConfigError:
    return ConfigError(what, key=INVENTORY, value=repr(str(path)), source=str(source))


def _members(listed: Mapping[str, Any], group: str) -> Iterator[str]:
    found = listed.get(group, {})
    yield from found.get("hosts", ())
    for child in found.get("children", ()):
        yield from _members(listed, child)


def _keys(variables: Mapping[str, Any], place: Source) -> dict[str, Any]:
    connection = variables.get("ansible_connection", "ssh")
    if connection not in ("ssh", "paramiko", "paramiko_ssh", "smart", "local"):
        what, fix = "only SSH and local are supported", "remove the host from the inventory"
        raise ConfigError(what, key=("ansible_connection",), value=shown(connection), fix=fix, source=str(place))
    keys, known = {}, names_of(HostSection)
    for name, value in variables.items():
        key = MEANINGS.get(name) or (name.removeprefix(OWN) if name.startswith(OWN) else None)
        if key is None:
            continue
        if key not in known:
            fix = f"known: {', '.join(known)}"
            raise ConfigError(f"unknown key {key!r} of a host", key=(name,), fix=fix, source=str(place))
        if isinstance(value, str) and "{{" in value:
            what, fix = "templates are not evaluated", f"set hosts.NAME.{key}"
            raise ConfigError(what, key=(name,), value=shown(value), fix=fix, source=str(place))
        keys[key] = value
    return keys
