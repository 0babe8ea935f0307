"""`completion SHELL`, and what completes the values of options and arguments."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ZMQRL_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script of the shell.

    bash: add `eval "$(zmqrl completion bash)"` to ~/.bashrc. zsh: add `eval "$(zmqrl completion zsh)"` to ~/.zshrc.
    fish: run `zmqrl completion fish > ~/.config/fish/completions/zmqrl.fish`.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "zmqrl", VARIABLE).source())


def presets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets by name, else files."""
    from zmqrl.config.presets import presets as names

    del context, parameter
    found = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def algorithms(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Algorithms of the package."""
    from zmqrl.algorithms.base import Algorithm
    from zmqrl.algorithms.start.make import PACKAGE
    from zmqrl.plugins import modules

    del context, parameter
    return [CompletionItem(name) for name in modules(PACKAGE, Algorithm) if name.startswith(incomplete)]


def keys(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys of `--set KEY=VALUE`."""
    from zmqrl.cli.config import names

    del context, parameter
    return [CompletionItem(f"{name}=") for name in names() if name.startswith(incomplete)]
