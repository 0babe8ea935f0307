"""`view`: the runs below a folder, as a page in the browser."""

from __future__ import annotations

from pathlib import Path

import click

from zmqrl.errors import ConfigError

RUNS = Path("runs")


@click.command("view")
@click.argument("folder", type=click.Path(path_type=Path, readable=False), metavar="[DIR]", default=RUNS)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, metavar="N", help="Port. Default: any that is free.")
def view_command(folder: Path, port: int) -> None:
    """Show the runs in and below DIR as a page in the browser.

    DIR is a folder. Default: runs/. The page has the list of runs, curves of those that are selected, and hosts,
    problems, logs and configuration of a run. It is served on this machine alone (127.0.0.1), until Ctrl-C, to
    who has the printed URL, and needs no internet.
    """
    from zmqrl.viewer.server import ViewServer

    if not folder.is_dir():
        raise ConfigError("is not a folder", key=(), value=str(folder), is_subject=True, fix="zmqrl view DIR")
    try:
        server = ViewServer(folder, port)
    except OSError as error:
        raise ConfigError(f"cannot be used: {error.strerror}", key=("--port",), value=str(port)) from error
    with server:
        click.echo(f"{server.url}\nCtrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("ended")
