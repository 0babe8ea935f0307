"""`fetch`: copy the directory of a run from the host that has it; `send-run` is the other end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqrl.cli.run.on import LoginCommand, login_file
from zmqrl.errors import ConfigError, HostFailed, WireError
from zmqrl.logs.printable import printable

if TYPE_CHECKING:
    from zmqrl.launcher_place.launcher_host import FoundRun, LauncherHost
    from zmqrl.run_files.run_copy import CopyReceiver

PART = ".part"
MARKER = ".copy-of"
KEPT = "the received files are kept; repeat the command to continue"
OTHER_DIR = "choose another DIR"
MB = 1e6


@click.command("fetch", cls=LoginCommand)
@click.argument("run")
@click.argument("directory", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
def fetch_command(run: str, directory: Path | None, on: str | None, hosts_file: Path | None) -> None:
    """Copy the run directory of RUN from HOST (--on) to DIR.

    RUN is a run directory or a run id on HOST. DIR defaults to runs/NAME, where NAME is the last part of the path of
    the run directory on HOST. DIR appears when the copy is complete. If you repeat the command, it
    continues an interrupted copy, or updates an existing one.
    """
    from zmqrl.config.hosts import LOCAL
    from zmqrl.config.load import resolve_logins
    from zmqrl.config.on_host import on_local
    from zmqrl.launcher_place.launcher_host import connected
    from zmqrl.run_files.run_copy import CopyFailed

    if on == LOCAL:
        raise on_local()
    if on is None:
        raise click.UsageError("--on HOST is required, where HOST is the host that has the run")
    with connected(resolve_logins(login_file(hosts_file, on)), on) as there:
        found = there.find(run)
        target = directory or Path("runs") / Path(found.run_dir).name
        copy = _copy_of(target, _identity(there, found))
        try:
            received = _receive(there, found.run_dir, copy)
            if copy != target:
                _complete(copy, target)
        except OSError as error:
            raise CopyFailed(f"{copy}: {error.strerror}; {KEPT}") from error
        except CopyFailed as error:
            raise CopyFailed(f"{on}: {error}; {KEPT}") from error
        except HostFailed as error:
            raise HostFailed(error.host, error.cause, KEPT) from error
    click.echo(f"{found.run_id}: {received.files} files with {received.nbytes / MB:.1f} MB copied to {target}")
    if found.is_live:
        click.echo(f"{found.run_id} is running; the copy is of now")


def _identity(there: LauncherHost, found: FoundRun) -> str:
    """What all attempts of the run share."""
    from zmqrl.messages.files import decode
    from zmqrl.run_files.run_info import RunInfo

    text = there.read(f"{found.run_dir}/run.json")
    try:
        info = decode(RunInfo, text or b"")
    except WireError as error:
        raise ConfigError(f"{found.run_dir}/run.json on {there.name}: {error}") from error
    return info.lineage or info.run_id


def _copy_of(target: Path, identity: str) -> Path:
    """The directory that is written: `target` if it has the run, else the one that becomes `target`."""
    from zmqrl.data_stores import files
    from zmqrl.run_files.run_info import is_live, read_info

    part = target.with_name(target.name + PART)
    files.check_writable("DIR", part)
    known = read_info(target)
    if known is not None:
        if identity != (known.lineage or known.run_id):
            raise ConfigError.about(target, f"contains a different run ({known.run_id})", OTHER_DIR)
        if is_live(target, known):
            raise ConfigError.about(target, "is the directory of a live run", OTHER_DIR)
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError.about(target, "exists and is not a copy of a run", OTHER_DIR)
    files.make_directory(str(part.absolute()))
    marker = part / MARKER
    if marker.exists() and marker.read_text(encoding="utf-8") != identity:
        raise ConfigError.about(part, "is the partial copy of another run", f"remove it, or {OTHER_DIR}")
    marker.write_text(identity, encoding="utf-8")
    return part


def _receive(there: LauncherHost, run_dir: str, copy: Path) -> CopyReceiver:
    import msgspec

    from zmqrl.run_files.run_copy import CopyFailed, CopyReceiver, request_of

    request = msgspec.json.encode(request_of(copy)) + b"\n"
    receiver, errors = CopyReceiver(copy, lambda line: click.echo(printable(line), err=True)), bytearray()
    try:
        code = there.relay(["send-run", run_dir], receiver.take, errors.extend, data=request)
    finally:
        receiver.close()
    if not receiver.is_done:
        text = errors.decode(errors="replace").strip().removeprefix("zmqrl: ")
        raise CopyFailed(f"the copy ended early (exit code {code}){': ' if text else ''}{text}")
    return receiver


def _complete(copy: Path, target: Path) -> None:
    from zmqrl.data_stores import files

    (copy / MARKER).unlink()
    if target.exists():
        target.rmdir()
    files.rename(str(copy), str(target))
    files.sync_directory(str(target.absolute().parent))


@click.command("send-run", hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
def send_run_command(directory: Path) -> None:
    """Send what a copy of a run directory lacks; the request is a line on stdin, the answer is binary."""
    from zmqrl.messages.files import CopyRequest, decode
    from zmqrl.run_files.run_copy import send

    send(directory, decode(CopyRequest, sys.stdin.buffer.readline()), sys.stdout.buffer)
