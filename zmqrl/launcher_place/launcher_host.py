"""The host that `--on` names: zmqrl commands there over one SSH connection, with the keys of that host alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from zmqrl.config.on_host import login_of
from zmqrl.config.sections import CodeSection, Config, HostSection
from zmqrl.errors import ConfigError, HostFailed, WireError
from zmqrl.messages.lines import handshake
from zmqrl.orchestrators.handshake import SENTINEL, refusals, versions
from zmqrl.orchestrators.host_commands import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    PROLOGUE_BEGINS,
    PROLOGUE_ENDED,
    after_prologue,
    cli_command,
    for_login_shell,
    handshake_command,
    quoted,
    wrap_words,
)
from zmqrl.orchestrators.host_start import start_fault
from zmqrl.orchestrators.login_session import SCRIPT, LoginSession
from zmqrl.run_files.stored_config import parse_config
from zmqrl.run_files.trust import modules_of
from zmqrl.ssh.clients import connect
from zmqrl.ssh.code_sync import deliver, make_archive
from zmqrl.ssh.connection import Connection
from zmqrl.ssh.shell import Finished, after_mark
from zmqrl.supervision.host_mark import PID_NAMESPACE

ANSWER_S = 30.0
TAIL_CHARACTERS = 600
BEGIN, END, WROTE, NAMESPACES = "ZMQRL-FILE", "ZMQRL-END", "ZMQRL-WROTE ", "ZMQRL-NAMESPACES "


class FoundRun(NamedTuple):
    """A run on the launcher's host."""

    run_id: str
    run_dir: str
    """Absolute."""
    is_live: bool


class LauncherHost:
    """Made by `connected`. Every failure is a ConfigError: nothing was started."""

    def __init__(
        self, name: str, section: HostSection, connection: Connection, start_s: float, is_listed: bool = True
    ) -> None:
        """`section`: see `login_of`; `start_s`: how long a prologue may take; `is_listed`: a hosts file has it."""
        self.name, self.section, self.connection = name, section, connection
        self._install = f"zmqrl setup HOSTS.yaml --limit {name}"
        if not is_listed:
            self._install = f"no hosts file that was read has {name} and its Python: name it with --hosts FILE"
        self._answer_s = ANSWER_S + (start_s if section.prologue is not None else 0.0)

    @property
    def accepted(self) -> Sequence[str]:
        """What to report of its host key."""
        return self.connection.accepted

    def check_version(self) -> None:
        """ConfigError unless this zmqrl is installed there, and starts."""
        done = self._run(handshake_command(self.section, self.name))
        text, fix = _marked(done.stdout, SENTINEL), self._install
        if text is None:
            self._check_start(done.stderr)
            raise self._refused(f"zmqrl does not start on this host (exit code {done.code}): {_tail(done)}", fix)
        try:
            differing = refusals(versions(), handshake(text).versions)
        except WireError as error:
            raise self._refused(f"invalid handshake: {error}", fix) from error
        if differing:
            raise self._refused("; ".join(differing), fix)

    def check_wrap(self) -> None:
        """ConfigError when `wrap` makes a pid namespace: no other command could see and stop a launcher in it."""
        if self.section.wrap is None:
            return
        look = f"readlink {PID_NAMESPACE}"
        both = after_prologue(self.section, f"echo {NAMESPACES}$({look}) $({wrap_words(self.section)}{look})")
        found = (_marked(self._run(for_login_shell(both)).stdout, NAMESPACES) or "").split()
        if len(found) == 2 and found[0] != found[1]:
            what = "creates a pid namespace, which hides the launcher from status, stop and down"
            fix = "set a wrap that does not create one, or choose another host"
            raise self._refused(f"hosts.{self.name}.wrap (`{self.section.wrap}`) {what}", fix)

    def login_session(self) -> LoginSession:
        """How a launcher that outlives the login is started there."""
        done = self._run("sh -s", SCRIPT.encode())
        found = LoginSession.parse(done.stdout.decode(errors="replace"))
        if found is None:
            raise self._refused(f"its shell did not answer (exit code {done.code}): {_tail(done)}", "log in and check")
        return found

    def capture(self, *words: str, data: bytes = b"", code: str | None = None, timeout_s: float = ANSWER_S) -> Finished:
        """The end of a `zmqrl` command there; `code`: see `cli_command`."""
        done = self._run(cli_command(self.section, words, code), data, timeout_s)
        self._check_found(done.code)
        return done

    def find(self, run: str) -> FoundRun:
        """A run by its directory or id. ConfigError when it is unknown there."""
        done = self.capture("status", run, "--json")
        if done.code != 0:
            text = done.stderr.decode(errors="replace").strip().removeprefix("zmqrl: ")
            raise ConfigError(f"{run}: on {self.name}: {text}")
        found = json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1])
        return FoundRun(found["run_id"], found["run_dir"], found["live"])

    def relay(
        self,
        words: Sequence[str],
        out: Callable[[bytes], bool],
        err: Callable[[bytes], object],
        code: str | None = None,
        around: str = "",
        data: bytes = b"",
        timeout_s: float | None = None,
    ) -> int | None:
        """Run a `zmqrl` command there and pass its output on, see `Connection.relay` and `cli_command`.

        Raises:
            HostFailed: The connection was lost.
            ConfigError: The prologue failed, or the Python of zmqrl was not found: nothing was started.
        """
        notes = _WithoutPrologue(err)
        command = cli_command(self.section, words, code, around)
        ended = self.connection.relay(command, out, notes.take, data, timeout_s)
        if ended is not None and notes.held:
            self._check_start(notes.held)
            err(notes.held)
        self._check_found(ended)
        return ended

    def read(self, path: str) -> bytes | None:
        """A file there, relative to the work directory; None when it does not exist."""
        file = quoted(path)
        done = self._in_workdir(f"if [ -e {file} ]; then echo; echo {BEGIN}; cat -- {file} && echo && echo {END}; fi")
        text, is_whole, _ = done.stdout.rpartition(f"\n{END}\n".encode())
        _, begins, content = text.partition(f"\n{BEGIN}\n".encode())
        if begins and is_whole:
            return content
        if done.code != 0:
            raise self._refused(f"{path} cannot be read: {_tail(done)}", f"check: ls -l {path}")
        return None

    def check_own(self, run_dir: str, stored: bytes) -> None:
        """ConfigError when another user made a run there that names code: this machine would import it too."""
        files = " && ".join(f"[ -O {quoted(path)} ]" for path in (run_dir, f"{run_dir}/config.json"))
        names = next(modules_of(parse_config(stored, run_dir)), None)
        if names is not None and END not in self._in_workdir(f"{files} && echo && echo {END}").stdout.decode():
            raise self._refused(f"{run_dir} is of another user, and names code: {names[1]}", "resume it on that host")

    def holds(self, folder: str) -> bool:
        """Whether a folder there has anything in it, or is a file."""
        done = self._in_workdir(f'[ -z "$(ls -A {quoted(folder)} 2>/dev/null)" ] && echo && echo {END}')
        return END not in done.stdout.decode(errors="replace").splitlines()

    def write(self, path: str, content: bytes) -> str:
        """Write a file there with mode 0600, at once and verified; its absolute path."""
        digest, part = hashlib.sha256(content).hexdigest(), f"{path}.{secrets.token_hex(4)}.part"
        steps = (
            f"mkdir -p {quoted(posixpath.dirname(path) or '.')}",
            f"(umask 077; cat > {quoted(part)})",
            f'[ "$(sha256sum < {quoted(part)} | cut -c -64)" = {digest} ]',
            f"mv -f -- {quoted(part)} {quoted(path)}",
            f'cd {quoted(posixpath.dirname(path) or ".")} && echo "{WROTE}$(pwd)"',
        )
        done = self._in_workdir(" && ".join(steps), content)
        folder = _marked(done.stdout, WROTE)
        if folder is None:
            raise self._refused(f"{path} could not be written: {_tail(done)}", f"check its disk: df -h {path}")
        return posixpath.join(folder, posixpath.basename(path))

    def remove(self, path: str) -> None:
        """Remove a file there."""
        self._in_workdir(f"rm -f -- {quoted(path)}")

    def deliver(self, code: CodeSection) -> str | None:
        """Bring the modules of `code.sync`; the folder that has them there."""
        archive = make_archive(code)
        try:
            return None if archive is None else deliver(self.connection, archive, self.section.workdir or "~")
        except HostFailed as error:
            raise refused_on(error) from error

    def _in_workdir(self, script: str, data: bytes = b"") -> Finished:
        workdir = quoted(self.section.workdir)
        return self._run(for_login_shell(f"mkdir -p {workdir} && cd {workdir} && {script}"), data)

    def _run(self, command: str, data: bytes = b"", timeout_s: float = ANSWER_S) -> Finished:
        try:
            return self.connection.run(command, max(timeout_s, self._answer_s), data)
        except HostFailed as error:
            raise refused_on(error) from error

    def _check_start(self, stderr: bytes) -> None:
        """Raise the cause that the output of a command shows for its failure to start, if it shows one."""
        fault = start_fault(self.name, self.section, stderr.decode(errors="replace"))
        if fault is not None:
            raise self._refused(fault.cause, fault.fix)

    def _check_found(self, code: int | None) -> None:
        if code in (NOT_FOUND, NOT_EXECUTABLE):
            cause = f"zmqrl does not start on this host (exit code {code}, {self.section.python})"
            raise self._refused(cause, self._install)

    def _refused(self, cause: str, fix: str) -> ConfigError:
        return refused_on(HostFailed(self.name, cause, fix))


def refused_on(failed: HostFailed) -> ConfigError:
    """The failure of the host that `--on` names."""
    return ConfigError(f"{failed.cause}\n   {failed.fix}", key=("--on",), value=failed.host)


@contextlib.contextmanager
def connected(config: Config, name: str) -> Iterator[LauncherHost]:
    """A connection to the host `name`; `config` defines how it is logged into.

    Raises:
        ConfigError: It is unreachable.
    """
    try:
        connection = connect(config, name)
    except HostFailed as error:
        raise refused_on(error) from error
    try:
        yield LauncherHost(name, login_of(config, name), connection, config.limits.start_s, name in config.hosts)
    finally:
        connection.close()


class _WithoutPrologue:
    """Stderr without what the prologue writes; what follows it is passed on as it comes."""

    def __init__(self, err: Callable[[bytes], object]) -> None:
        self._err, self._is_through = err, False
        self.held = b""
        """Not passed on: a prologue that has failed, or not ended."""

    def take(self, chunk: bytes) -> None:
        if self._is_through:
            self._err(chunk)
            return
        self.held += chunk
        if not PROLOGUE_BEGINS.encode().startswith(self.held[: len(PROLOGUE_BEGINS)]):
            self._pass(self.held)
            return
        _, ended, rest = self.held.partition(PROLOGUE_ENDED.encode())
        code, end, rest = rest.partition(b"\n")
        if ended and end and code == b"0":
            self._pass(rest)

    def _pass(self, data: bytes) -> None:
        self._is_through, self.held = True, b""
        if data:
            self._err(data)


def stored_copy(text: bytes, folder: Path, preset_file: str | None) -> Path:
    """`config.json` of a run on another host, in `folder`, as the stored configuration of a resume from this machine.

    The paths of modules are another machine's: they are left out. `preset_file` is the path of the preset here.
    """
    data = json.loads(text)
    data["config"].pop("code", None)
    if data["config"]["run"]["preset"] is None:
        data["config"]["run"]["preset"] = preset_file
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    return folder


def stored_code(text: bytes) -> str | None:
    """The folder on that host with the modules of `code.sync` of a run, from its `config.json`."""
    paths = json.loads(text)["config"]["code"]["sync"]
    return posixpath.dirname(paths[0]) if paths else None


def _marked(output: bytes, mark: str) -> str | None:
    found = (after_mark(line, mark) for line in output.decode(errors="replace").splitlines())
    return next((text for text in found if text is not None), None)


def _tail(done: Finished) -> str:
    text = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
    return text[-TAIL_CHARACTERS:] or "no output"
