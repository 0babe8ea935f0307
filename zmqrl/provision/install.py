"""`zmqrl setup`: on every host a venv with the very zmqrl that runs here. What runs there is `remote_install`."""

from __future__ import annotations

import hashlib
import json
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from zmqrl.config.hosts import filled, is_remote
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.orchestrators.host_commands import after_prologue, wrap_check, wrap_words
from zmqrl.orchestrators.host_start import start_fault
from zmqrl.provision import remote_install
from zmqrl.provision.errors import Host, explain
from zmqrl.provision.remote_install import MARK, NEWEST, OLDEST
from zmqrl.provision.wheel import PACKAGE, Wheel
from zmqrl.ssh.clients import connect_all
from zmqrl.ssh.connection import Connection
from zmqrl.ssh.shell import after_mark

CONSTRAINTS = PACKAGE / "constraints.txt"
CHECK_S, INSTALL_S = 60.0, 1800.0
TOGETHER = 16
_END, _INNER_END = "ZMQRL_END_OF_PROGRAM", "ZMQRL_END_OF_SCRIPT"

# Whatever the login shell is, it only has to start `sh -s`; everything else comes on its stdin.
_SCRIPT = f"""
inner=$(cat <<'{_INNER_END}'
%(inner)s
{_INNER_END}
)
%(start)s
"""
# Behind the prologue and wrap of the host, as its agent: finds a Python.
_INNER = f"""
program=$(cat <<'{_END}'
%(program)s
{_END}
)
request=$(cat <<'{_END}'
%(request)s
{_END}
)
path=%(python)s
case $path in '~/'*) path=$HOME/${{path#'~/'}} ;; esac
seen=
for name in "$path" %(candidates)s; do
  found=$(command -v "$name" 2>/dev/null) || continue
  if "$found" -I -c 'import sys; sys.exit(not %(oldest)s <= sys.version_info[:2] <= %(newest)s)' 2>/dev/null; then
    exec "$found" -I -c "$program" "$request" </dev/null
  fi
  seen="$seen $("$found" --version 2>&1 | tail -n 1 | tr -cd 'A-Za-z0-9. ');"
done
echo '{MARK}{{"error": "none", "detail": "'"$seen"'"}}'
"""


@dataclass(frozen=True)
class InstallBundle:
    """What every host gets."""

    wheel: Wheel
    constraints: bytes
    wheels: tuple[Path, ...] | None = None
    """Wheel files for hosts without an index; None: the host's own index."""
    extras: tuple[str, ...] = ()

    @property
    def stamp(self) -> str:
        """What an installation is remembered by."""
        parts = (self.wheel.digest.encode(), self.constraints, ",".join(self.extras).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


@dataclass(frozen=True)
class Installed:
    """A host that now has this zmqrl."""

    host: str
    python: str
    python_version: str
    version: str
    made_venv: bool
    was_there: bool
    took_s: float
    accepted: tuple[str, ...]
    """Host keys that were new and are now known: what to report to the user."""

    def __str__(self) -> str:
        how = "already installed" if self.was_there else "new venv" if self.made_venv else "installed"
        where = f"{self.python} (Python {self.python_version})"
        return f"{self.host}: zmqrl {self.version} in {where}, {how}, {self.took_s:.1f} s"


def wheel_files(folder: Path) -> tuple[Path, ...]:
    """The wheels of a folder for hosts without an index. ConfigError when there are none."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError("is a file, not a directory", key=("--wheels",), value=str(folder))
    files = tuple(sorted(folder.glob("*.whl")))
    if not files:
        raise ConfigError(
            "no wheels found",
            key=("--wheels",),
            value=str(folder),
            fix=(
                f"download them where a package index is reachable: {sys.executable} -m pip download -d "
                f"{folder} -c {CONSTRAINTS} {' '.join(_needed())}"
            ),
        )
    return files


def _needed() -> list[str]:
    """Names of what zmqrl depends on, extras left out."""
    lines = (line for line in requires("zmqrl") or () if "extra ==" not in line)
    return [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in lines]


def set_up(config: Config, names: Sequence[str], bundle: InstallBundle) -> Iterator[Installed | HostFailed]:
    """Set up the hosts of these names, several at once; gives each as it is done.

    An interrupted caller (Ctrl-C) ends the setup: the remote side kills pip when the connection closes.
    """
    work = _Work(config, bundle)
    with ThreadPoolExecutor(TOGETHER) as pool, work:
        connecting = threading.Thread(target=work.connect, args=(names, pool), daemon=True)
        connecting.start()
        for _ in names:
            result = work.results.get()
            if not isinstance(result, (Installed, HostFailed)):
                raise result
            yield result


def remote_hosts(config: Config) -> list[str]:
    """The hosts that are reached by SSH."""
    return [name for name, host in config.hosts.items() if is_remote(name, host)]


class _Work:
    """Connections and results of all hosts."""

    def __init__(self, config: Config, bundle: InstallBundle) -> None:
        self.results: queue.SimpleQueue[Installed | HostFailed | BaseException] = queue.SimpleQueue()
        self._config, self._bundle = config, bundle
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._ended = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        """Close what is open: a step that waits for an answer over it fails."""
        with self._lock:
            self._ended = True
            connections = list(self._open)
        for connection in connections:
            connection.close()

    def connect(self, names: Sequence[str], pool: ThreadPoolExecutor) -> None:
        """Connect in a separate thread: hosts that answer begin while others do not."""
        try:
            for _, connected in connect_all(self._config, names):
                if isinstance(connected, HostFailed):
                    self.results.put(connected)
                elif self._keep(connected):
                    pool.submit(self._one, connected)
                else:
                    return
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            self.results.put(error)

    def _keep(self, connection: Connection) -> bool:
        with self._lock:
            if not self._ended:
                self._open.add(connection)
        if self._ended:
            connection.close()
        return not self._ended

    def _one(self, connection: Connection) -> None:
        target = connection.target
        section = filled(self._config.hosts[target.host], self._config.defaults)
        try:
            self.results.put(_Setup(target.host, target.login_command(), connection, section, self._bundle).run())
        except BaseException as error:  # noqa: BLE001  # HostFailed is a result, the rest is raised by the caller
            self.results.put(error)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


class _Setup:
    def __init__(
        self, host: str, login: str, connection: Connection, section: HostSection, bundle: InstallBundle
    ) -> None:
        self._host, self._login, self._connection = host, login, connection
        self._section, self._bundle = section, bundle
        self._began = time.monotonic()

    def run(self) -> Installed:
        self._connection.check_answer()
        found = self._run_step("check", CHECK_S)
        if found["current"]:
            return self._installed(found, made=False)
        upload = found["upload"]
        self._send(upload)
        done = self._run_step("install", INSTALL_S, upload=upload, wheel=self._bundle.wheel.name)
        return self._installed(done, made=done["made"])

    def _send(self, upload: str) -> None:
        self._connection.put(self._bundle.wheel.content, f"{upload}/{self._bundle.wheel.name}")
        self._connection.put(self._bundle.constraints, f"{upload}/constraints.txt")
        for file in self._bundle.wheels or ():
            self._connection.put(file, f"{upload}/wheels/{file.name}")

    def _run_step(self, step: str, timeout_s: float, **more: str) -> dict[str, Any]:
        """One step on the host; its answer, or what it failed of."""
        request = {
            "step": step,
            "python": self._section.python,
            "workdir": self._section.workdir,
            "env": dict(self._section.env),
            "digest": self._bundle.wheel.digest,
            "stamp": self._bundle.stamp,
            "extras": list(self._bundle.extras),
            "no_index": self._bundle.wheels is not None,
            "timeout_s": timeout_s,
            **more,
        }
        done = self._connection.run("sh -s", timeout_s + CHECK_S, _script(request, self._section).encode())
        for line in done.stdout.decode(errors="replace").splitlines():
            text = after_mark(line, MARK)
            if text is not None:
                answer: dict[str, Any] = json.loads(text)
                if "error" in answer:
                    raise self._failed(answer["error"], answer["detail"])
                return answer
        stderr = done.stderr.decode(errors="replace")
        fault = start_fault(self._host, self._section, stderr)
        if fault is not None:
            raise fault.of(self._host)
        tail = (stderr.strip().splitlines() or [f"exit code {done.code}"])[-1]
        raise self._failed("silent", tail)

    def _installed(self, answer: dict[str, Any], made: bool) -> Installed:
        state, took_s = answer["state"], time.monotonic() - self._began
        accepted = self._connection.accepted
        python = answer["python"]
        return Installed(
            self._host, python, state["version"], state["zmqrl"], made, answer["current"], took_s, accepted
        )

    def _failed(self, kind: str, detail: str) -> HostFailed:
        at = Host(self._host, self._login, str(self._section.python), self._bundle.wheels is not None)
        return HostFailed(self._host, *explain(kind, detail, at))


def _script(request: Mapping[str, Any], section: HostSection) -> str:
    minor = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    others = [f"python{OLDEST[0]}.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    program = Path(remote_install.__file__).read_text(encoding="utf-8")
    python = "'" + str(request["python"]).replace("'", "'\\''") + "'"
    inner = _INNER % {
        "program": program,
        "request": json.dumps(request),
        "python": python,
        "candidates": " ".join([minor, "python3", *others]),
        "oldest": OLDEST,
        "newest": NEWEST,
    }
    start = f'{wrap_check(section)}exec {wrap_words(section)}sh -c "$inner" </dev/null'
    return _SCRIPT % {"inner": inner, "start": after_prologue(section, start)}
