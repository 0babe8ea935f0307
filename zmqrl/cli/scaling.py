"""More or fewer workers while a run continues: `scale`, `drain`."""

from __future__ import annotations

import socket

import click

from zmqrl.errors import ConfigError

ANSWER_S = 10.0


@click.command("scale")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] HOST=N...")
def scale_command(words: tuple[str, ...]) -> None:
    """Have HOST run N workers from now on; a host that was lost or drained is connected to again.

    HOST must have had workers at the start of the run, or be the learner's host.
    """
    is_run = "=" not in words[0] or "/" in words[0]  # the runs of a sweep are in folders like `lr=0.1`
    run = words[0] if is_run else None
    workers = {}
    for word in words[is_run:]:
        host, _, count = word.partition("=")
        if not host or not count.isdecimal():
            raise ConfigError(f"{word!r}: write HOST=N with a number of workers")
        workers[host] = int(count)
    if not workers:
        raise ConfigError("write HOST=N: the host and its number of workers")
    _ask(run, workers)


@click.command("drain")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] HOST")
def drain_command(words: tuple[str, ...]) -> None:
    """Remove HOST's workers from the run after their current segments; no rows are lost.

    A host that joined by a connection file is removed at once: the rows that it has not delivered are dropped.
    """
    if len(words) > 2:
        raise ConfigError(f"{' '.join(words)!r}: write [RUN] HOST")
    _ask(words[0] if len(words) == 2 else None, {words[-1]: 0})


def _ask(run: str | None, workers: dict[str, int]) -> None:
    from zmqrl.cli.find_run import find_run
    from zmqrl.launch.requests import ask
    from zmqrl.messages.files import ScaleRequest

    directory, info = find_run(run)
    if info.host == socket.gethostname() and not info.live:
        raise ConfigError(f"run {info.run_id} in {directory} is not running")
    click.echo(ask(directory, ScaleRequest(workers), ANSWER_S))
