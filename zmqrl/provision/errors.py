"""What a host reported when it could not be set up, as a cause and the command that fixes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

DEFAULT_PYTHON = "~/venvs/zmqrl/bin/python"
OTHER_PINS = "for other pins: --constraints FILE"
NO_PACKAGE = ("No matching distribution found", "Could not find a version", "Could not fetch URL")


@dataclass(frozen=True)
class Host:
    """A host as its messages name it."""

    name: str
    """In hosts.yaml."""
    login: str
    """The command that logs in by hand, such as `ssh rl@node01.lab`."""
    python: str
    """As configured."""
    has_wheels: bool
    """A wheel folder was sent, and no package index is used."""


def explain(kind: str, detail: str, at: Host) -> tuple[str, str]:
    """Cause and fix for an `error` of `zmqrl.provision.remote_install` and its `detail`."""
    if kind == "pip":
        return _of_pip(detail, at)
    explanation = _ERRORS.get(kind)
    if explanation is None:
        return f"{detail or kind}", f"check: {at.login}"
    return explanation(at, detail)


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


def _none(at: Host, seen: str) -> tuple[str, str]:
    found = f", found{seen.rstrip(';')}" if seen.strip() else ""
    return (
        f"no Python 3.10 to 3.13 was found to create {at.python}{found}",
        f"install one (Debian, Ubuntu: apt install python3 python3-venv), or set hosts.{at.name}.python",
    )


def _ensurepip(at: Host, version: str) -> tuple[str, str]:
    return (
        f"the host's Python {version} cannot create {at.python}: venv or ensurepip is missing",
        f"on Debian and Ubuntu: {at.login} sudo apt install python{version}-venv",
    )


def _no_venv(at: Host, path: str) -> tuple[str, str]:
    return (
        f"{path} is not in a venv; setup installs into venvs only",
        f"set hosts.{at.name}.python to a venv's, such as {DEFAULT_PYTHON} (setup creates a missing venv)",
    )


def _path(at: Host, path: str) -> tuple[str, str]:
    return (
        f"{path} does not exist and is not of the form VENV/bin/python",
        f"set hosts.{at.name}.python to the Python of a venv, such as {DEFAULT_PYTHON}",
    )


def _absent(at: Host, name: str) -> tuple[str, str]:
    return (f"{name} was not found", f"set hosts.{at.name}.python to the Python of a venv, such as {DEFAULT_PYTHON}")


def _broken(at: Host, venv: str) -> tuple[str, str]:
    return (
        f"{venv} exists, but its Python does not start",
        f"check it, then remove it: {at.login} rm -r {venv}; setup creates it again",
    )


def _broken_python(at: Host, output: str) -> tuple[str, str]:
    return f"{output}", f"try: {at.login} {at.python} --version"


def _version(at: Host, version: str) -> tuple[str, str]:
    return (
        f"{at.python} is Python {version}; zmqrl needs 3.10 to 3.13",
        f"set hosts.{at.name}.python to another venv (setup creates it)",
    )


def _make(at: Host, output: str) -> tuple[str, str]:
    return f"the venv of {at.python} could not be created: {output}", f"check: {at.login} 'df -h ~; id'"


def _editable(at: Host, source: str) -> tuple[str, str]:
    return (
        f"{at.python} has an editable zmqrl, whose files in {source} differ from those on this machine",
        f"update them, or replace the editable install: {at.login} {at.python} -m pip uninstall -y zmqrl",
    )


def _busy(at: Host, lock: str) -> tuple[str, str]:
    return f"another setup holds {lock}", f"wait until it ends; to find it: {at.login} fuser -v {lock}"


def _import(at: Host, output: str) -> tuple[str, str]:
    return (
        f"installed, but the import fails: {output}",
        f"try: {at.login} {at.python} -I -c \"'import zmqrl.entry'\"",
    )


def _content(at: Host, what: str) -> tuple[str, str]:
    return (
        f"the files of zmqrl {what} differ from those that were sent",
        f"check: {at.login} {at.python} -m pip show -f zmqrl",
    )


def _timeout(at: Host, what: str) -> tuple[str, str]:
    return f"timed out: {what}", f"to continue: zmqrl setup hosts.yaml --limit {at.name}"


def _os(at: Host, output: str) -> tuple[str, str]:
    return output, f"check: {at.login} 'df -h ~; ls -ld ~'; or set hosts.{at.name}.workdir"


def _no_pip(at: Host, output: str) -> tuple[str, str]:
    return (
        f"{at.python} has no pip and it could not be installed: {output}",
        f"install pip: {at.login} {at.python} -m ensurepip",
    )


def _silent(at: Host, output: str) -> tuple[str, str]:
    return f"no answer from setup: {output}", f"check that commands work: {at.login} sh -c true"


_ERRORS: Mapping[str, Callable[[Host, str], tuple[str, str]]] = {
    "none": _none,
    "ensurepip": _ensurepip,
    "no-venv": _no_venv,
    "path": _path,
    "absent": _absent,
    "broken": _broken,
    "broken-python": _broken_python,
    "version": _version,
    "make": _make,
    "editable": _editable,
    "busy": _busy,
    "import": _import,
    "content": _content,
    "timeout": _timeout,
    "os": _os,
    "no-pip": _no_pip,
    "silent": _silent,
}
