"""Commands and options of other libraries, and what to write in their place. Imported when one of them was written."""

from __future__ import annotations

import difflib

import click

from zmqrl.config.aliases import KEYS, alias
from zmqrl.config.known_keys import KnownKeys

COMMANDS = {
    **dict.fromkeys(("enjoy", "evaluate", "play", "test"), "zmqrl eval RUN"),
    **dict.fromkeys(("continue", "restore", "resume"), "zmqrl train --resume DIR"),
    **dict.fromkeys(("fit", "learn", "run", "start"), "zmqrl train PRESET"),
    **dict.fromkeys(("cancel", "kill"), "zmqrl stop RUN"),
    **dict.fromkeys(("algos", "envs", "list", "ls"), "zmqrl presets"),
    **dict.fromkeys(("ps", "top"), "zmqrl status"),
    "install": "zmqrl setup hosts.yaml",
    "tensorboard": "tensorboard --logdir RUN/tensorboard",
}
OPTIONS = {
    **dict.fromkeys(("env_id", "env_name", "environment", "gym_id"), "--env ID"),
    **dict.fromkeys(("agent", "algorithm", "run"), "--algo KIND"),
    **dict.fromkeys(("n_jobs", "num_cpus", "num_env_runners", "num_rollout_workers", "num_workers"), "--workers N"),
    **dict.fromkeys(("n_seeds", "num_samples"), "--seeds N"),
    **dict.fromkeys(("checkpoint_path", "load", "restore", "trained_agent"), "--resume DIR or --init-from RUN"),
    **dict.fromkeys(("config", "conf_file", "hparams", "hyperparams"), "zmqrl train FILE.yaml, or --set KEY=VALUE"),
}
OF_A_RUN = ("train", "launch")
"""Commands that take `--set`."""


def unknown_command(name: str, known: list[str]) -> str | None:
    """What to write in place of the command `name`; None: no idea."""
    if name in COMMANDS:
        return f"unknown command {name!r}; did you mean `{COMMANDS[name]}`?"
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown command {name!r}; did you mean {near[0]!r}?" if near else None


def unknown_option(error: click.NoSuchOption) -> str:
    """The message for an option that does not exist, with the option or key that was meant."""
    command = error.ctx.command.name if error.ctx is not None else None
    meant = _meant(error.option_name) if command in OF_A_RUN else None
    return f"unknown option {error.option_name}; {meant}" if meant else error.format_message()


def _meant(option: str) -> str | None:
    name = alias(option)
    if name in OPTIONS:
        return f"in zmqrl it is {OPTIONS[name]}"
    keys = _known_keys()
    if name not in KEYS:
        return keys.of_another_library(name) or _as_set([k for k in keys.keys if k.rpartition(".")[2] == name])
    candidates, note = KEYS[name]
    return f"{_as_set(candidates)}{f' ({note})' if note else ''}"


def _as_set(keys: list[str] | tuple[str, ...]) -> str | None:
    return f"in zmqrl it is {' or '.join(f'--set {key}=VALUE' for key in keys)}" if keys else None


def _known_keys() -> KnownKeys:
    """Of all kinds of the package."""
    from zmqrl.config.keys import all_keys
    from zmqrl.launch.configure import kinds

    return KnownKeys(tuple(dict.fromkeys(key.name for part in all_keys(kinds()) for key in part.keys)))
