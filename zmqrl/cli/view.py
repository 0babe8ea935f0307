"""`view`: the runs below a folder, as a page in the browser."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from zmqrl.cli.queue import IN
from zmqrl.cli.run.on import LoginCommand, login_file
from zmqrl.errors import ConfigError, HostFailed

if TYPE_CHECKING:
    from zmqrl.launcher_place.launcher_host import LauncherHost
    from zmqrl.ssh.forward import PortForward

RUNS = Path("runs")
URL, PRINTED_URL = "http://127.0.0.1:{}/?token={}", re.compile(rb"http://127\.0\.0\.1:(\d{1,5})/\?token=([\w-]+)\n")


class _ViewCommand(LoginCommand):
    on_help = "Show the runs on HOST, through SSH. DIR is a folder there, relative to its workdir."


@click.command("view", cls=_ViewCommand)
@click.argument("runs", type=click.Path(path_type=Path, readable=False), metavar="[DIR]", default=RUNS)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, metavar="N", help="Port. Default: any that is free.")
@IN
def view_command(runs: Path, port: int, folder: Path, on: str | None, hosts_file: Path | None) -> int:
    """Show the runs in and below DIR as a page in the browser.

    DIR is a folder. Default: runs/. The page has the list of runs, the jobs of the queue, sweeps, curves of the runs
    that are selected, and hosts, problems, logs and configuration of a run. It is served on this machine alone
    (127.0.0.1), until Ctrl-C, to those who have the printed URL, and needs no internet.
    """
    if on is not None:
        source = click.get_current_context().get_parameter_source("folder")
        return _view_on(on, hosts_file, runs, folder if source is ParameterSource.COMMANDLINE else None, port)
    if hosts_file is not None:
        raise click.UsageError("--hosts requires --on HOST")
    from zmqrl.viewer.server import ViewServer

    if not runs.is_dir():
        raise ConfigError.about(runs, "is not a folder", "zmqrl view DIR")
    try:
        server = ViewServer(runs, port, folder)
    except OSError as error:
        raise _unusable(port, error) from error
    with server:
        with contextlib.suppress(KeyboardInterrupt):  # it may come as soon as the URL was printed
            _show(server.url)
            server.serve_forever()
        click.echo("ended")
    return 0


def _view_on(host: str, hosts_file: Path | None, folder: Path, queue: Path | None, port: int) -> int:
    """The command on `host` serves the page there, and ends with this one, whose stdin it has.

    `queue`: that of `--queue`; without it the default and the variable of `host` count.
    """
    from zmqrl.config.load import resolve_logins
    from zmqrl.config.on_host import on_local
    from zmqrl.launcher_place.launcher_host import connected
    from zmqrl.logs.printable import printable_writer

    if host == "local":
        raise on_local()
    with connected(resolve_logins(login_file(hosts_file, host)), host) as there:
        for line in there.accepted:
            click.echo(line, err=True)
        there.check_version()
        page = _RemotePage(there, port)
        try:
            given = [] if queue is None else ["--queue", str(queue)]
            words = ["--until-eof", "view", *given, "--", str(folder)]
            code = there.relay(words, page.take, printable_writer(sys.stderr.buffer))
        except KeyboardInterrupt:
            click.echo("ended")
            return 0
        finally:
            page.close()
    if code is None or code <= 0:
        raise HostFailed(host, "zmqrl view has ended there", f"try there: zmqrl view {folder}")
    return code


class _RemotePage:
    """The page of a command on another host, on a port of this machine once that host has printed its URL."""

    def __init__(self, there: LauncherHost, port: int) -> None:
        self._there, self._port = there, port
        self._printed = b""
        self._forward: PortForward | None = None

    def take(self, chunk: bytes) -> bool:
        """Stdout of the command there; more is wanted."""
        if self._forward is not None:
            return True
        self._printed += chunk
        found = PRINTED_URL.search(self._printed)
        if found is not None:
            from zmqrl.ssh.forward import PortForward

            try:
                self._forward = PortForward(
                    self._there.name, self._there.connection.open_port, int(found[1]), self._port
                )
            except OSError as error:
                raise _unusable(self._port, error) from error
            _show(URL.format(self._forward.port, found[2].decode()))
        return True

    def close(self) -> None:
        """The port is free again."""
        if self._forward is not None:
            self._forward.close()


def _show(url: str) -> None:
    click.echo(f"{url}\nCtrl-C ends it")


def _unusable(port: int, error: OSError) -> ConfigError:
    return ConfigError(f"cannot be used: {error.strerror}", key=("--port",), value=str(port))
