"""`launch --on HOST`, `train --on HOST`: the launcher starts on another host, in a session that outlives the login.

First everything is checked, and nothing is written: the version there, what systemd would end with the login, and that
every other host admits the keys of that host. Then the modules of `code.sync` and the configuration are copied.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.logs.printable import printable, printable_writer
from zmqrl.planning.start_request import StartRequest

if TYPE_CHECKING:
    from zmqrl.cli.start.start_options import TrainRequest
    from zmqrl.config.load import Loaded
    from zmqrl.config.sections import Config
    from zmqrl.launcher_place.launcher_host import LauncherHost
    from zmqrl.messages.files import LauncherReady
    from zmqrl.orchestrators.login_session import LoginSession

READY_SLACK_S = 300.0
"""Beyond `limits.start_s`, until READY: a resume may copy checkpoints first."""
DOCTOR_S = 180.0
STDIN = "/dev/stdin"
"""The file of a command that runs there: nothing is written for it."""


def launch_on(request: TrainRequest, host: str) -> int:
    """Returns once the run is READY, or the exit code of a launcher that ended before."""
    from zmqrl.cli.run.on import login_file
    from zmqrl.config.load import resolve_logins
    from zmqrl.launcher_place.launcher_host import connected

    logins = resolve_logins(login_file(request.hosts_file, host), request.overrides)
    if request.resume is None:
        _configuration(request, host, None)  # a fault ends the command before anything is connected to
    with connected(logins, host) as there:
        for line in there.accepted:
            click.echo(line, err=True)
        there.check_version()
        there.check_wrap()
        session = there.login_session()
        if session.refusal is not None:
            raise ConfigError(session.refusal, key=("--on",), value=host)
        directory, stored = _found(request, there)
        if directory is not None and stored is not None:
            there.check_own(directory, stored)
        config = _configuration(request, host, stored)
        directory = directory or _new_directory(request, there, config)
        _check_keys(there, config, request.hosts_file)
        return _Start(request, there, config, session, directory, stored).run()


def _found(request: TrainRequest, there: LauncherHost) -> tuple[str | None, bytes | None]:
    """Directory and stored configuration of the run that is resumed, on the host; None: a new run."""
    if request.resume is None:
        return None, None
    if request.is_auto:
        directory = str(request.run_dir)
        return directory, there.read(f"{directory}/config.json")
    directory = there.find(str(request.resume)).run_dir
    return directory, there.read(f"{directory}/config.json")


def _new_directory(request: TrainRequest, there: LauncherHost, config: Config) -> str:
    from zmqrl.run_files.run_directory import default_path

    directory = str(request.run_dir or default_path(config.run.name))
    if there.holds(directory):
        raise ConfigError(
            f"run directory {directory} exists on {there.name} and is not empty; to continue its run: --resume "
            f"{directory}"
        )
    return directory


def _configuration(request: TrainRequest, host: str, stored: bytes | None) -> Config:
    """Configuration of the launcher on `host`."""
    from zmqrl.config.on_host import on_host

    loaded = _loaded(request, stored)
    return on_host(loaded.config, host, loaded.is_auto_here)


def _loaded(request: TrainRequest, stored: bytes | None) -> Loaded:
    from zmqrl.launch.start import configured
    from zmqrl.launcher_place.launcher_host import stored_copy

    if stored is None:
        return configured(replace(request.new(), init_from=None))  # a place there
    with tempfile.TemporaryDirectory(prefix="zmqrl-on-") as folder:
        copy = stored_copy(stored, Path(folder), _preset_file(request))
        return configured(replace(request.resumed(copy), for_env_steps=None))  # added there


def _preset_file(request: TrainRequest) -> str | None:
    """The preset that the files here name by its path, which is unknown there."""
    from zmqrl.config.presets import preset_name, presets
    from zmqrl.config.yaml_source import Leaf, read_file

    named, folder = request.preset, None
    if named is None and request.hosts_file is not None:
        node, folder = read_file(request.hosts_file).at(("run", "preset")), request.hosts_file
        named = node.value if isinstance(node, Leaf) and isinstance(node.value, str) else None
    return None if named is None or named in presets() else preset_name(named, folder)


def _check_keys(there: LauncherHost, config: Config, hosts_file: Path | None) -> None:
    """The doctor there, without an SSH agent: a login that only a forwarded agent allows would end with the laptop."""
    from zmqrl.config.hosts import is_remote
    from zmqrl.config.on_host import connections_of
    from zmqrl.orchestrators.make import is_by_ssh
    from zmqrl.ssh.refusals import is_about_keys

    if not is_by_ssh(config) or not any(is_remote(name, host) for name, host in config.hosts.items()):
        return
    done = there.capture(
        "doctor", STDIN, "--json", "--env-limit", "1", data=connections_of(config).encode(), timeout_s=DOCTOR_S
    )
    refused = []
    for fault in _faults(there, done.stdout, done.stderr):
        if fault["check"] == "ssh" and is_about_keys(fault["cause"]):
            fix = fault["fix"].replace(STDIN, f"{hosts_file} --on {there.name}")
            refused.append(f"{fault['host']}: {fault['cause']}\n   on {there.name}: {fix}")
        elif fault["check"] == "ssh":
            text = f"{there.name} does not reach {fault['host']}: {fault['cause']}\n   {fault['fix']}"
            click.echo(printable(text), err=True)
    if refused:
        count = "1 host does" if len(refused) == 1 else f"{len(refused)} hosts do"
        raise ConfigError(
            f"--on {there.name}: {count} not accept the SSH keys of {there.name} (the SSH "
            "agent of this machine is not used: the run must not depend on it). "
            f"Authorise a key of {there.name} on these hosts, or set hosts.NAME.manual: true and run `zmqrl worker` on "
            "them:\n" + "\n".join(refused)
        )


def _faults(there: LauncherHost, stdout: bytes, stderr: bytes) -> Sequence[dict[str, Any]]:
    text = stdout.decode(errors="replace")
    try:
        found: list[dict[str, Any]] = json.loads(text[text.index("{\n") :])["faults"]
    except (ValueError, KeyError) as error:
        what = f"zmqrl doctor failed on {there.name}: {(stderr or stdout).decode(errors='replace').strip()}"
        raise ConfigError(what, key=("--on",), value=there.name) from error
    return found


class _Start:
    """Start of a launcher on a host, from the copies to READY."""

    def __init__(
        self,
        request: TrainRequest,
        there: LauncherHost,
        config: Config,
        session: LoginSession,
        directory: str,
        stored: bytes | None,
    ) -> None:
        """`directory`: of the run there, relative to the work directory; `stored`: `config.json` of a resumed run."""
        self._request, self._there, self._config, self._session = request, there, config, session
        self._directory, self._stored, self._is_resumed = directory, stored, stored is not None
        self._line = b""
        self._ready: LauncherReady | None = None

    def run(self) -> int:
        from zmqrl.config.on_host import text_of
        from zmqrl.launcher_place.launcher_host import refused_on, stored_code

        code = self._there.deliver(self._config.code)
        if code is None and self._stored is not None:
            code = stored_code(self._stored)
        text = text_of(self._config, code, keeps_code=self._is_resumed)
        file = self._there.write(f"{self._directory}.yaml", text.encode())
        try:
            errors = printable_writer(sys.stderr.buffer)
            ended = self._there.relay(
                self._words(file), self._out, errors, code, self._session.around, timeout_s=self._limit_s
            )
        except HostFailed as error:
            if self._request.dry_run:
                raise refused_on(error) from error
            raise HostFailed(error.host, error.cause, f"{error.fix}\n   {self._unknown()}") from error
        except KeyboardInterrupt:
            click.echo(self._unknown(), err=True)
            raise
        if self._ready is not None:
            self._report(self._ready)
            return 0
        if ended is None:
            raise HostFailed(self._there.name, f"the run is not READY after {self._limit_s:g} s", self._unknown())
        click.echo(printable(self._line.decode(errors="backslashreplace")), nl=False)
        if not self._is_resumed:
            self._there.remove(file)
        return ended

    @property
    def _limit_s(self) -> float:
        return self._config.limits.start_s + READY_SLACK_S

    def _words(self, file: str) -> Sequence[str]:
        request = self._request
        where = ["--resume" if self._is_resumed else "--run-dir", self._directory]
        if self._is_resumed and request.from_scratch and request.is_auto:
            where = ["--run-dir", self._directory, "--resume", "auto"]  # which may continue the run
        from_scratch, init_from = request.from_scratch and self._is_resumed, request.init_from
        differs = StartRequest(from_scratch=from_scratch, init_from=None if self._is_resumed else init_from)
        words = ["launch", file, *where, "--in-place", *differs.flags(), *["--dry-run"] * request.dry_run]
        return words if request.for_env_steps is None else [*words, "--for", str(request.for_env_steps)]

    def _out(self, chunk: bytes) -> bool:
        """Lines of the launcher, until it is READY."""
        from zmqrl.launcher_place.detach import READY_MARK
        from zmqrl.messages.files import LauncherReady, decode

        *lines, self._line = (self._line + chunk).split(b"\n")
        for line in lines:
            before, mark, text = line.partition(READY_MARK.encode())
            if mark:
                self._ready = decode(LauncherReady, text)
                return False
            click.echo(printable(before.decode(errors="backslashreplace")))
        return True

    def _report(self, ready: LauncherReady) -> None:
        from zmqrl.cli.run.on import remember

        host, hosts_file = self._there.name, self._request.hosts_file
        if hosts_file is not None:
            remember(host, hosts_file)
        click.echo(
            f"run {ready.run_id} continues on {host} in {ready.run_dir}; this machine may be switched off\n"
            f"   {self._session}"
        )
        for command in ("status -f", "logs -f", "stop", "down", "fetch"):
            click.echo(f"   zmqrl {command} {ready.run_dir}{on_flags(host, hosts_file)}")

    def _unknown(self) -> str:
        flags = on_flags(self._there.name, self._request.hosts_file)
        return (
            f"a launcher that has started on {self._there.name} continues: zmqrl status {self._directory}{flags}; "
            f"to end it: zmqrl down {self._directory}{flags}"
        )


def on_flags(host: str, hosts_file: Path | None) -> str:
    """What a command needs to find a run on `host` from this directory."""
    import shlex

    from zmqrl.cli.run.on import HOSTS_FILE

    named = "" if hosts_file is None or hosts_file == HOSTS_FILE else f" --hosts {shlex.quote(str(hosts_file))}"
    return f" --on {host}{named}"
