"""`--on HOST` of commands for a run: the same command runs on the host that has the run, over SSH."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from zmqrl.errors import ConfigError, HostFailed
from zmqrl.logs.printable import printable_writer

HOSTS_FILE = Path("hosts.yaml")
"""Read for the login where it is in the current directory, and --hosts names no other."""
FLAGS = ("--on", "--hosts")
RUN_HELP = (
    "RUN is a run directory or a run id. Default: the newest live run below the working directory, else the newest run "
    "in runs/."
)


class LoginCommand(click.Command):
    """A command with `--on` and `--hosts`."""

    on_help = "Host that has the run (required)."

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += [
            click.Option(["--on"], metavar="HOST", help=self.on_help),
            click.Option(
                ["--hosts", "hosts_file"],
                type=click.Path(path_type=Path),
                help="With --on: file on this machine (such as hosts.yaml) that defines how to log in to HOST. "
                "Default: hosts.yaml in the working directory here if it lists HOST, else the file of your last launch "
                "with --on HOST. Without such a file, ~/.ssh/config defines HOST.",
            ),
        ]


class OnCommand(LoginCommand):
    """Command that runs on another host with `--on`; everything else is passed there."""

    on_help = "Run this command on HOST over SSH. All paths except that of --hosts are paths on HOST."

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[__name__] = without_flags(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        host, hosts_file = ctx.params.pop("on"), ctx.params.pop("hosts_file")
        if host is None:
            if hosts_file is not None:
                raise click.UsageError("--hosts requires --on HOST")
            return super().invoke(ctx)
        if host == "local":
            from zmqrl.config.on_host import on_local

            raise on_local()
        return run_on(host, hosts_file, [str(ctx.info_name), *ctx.meta[__name__]])


def without_flags(arguments: Sequence[str]) -> list[str]:
    """The arguments for the other host."""
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*kept, word, *rest]
        if word in FLAGS:
            rest[:1] = []
        elif not word.startswith(tuple(f"{flag}=" for flag in FLAGS)):
            kept.append(word)
    return kept


def login_file(named: Path | None, host: str) -> Path | None:
    """The hosts file that defines how `host` is logged into.

    If none is named: hosts.yaml here if it lists the host, else that of the last launch there, else hosts.yaml here.
    """
    from zmqrl.config.load import resolve_logins
    from zmqrl.wire.kept_files import read_kept

    here = HOSTS_FILE if HOSTS_FILE.is_file() else None
    if named is not None or (here is not None and host in resolve_logins(here).hosts):
        return named or here
    with contextlib.suppress(OSError, ConfigError):
        remembered = Path(os.fsdecode(read_kept(_remembered(host)) or b""))
        return remembered if remembered.is_file() else here
    return here


def remember(host: str, hosts_file: Path) -> None:
    """Keep which file a launch on `host` had, for later commands; a cache that cannot be written is ignored."""
    from zmqrl.wire.kept_files import keep

    with contextlib.suppress(OSError, ConfigError):
        keep(_remembered(host), os.fsencode(hosts_file.absolute()))


def _remembered(host: str) -> Path:
    from zmqrl.wire.kept_files import own_cache

    return own_cache("hosts_files") / quote(host, safe="")


def run_on(host: str, hosts_file: Path | None, words: Sequence[str], out: Callable[[bytes], bool] | None = None) -> int:
    """`zmqrl WORDS` on `host`, with its output and its exit code; it ends with this command.

    `out` receives its stdout in place of this command's, see `Connection.relay`.

    Raises:
        ConfigError: The host is unreachable; nothing was done.
        HostFailed: The connection was lost meanwhile.
    """
    from zmqrl.config.load import resolve_logins
    from zmqrl.launcher_place.launcher_host import connected

    with connected(resolve_logins(login_file(hosts_file, host)), host) as there:
        for line in there.accepted:
            click.echo(line, err=True)
        shown, errors = out or printable_writer(sys.stdout.buffer), printable_writer(sys.stderr.buffer)
        code = there.relay(["--until-eof", *words], shown, errors)
        if code is None:
            raise HostFailed(host, "the exit code of the command was not received", f"see: zmqrl status --on {host}")
        return 1 if code < 0 else code
