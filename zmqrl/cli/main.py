"""`zmqrl`: the command. Thin: every command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from zmqrl.errors import ZmqrlError
from zmqrl.inherited import set_right, working_directory
from zmqrl.loading import add_own_paths, prepare
from zmqrl.logs.printable import printable

COMMANDS = {
    "launch": "start.launch",
    "train": "start.train",
    "presets": "presets",
    "import": "import_preset",
    "setup": "hosts.setup",
    "runs": "run.run_table",
    "view": "view",
    "status": "run.status",
    "logs": "run.logs",
    "worker": "hosts.worker",
    "scale": "run.runs",
    "drain": "run.runs",
    "apply": "run.apply",
    "stop": "run.runs",
    "down": "run.down",
    "clean": "run.runs",
    "fetch": "run.fetch",
    "install-unit": "start.install_unit",
    "eval": "play",
    "watch": "play",
    "record": "play",
    "plot": "results",
    "export": "results",
    "queue": "queue",
    "sweep": "sweep",
    "upload": "upload",
    "trust": "results",
    "bench": "results",
    "drill": "start.drill",
    "version": "results",
    "config": "config",
    "completion": "completion",
    "doctor": "hosts.doctor",
}
"""Which module of `zmqrl.cli` has a command."""
INTERNAL = {"send-run": "run.fetch"}
"""What a command on one machine runs on another."""


_PACKAGE = str(Path(__file__).parents[1])


class _EndOfOutput(Exception):
    """The reader of the output has read enough, as `head` in `zmqrl logs | head`: a success."""


class _LazyGroup(click.Group):
    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError as error:  # click would end with exit code 1
            raise _EndOfOutput from error

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name) or INTERNAL.get(name)
        if module is None:
            return None
        function = f"{name.replace('-', '_')}_command"
        found: click.Command = getattr(importlib.import_module(f"zmqrl.cli.{module}"), function)
        return found

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in (*COMMANDS, *INTERNAL) and not args[0].startswith("-"):
            from zmqrl.cli.habits import unknown_command

            if (message := unknown_command(args[0], list(COMMANDS))) is not None:
                raise click.UsageError(message)
        name, command, rest = super().resolve_command(context, args)
        if command is not None:
            _check_values(command, rest)
        return name, command, rest


def _check_values(command: click.Command, args: list[str]) -> None:
    """UsageError for an option whose value would be the next option of the command."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    names = {"--help", *(name for option in options for name in option.opts)}
    with_value = {name for option in options if _needs_value(option) for name in option.opts}
    before_dashes = args[: args.index("--")] if "--" in args else args
    for name, following in pairwise(before_dashes):
        if name in with_value and following in names:
            raise click.UsageError(f"{name} requires a value; see zmqrl {command.name} --help")


def _needs_value(option: click.Option) -> bool:
    return not (option.is_flag or option.count or option._flag_needs_value)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="zmqrl", prog_name="zmqrl")
@click.option("--until-eof", is_flag=True, hidden=True)
@click.pass_context
def cli(context: click.Context, until_eof: bool) -> None:
    """Distributed reinforcement learning on the machines you own."""
    context.obj = _started_at()
    if until_eof:
        threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    add_own_paths(working_directory())  # the user's own envs and algorithms


def main() -> None:
    """Run the command line; every `ZmqrlError` is one message and its exit code."""
    set_right()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character that the terminal does not have
    prepare()
    signal.signal(signal.SIGTERM, _interrupt)  # like Ctrl-C, also before a run has handlers of its own
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        code = cli.main(standalone_mode=False, complete_var="_ZMQRL_COMPLETE")
    except ZmqrlError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        if not isinstance(error.filename, str) or error.filename.startswith((sys.prefix, _PACKAGE)):
            raise
        _fail(f"{_unusable(error.filename)} cannot be used: {error.strerror}", 2)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        from zmqrl.cli.habits import message_of

        _fail(message_of(error), 2)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except _EndOfOutput:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at exit
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _unusable(path: str) -> Path:
    """The highest part of `path` that the file system refuses; `path` itself where it refuses only to open it."""
    for part in (*reversed(Path(path).parents), Path(path)):
        try:
            part.lstat()
        except OSError:
            return part
    return Path(path)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _end_with_stdin() -> None:
    """End a command that another machine has started by `--on` when the connection ends."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _fail(message: str, code: int) -> None:
    click.echo(f"zmqrl: {printable(message)}", err=True)
    sys.exit(code)


def _started_at() -> float:
    """When this command began: `wall_s` counts from there, the start of the interpreter included.

    The start time of the process may be earlier: a shell executes its last command in its own place.
    """
    return time.time() - time.process_time()
