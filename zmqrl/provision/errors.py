"""What a host reported when it could not be set up, as a cause and the command that fixes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_PYTHON = "~/venvs/zmqrl/bin/python"
OTHER_PYTHON = f"set hosts.{{at.name}}.python to the Python of a venv, such as {DEFAULT_PYTHON}"
OTHER_PINS = "for other pins: --constraints FILE"
NO_PACKAGE = ("No matching distribution found", "Could not find a version", "Could not fetch URL")


ERRORS: Mapping[str, tuple[str, str]] = {
    "none": (
        "no Python 3.10 to 3.13 was found to create {at.python}{detail}",
        "install one (Debian, Ubuntu: apt install python3 python3-venv), or set hosts.{at.name}.python",
    ),
    "ensurepip": (
        "the host's Python {detail} cannot create {at.python}: venv or ensurepip is missing",
        "on Debian and Ubuntu: {at.login} sudo apt install python{detail}-venv",
    ),
    "no-venv": (
        "{detail} is not in a venv; setup installs into venvs only",
        f"set hosts.{{at.name}}.python to a venv's, such as {DEFAULT_PYTHON} (setup creates a missing venv)",
    ),
    "path": ("{detail} does not exist and is not of the form VENV/bin/python", OTHER_PYTHON),
    "absent": ("{detail} was not found", OTHER_PYTHON),
    "broken": (
        "{detail} exists, but its Python does not start",
        "check it, then remove it: {at.login} rm -r {detail}; setup creates it again",
    ),
    "broken-python": ("{detail}", "try: {at.login} {at.python} --version"),
    "version": (
        "{at.python} is Python {detail}; zmqrl needs 3.10 to 3.13",
        "set hosts.{at.name}.python to another venv (setup creates it)",
    ),
    "make": ("the venv of {at.python} could not be created: {detail}", "check: {at.login} 'df -h ~; id'"),
    "editable": (
        "{at.python} has an editable zmqrl, whose files in {detail} differ from those on this machine",
        "update them, or replace the editable install: {at.login} {at.python} -m pip uninstall -y zmqrl",
    ),
    "busy": ("another setup holds {detail}", "wait until it ends; to find it: {at.login} fuser -v {detail}"),
    "import": (
        "installed, but the import fails: {detail}",
        "try: {at.login} {at.python} -I -c \"'import zmqrl.entry'\"",
    ),
    "content": (
        "the files of zmqrl {detail} differ from those that were sent",
        "check: {at.login} {at.python} -m pip show -f zmqrl",
    ),
    "timeout": ("timed out: {detail}", "to continue: zmqrl setup hosts.yaml --limit {at.name}"),
    "os": ("{detail}", "check: {at.login} 'df -h ~; ls -ld ~'; or set hosts.{at.name}.workdir"),
    "no-pip": (
        "{at.python} has no pip and it could not be installed: {detail}",
        "install pip: {at.login} {at.python} -m ensurepip",
    ),
    "silent": ("no answer from setup: {detail}", "check that commands work: {at.login} sh -c true"),
}
"""Cause and fix by the kind of the error; `detail` is what the host reported with it."""


@dataclass(frozen=True)
class Host:
    """A host as its messages name it."""

    name: str
    """Name in hosts.yaml."""
    login: str
    """The command that logs in by hand, such as `ssh rl@node01.lab`."""
    python: str
    """Python of the host as configured."""
    has_wheels: bool
    """A wheel folder was sent, and no package index is used."""


def explain(kind: str, detail: str, at: Host) -> tuple[str, str]:
    """Cause and fix for an `error` of `zmqrl.provision.remote_install` and its `detail`."""
    if kind == "pip":
        return _of_pip(detail, at)
    if kind == "none":
        detail = f", found{detail.rstrip(';')}" if detail.strip() else ""
    if kind not in ERRORS:
        return detail or kind, f"check: {at.login}"
    cause, fix = (text.format(at=at, detail=detail) for text in ERRORS[kind])
    return cause, fix


def _of_pip(output: str, at: Host) -> tuple[str, str]:
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")] or output.strip().splitlines()[-1:]
    last = errors[-1].removeprefix("ERROR: ") if errors else "no output"
    if "No space left" in output:
        return f"pip: {last}", f"free space: {at.login} 'df -h ~ /tmp'"
    pin = re.search(r"The user requested \(constraint\) (\S+)", output)
    none = re.search(r"No matching distribution found for ([A-Za-z0-9._-]+)", output)
    if pin is None and not any(text in output for text in NO_PACKAGE):
        return f"pip: {last}", f"after the fix: zmqrl setup hosts.yaml --limit {at.name}"
    missing = f"pip found no {pin[1]} compatible with the other pins" if pin else f"pip: {last}"
    if at.has_wheels:
        package = pin[1] if pin else none[1] if none else "PACKAGE"
        return f"{missing} in the wheel folder", f"add it: python -m pip download -d DIR {package}; {OTHER_PINS}"
    return (
        f"{missing} in the package index of the host",
        f"for a host without an index: zmqrl setup hosts.yaml --limit {at.name} --wheels DIR; {OTHER_PINS}",
    )
