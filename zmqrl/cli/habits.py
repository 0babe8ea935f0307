"""Commands and options of other libraries, and what to write in their place. Imported when one of them was written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import click

from zmqrl.config.foreign.aliases import DOTTED_PATH, ENV_ID, KEYS, alias
from zmqrl.config.known_keys import KnownKeys

COMMANDS = {
    **dict.fromkeys(("enjoy", "evaluate", "play", "test"), "zmqrl eval RUN"),
    **dict.fromkeys(("load", "predict"), "zmqrl eval RUN`, or in Python `zmqrl.load_policy(RUN)"),
    **dict.fromkeys(("continue", "restart", "restore", "resume"), "zmqrl train --resume DIR"),
    **dict.fromkeys(("fit", "learn", "run", "start"), "zmqrl train PRESET"),
    **dict.fromkeys(("cancel", "kill"), "zmqrl stop RUN"),
    **dict.fromkeys(("algos", "envs", "list", "ls"), "zmqrl presets"),
    **dict.fromkeys(("ps", "top"), "zmqrl runs"),
    **dict.fromkeys(("optimize", "optuna", "tune"), "zmqrl sweep FILE"),
    "attach": "zmqrl status -f RUN",
    "compare": "zmqrl plot RUN RUN",
    "help": "zmqrl --help",
    "save": "zmqrl export RUN DIR",
    "install": "zmqrl setup hosts.yaml",
    "tensorboard": "tensorboard --logdir RUN/tensorboard",
}
OPTIONS = {
    **dict.fromkeys(("env.name", "env_id", "env_name", "environment", "gym_id"), "--env ID"),
    **dict.fromkeys(("agent", "agent.name", "algorithm", "run"), "--algo KIND"),
    **dict.fromkeys(("n_jobs", "num_cpus", "num_env_runners", "num_rollout_workers", "num_workers"), "--workers N"),
    **dict.fromkeys(("host", "hosts"), "zmqrl launch hosts.yaml"),
    **dict.fromkeys(("out", "out_dir", "output"), "--run-dir DIR"),
    **dict.fromkeys(("n_seeds", "num_samples"), "--seeds N"),
    **dict.fromkeys(("checkpoint_path", "load", "restore", "trained_agent"), "--resume DIR or --init-from RUN"),
    **dict.fromkeys(("conf_file", "hparams", "hyperparams", "params"), "zmqrl train FILE.yaml, or --set KEY=VALUE"),
    "config": "zmqrl train FILE.yaml, or --set KEY=VALUE; zmqrl import FILE writes one from that of another library",
    **dict.fromkeys(("cp", "custom_parameter"), "--set KEY=VALUE"),
    **{mode: f"--mode {mode}" for mode in ("single", "sync", "pipelined", "async")},
    "eval": "zmqrl eval RUN",
    **dict.fromkeys(("dc", "distributed_coach"), "zmqrl launch hosts.yaml"),
    **dict.fromkeys(("e", "f"), "--run-dir DIR"),
    **dict.fromkeys(("crd", "checkpoint_restore_dir"), "--resume DIR"),
    **dict.fromkeys(("i",), "--init-from RUN"),
    **dict.fromkeys(("l", "list"), "zmqrl presets"),
    **dict.fromkeys(("r", "render"), "zmqrl watch RUN, after or during the training"),
    **dict.fromkeys(("p", "preset"), "zmqrl train PRESET"),
    "n": "--workers N (Coach: workers), or --set run.total_env_steps=N (rl-baselines3-zoo: env steps)",
}
NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
UNEXPECTED = re.compile(r"Got unexpected extra arguments? \((.*)\)")
OF_A_RUN = ("train", "launch")
"""Commands that take `--set`."""


def unknown_command(name: str, known: list[str]) -> str | None:
    """What to write in place of the command `name`; None: no idea."""
    if name in COMMANDS:
        return f"unknown command {name!r}; did you mean `{COMMANDS[name]}`?"
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown command {name!r}; did you mean {near[0]!r}?" if near else None


class UnknownOptions(click.UsageError):
    """The message has a line for each of them."""


def check_options(arguments: Sequence[str], context: click.Context) -> None:
    """UnknownOptions: the command lacks some of those in `arguments`."""
    options = {name: p for p in context.command.params for name in (*p.opts, *p.secondary_opts)}
    found, rest = [], iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if argument == "--":
            break
        if name in options or name in context.help_option_names:
            option = options.get(name)
            if isinstance(option, click.Option) and not (equals or option.is_flag or option.count):
                next(rest, None)
        elif re.match(r"--?[A-Za-z]", name):
            found.append(unknown_option(name, context))
    if found:
        raise UnknownOptions("\n".join(dict.fromkeys(found)), context)


def unknown_option(option: str, context: click.Context) -> str:
    """The message for an option that does not exist, with the option or key that was meant."""
    command, name = context.command, alias(option)
    arguments = [parameter.name for parameter in command.params if isinstance(parameter, click.Argument)]
    meant = f"write zmqrl {command.name} {name.upper()}" if name is not None and name in arguments else None
    if command.name == "import":
        meant = "write the command line of CleanRL in quotes"
    if meant is None and command.name in OF_A_RUN:
        meant = _meant(option)
    return f"unknown option {option}; {meant or _near(option, context)}"


def message_of(error: click.ClickException) -> str:
    """The message of any error of the command line, in one line."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        return unknown_option(error.option_name, error.ctx)
    if isinstance(error, UnknownOptions):
        return error.message
    text = " ".join(error.format_message().split())  # the choices of an option are lines of their own
    if isinstance(error, click.BadParameter) and isinstance(kind := error.param and error.param.type, NUMBERS):
        return text.replace(f"is not a valid {kind.name}.", f"is not {_number(kind)}")
    if isinstance(error, click.UsageError) and error.ctx is not None and (found := UNEXPECTED.fullmatch(text)):
        return f"unexpected argument {found[1]!r}; {_help_of(error.ctx)}"
    return text


def blank_in_set(arguments: Sequence[str]) -> str | None:
    """The message for `--set KEY VALUE`; None: there is none."""
    for option, key, *rest in (arguments[at : at + 4] for at in range(len(arguments) - 1)):
        if option != "--set" or "=" in key or not rest or rest[0].startswith("-"):
            continue
        written = rest[:2] if rest[0] == "=" else rest[:1]
        return f"--set {key} {' '.join(written)}: write --set {key}={''.join(written).removeprefix('=')}"
    return None


def unexpected_arguments(command: str, given: Sequence[str]) -> str:
    """The message for arguments that `command` does not take. `given`: all of them, the first of which it takes."""
    from zmqrl.config.presets import presets

    known = presets()
    kinds = {name.rpartition("-")[2] for name in known}
    algorithm = next((word.lower() for word in given if word.lower() in kinds), None)
    other = next((word for word in given if word.lower() not in kinds), "")
    meant = f"see zmqrl {command} --help"
    if "=" in given[1]:
        meant = f"write --set {given[1]}"
    elif command == "train" and algorithm is not None and len(given) == 2:
        if f"{other.lower()}-{algorithm}" in known:
            meant = f"write zmqrl train {other.lower()}-{algorithm}"
        elif ENV_ID.fullmatch(other) or DOTTED_PATH.fullmatch(other):
            meant = f"write zmqrl train --env {other} --algo {algorithm}"
    return f"unexpected argument {given[1]!r}; {meant}"


def _number(kind: click.types.IntParamType | click.types.FloatParamType) -> str:
    """What a value of this type is, with its bounds."""
    what = "an integer" if "integer" in kind.name else "a number"
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    if least is None:
        return what
    return f"{what}, {least:g} or more" if most is None else f"{what} from {least:g} to {most:g}"


def _near(option: str, context: click.Context) -> str:
    """The option of the command that is spelled alike, and where all are."""
    names = {
        name.lstrip("-"): name
        for parameter in context.command.params
        for name in parameter.opts
        if name.startswith("--")
    }
    near = difflib.get_close_matches(option.lstrip("-"), names, n=1, cutoff=0.7)
    hint = f"did you mean {names[near[0]]}? " if near else ""
    return f"{hint}{_help_of(context)}"


def _help_of(context: click.Context) -> str:
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return f"see {' '.join(['zmqrl', *names])} --help"


def _meant(option: str) -> str | None:
    name = alias(option)
    if name in OPTIONS:
        return f"in zmqrl it is {OPTIONS[name]}"
    keys = _known_keys()
    if name in keys.keys:
        return _as_set([name])
    name = name.rpartition(".")[2]
    if name in OPTIONS:
        return f"in zmqrl it is {OPTIONS[name]}"
    if name not in KEYS:
        return keys.of_another_library(name) or _as_set([k for k in keys.keys if k.rpartition(".")[2] == name])
    candidates, note = KEYS[name]
    return f"{_as_set(candidates)}{f' ({note})' if note else ''}"


def _as_set(keys: list[str] | tuple[str, ...]) -> str | None:
    return f"in zmqrl it is {' or '.join(f'--set {key}=VALUE' for key in keys)}" if keys else None


def _known_keys() -> KnownKeys:
    from zmqrl.config.keys import all_keys
    from zmqrl.planning.configure import kinds

    return KnownKeys(tuple(dict.fromkeys(key.name for part in all_keys(kinds()) for key in part.keys)))
