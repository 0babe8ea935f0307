"""Runs on a host that is set up, on whatever Python it has: makes the venv, and installs into it and nowhere else.

`zmqrl.provision.install` sends this file as text: it may import only the standard library. Its one argument is JSON;
its answer is the line on stdout that begins with `ZMQRL-SETUP `, a JSON object with `error` in it when it failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

MARK = "ZMQRL-SETUP "
OLDEST, NEWEST = (3, 10), (3, 13)
"""Range of Python versions, as `python_requires` in setup.cfg."""
STAMP = ".zmqrl-setup"
PROBE_S = 60.0
LEFT_AFTER_S = 86_400.0
PROBE = """
import hashlib, importlib.metadata as m, importlib.util, json, pathlib, sys
found = {"version": sys.version.split()[0], "pair": sys.version_info[:2], "venv": sys.prefix != sys.base_prefix,
         "prefix": sys.prefix, "pip": importlib.util.find_spec("pip") is not None, "zmqrl": None, "digest": None,
         "editable": None}
try:
    dist = m.distribution("zmqrl")
    files = {str(f): f.locate() for f in dist.files or () if str(f).startswith("zmqrl/") and f.suffix != ".pyc"}
    if json.loads(dist.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        package = pathlib.Path(importlib.util.find_spec("zmqrl").origin).parent
        found["editable"] = str(package.parent)
        files = {f"zmqrl/{f.relative_to(package)}": f for f in package.rglob("*")
                 if f.is_file() and "__pycache__" not in f.parts}
    lines = [f"{n} {hashlib.sha256(files[n].read_bytes()).hexdigest()}\\n" for n in sorted(files)]
    found.update(zmqrl=dist.version, digest=hashlib.sha256("".join(lines).encode()).hexdigest())
except (m.PackageNotFoundError, OSError, AttributeError):
    pass
print("ZMQRL-PROBE " + json.dumps(found))
"""
IMPORTS = "import zmqrl.entry, zmqrl.agent, numpy, zmq, msgpack, msgspec, gymnasium, safetensors, psutil"


class InstallRefused(Exception):
    """`kind` selects the message of `explain`."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind, self.detail = kind, detail


def main() -> None:
    """Do the step that is requested, and print the answer."""
    request = json.loads(sys.argv[1])
    os.environ.update(request["env"])
    # Packages of another installation on the search path would count as installed.
    os.environ.pop("PYTHONPATH", None)
    try:
        answer = check(request) if request["step"] == "check" else install(request)
    except InstallRefused as refused:
        answer = {"error": refused.kind, "detail": refused.detail}
    except OSError as error:
        answer = {"error": "os", "detail": str(error)}
    print(MARK + json.dumps(answer), flush=True)


def check(request: dict[str, Any]) -> dict[str, Any]:
    """Whether the host needs anything; if so, an empty folder to send it to."""
    python, state = _state(request)
    if state is not None and _is_current(request, state):
        return {"python": python, "state": state, "current": True}
    workdir = os.path.expanduser(request["workdir"])
    os.makedirs(workdir, mode=0o700, exist_ok=True)
    _remove_left(workdir)
    return {"python": python, "state": state, "current": False, "upload": tempfile.mkdtemp("", "setup-", workdir)}


def _remove_left(workdir: str) -> None:
    """Remove what a setup left whose launcher went away between its steps."""
    for entry in os.scandir(workdir):
        if entry.name.startswith("setup-") and entry.stat().st_mtime < time.time() - LEFT_AFTER_S:
            shutil.rmtree(entry.path, ignore_errors=True)


def install(request: dict[str, Any]) -> dict[str, Any]:
    """The venv, the wheel and what it needs; one at a time where hosts share the folder."""
    deadline = time.monotonic() + request["timeout_s"]
    try:
        python, _ = _state(request)
        with _locked(_venv_of(python), deadline):
            python, state = _state(request)
            made = state is None
            if made:
                _make_venv(_venv_of(python), deadline)
                python, state = _state(request)
            if state is None:
                raise InstallRefused("broken", _venv_of(python))
            current = _is_current(request, state)
            if not current:
                _install_into(python, state["prefix"], request, deadline)
                state = _verified(python, request)
            return {"python": python, "state": state, "current": current, "made": made}
    finally:
        shutil.rmtree(request["upload"], ignore_errors=True)


def _state(request: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The absolute path of the Python requested and what it is; None when it is yet to be made."""
    name = request["python"]
    python = os.path.expanduser(name) if "/" in name else shutil.which(name) or name
    if not os.path.isabs(python):
        raise InstallRefused("absent", python)
    if not os.access(python, os.X_OK):
        venv = _venv_of(python)
        if os.path.lexists(python) or (os.path.isdir(venv) and os.listdir(venv)):
            raise InstallRefused("broken", venv)
        return python, None
    state = _probed(python)
    if not OLDEST <= tuple(state["pair"]) <= NEWEST:
        raise InstallRefused("version", state["version"])
    if not state["venv"]:
        raise InstallRefused("no-venv", python)
    return python, state


def _venv_of(python: str) -> str:
    folder, name = os.path.split(python)
    if os.path.basename(folder) != "bin" or not re.fullmatch(r"python[0-9.]*", name):
        raise InstallRefused("path", python)
    return os.path.dirname(folder)


def _python(python: str, code: str) -> subprocess.CompletedProcess[str]:
    command, no = [python, "-I", "-c", code], subprocess.DEVNULL
    return subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=PROBE_S, stdin=no)


def _probed(python: str) -> dict[str, Any]:
    try:
        done = _python(python, PROBE)
    except OSError as error:
        raise InstallRefused("broken-python", f"{python}: {error.strerror}") from error
    for line in done.stdout.splitlines():
        if line.startswith("ZMQRL-PROBE "):
            return dict(json.loads(line[len("ZMQRL-PROBE ") :]))
    raise InstallRefused("broken-python", f"{python}: {_last(done.stderr)}")


def _is_current(request: dict[str, Any], state: dict[str, Any]) -> bool:
    """Whether this wheel is there, installed with these pins. An editable one is the user's to keep."""
    if state["editable"]:
        if state["digest"] == request["digest"]:
            return True
        raise InstallRefused("editable", state["editable"])
    try:
        with open(os.path.join(state["prefix"], STAMP), encoding="utf-8") as stamp:
            return bool(stamp.read().strip() == request["stamp"] and state["digest"] == request["digest"])
    except OSError:
        return False


@contextlib.contextmanager
def _locked(venv: str, deadline: float) -> Iterator[None]:
    """Held while a venv is changed: hosts that share a home would install into it at once."""
    path = f"{venv}.setup-lock"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InstallRefused("busy", path) from None
                _heartbeat()
                time.sleep(0.2)
        yield


def _uv() -> str | None:
    """The command uv, which needs neither ensurepip nor pip; also where its installer puts it."""
    return shutil.which("uv") or shutil.which("uv", path=os.path.expanduser("~/.local/bin"))


def _make_venv(venv: str, deadline: float) -> None:
    there, uv = os.path.isdir(venv), _uv()
    try:
        if uv is None or _run([uv, "venv", "--quiet", "--python", sys.executable, venv], deadline)[0] != 0:
            _make_venv_by_venv(venv, deadline)
    except BaseException:
        if not there:
            shutil.rmtree(venv, ignore_errors=True)
        raise


def _make_venv_by_venv(venv: str, deadline: float) -> None:
    import importlib.util

    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise InstallRefused("ensurepip", f"{sys.version_info[0]}.{sys.version_info[1]}")
    code, output = _run([sys.executable, "-I", "-m", "venv", venv], deadline)
    if code != 0:
        kind = "ensurepip" if "ensurepip" in output else "make"
        detail = f"{sys.version_info[0]}.{sys.version_info[1]}" if kind == "ensurepip" else _last(output)
        raise InstallRefused(kind, detail)


def _install_into(python: str, prefix: str, request: dict[str, Any], deadline: float) -> None:
    """The wheel and what it needs."""
    stamp = os.path.join(prefix, STAMP)
    if os.path.lexists(stamp):
        os.unlink(stamp)
    if not _install_by_uv(python, request, deadline):
        _install_by_pip(python, request, deadline)
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(request["stamp"] + "\n")


def _install_by_uv(python: str, request: dict[str, Any], deadline: float) -> bool:
    """Whether uv is there and could install: it does not read pip.conf, which may name the only index of the host."""
    uv, upload = _uv(), request["upload"]
    if uv is None:
        return False
    where = ["--no-config", "--no-index", "--find-links", os.path.join(upload, "wheels")]
    extras = f"[{','.join(request['extras'])}]" if request["extras"] else ""
    wheel = f"zmqrl{extras} @ file://{urllib.parse.quote(os.path.join(upload, request['wheel']))}"
    pins = ["--constraint", os.path.join(upload, "constraints.txt"), "--reinstall-package", "zmqrl"]
    command = [uv, "pip", "install", "--python", python, "--compile-bytecode"]
    return _run([*command, *(where if request["no_index"] else []), *pins, wheel], deadline)[0] == 0


def _install_by_pip(python: str, request: dict[str, Any], deadline: float) -> None:
    upload = request["upload"]
    if not _probed(python)["pip"]:
        code, output = _run([python, "-I", "-m", "ensurepip", "--upgrade"], deadline)
        if code != 0:
            raise InstallRefused("no-pip", _last(output))
    pip = [python, "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    wheel = os.path.join(upload, request["wheel"])
    # Isolated: a host's pip.conf may name folders and indexes of its own.
    where = ["--isolated", "--no-index", "--find-links", os.path.join(upload, "wheels")] if request["no_index"] else []
    extras = f"[{','.join(request['extras'])}]" if request["extras"] else ""
    pins = ["--constraint", os.path.join(upload, "constraints.txt")]
    code, output = _run([*pip, *where, *pins, wheel + extras], deadline)
    if code == 0 and _probed(python)["digest"] != request["digest"]:
        # pip leaves one of the same version alone, whatever is in it.
        code, output = _run([*pip, "--isolated", "--no-index", "--no-deps", "--force-reinstall", wheel], deadline)
    if code != 0:
        raise InstallRefused("pip", output[-4000:])


def _verified(python: str, request: dict[str, Any]) -> dict[str, Any]:
    """What a run needs can be imported, and the files are those that were sent."""
    done = _python(python, IMPORTS)
    if done.returncode != 0:
        raise InstallRefused("import", _last(done.stderr))
    state = _probed(python)
    if state["digest"] != request["digest"]:
        raise InstallRefused("content", f"{state['zmqrl']} in {python}")
    return state


def _run(command: list[str], deadline: float) -> tuple[int, str]:
    """Exit code and output. Without a waiting launcher the command is killed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.5)
                    break
                if time.monotonic() > deadline:
                    raise InstallRefused("timeout", " ".join(command[:6]))
                _heartbeat()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        output.seek(0)
        return child.returncode, output.read()


def _heartbeat() -> None:
    """Output to the launcher; without launcher this fails, and the finally clauses clean up."""
    print(".", flush=True)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


if __name__ == "__main__":
    main()
