"""`zmqrl import`: a preset from a configuration of another library."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from zmqrl.errors import ConfigError


@click.command("import")
@click.argument("file")
@click.argument("entry", required=False)
@click.option("--env", metavar="ID", help="Env of the preset. Default: the env that FILE names.")
@click.option("--algo", metavar="KIND", help="Algorithm of the preset. Default: the algorithm that FILE names.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Write the preset to this file instead of stdout."
)
def import_command(file: str, entry: str | None, env: str | None, algo: str | None, output: Path | None) -> None:
    """Write a preset from a configuration of another library.

    FILE is a file of hyperparameters of rl-baselines3-zoo, a YAML file of RLlib or ML-Agents, a config of JORLDY, a
    preset of Coach, or a command line of CleanRL: in quotes, or a file that contains it. `-` is stdin. ENTRY selects
    one training of a file that has several. The preset has a comment for each setting that was left out. No code of
    FILE is executed.
    """
    from zmqrl.config.foreign.preset import preset
    from zmqrl.config.foreign.settings import command_line, read
    from zmqrl.config.yaml_source import read_text
    from zmqrl.planning.configure import config_of

    is_text = " " in file and not os.path.exists(file) and command_line(file) is not None
    text = file if is_text else sys.stdin.read() if file == "-" else read_text(Path(file))
    found = preset(read(text, "command line" if is_text else file, entry), config_of, env, algo)
    if output is None:
        click.echo(found, nl=False)
        return
    try:
        output.write_text(found, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", key=("--output",), value=str(output)) from error
    click.echo(f"zmqrl train {output}")
