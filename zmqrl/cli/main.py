"""`zmqrl`: the command. Thin: every command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from zmqrl.errors import ZmqrlError
from zmqrl.loading import prepare

COMMANDS = {
    "launch": "train",
    "train": "train",
    "presets": "train",
    "setup": "setup",
    "status": "status",
    "logs": "logs",
    "worker": "worker",
    "scale": "runs",
    "drain": "runs",
    "stop": "runs",
    "down": "down",
    "clean": "runs",
    "eval": "results",
    "plot": "results",
    "bench": "results",
    "drill": "drill",
    "version": "results",
    "doctor": "doctor",
}
"""Which module of `zmqrl.cli` has a command."""


class _EndOfOutput(Exception):
    """The reader of the output has read enough, as `head` in `zmqrl logs | head`: a success."""


class _LazyGroup(click.Group):
    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError as error:  # click would end with exit code 1
            raise _EndOfOutput from error

    def list_commands(self, context: click.Context) -> list[str]:
        del context
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        del context
        if name not in COMMANDS:
            return None
        found: click.Command = getattr(importlib.import_module(f"zmqrl.cli.{COMMANDS[name]}"), f"{name}_command")
        return found

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if args[0] not in COMMANDS and near:
            raise click.UsageError(f"unknown command {args[0]!r}; did you mean {near[0]!r}?")
        return super().resolve_command(context, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="zmqrl", prog_name="zmqrl")
@click.pass_context
def cli(context: click.Context) -> None:
    """Distributed reinforcement learning on the machines you own."""
    context.obj = _started_at()
    sys.path.insert(0, str(Path.cwd()))  # the user's own envs and algorithms, as `python -m` would find them


def main() -> None:
    """Run the command line; every `ZmqrlError` is one message and its exit code."""
    prepare()
    signal.signal(signal.SIGTERM, _interrupt)  # like Ctrl-C, also before a run has handlers of its own
    try:
        code = cli.main(standalone_mode=False)
    except ZmqrlError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except _EndOfOutput:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at exit
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> None:
    click.echo(f"zmqrl: {message}", err=True)
    sys.exit(code)


def _started_at() -> float:
    """When this process began: `wall_s` counts from the start of the command, the interpreter's own included."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
        ticks_per_s = 100.0  # USER_HZ: fixed at 100 for /proc on Linux
        return time.time() - max(0.0, uptime_s - float(fields[19]) / ticks_per_s)
    except (OSError, ValueError, IndexError):
        return time.time()
