"""The arguments of `train`, `start` and `resume`, and errors that name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from zmqrl.algorithms.base import Algorithm
from zmqrl.config.codec import names_of
from zmqrl.config.foreign.aliases import KEYS, NO_KEYS, alias
from zmqrl.config.paths import expanded
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError
from zmqrl.planning.own_code import MAIN, path_of, plain, with_paths
from zmqrl.planning.start_request import StartRequest
from zmqrl.planning.without_preset import WithoutPreset
from zmqrl.types import ModeName

REQUIRED = 'a preset (`zmqrl presets` lists them) or env="ID" is required'
FORMS = (
    "to continue a run: zmqrl.resume(RUN_DIR). For example "
    'zmqrl.train("cartpole-ppo") or zmqrl.train(env="CartPole-v1", algo="ppo")'
)
OF_THE_CALL = ("override", "env", "--mode", "--workers", "--seed", "--init-from")
"""Sources of what arguments have set."""


@contextmanager
def errors_of_python() -> Iterator[None]:
    """A `ConfigError` that is raised inside names arguments of Python."""
    try:
        yield
    except ConfigError as error:
        raise for_python(error) from None  # its sentence has the cause


def check_names(function: Callable[..., Any], overrides: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an override that is a misspelt argument of `function`."""
    sections = set(names_of(Config))
    parameters = signature(function).parameters.values()
    known = [each.name for each in parameters if each.kind is not Parameter.VAR_KEYWORD]
    for name in overrides:
        if "." in name or "__" in name or name in sections or alias(name) in (*KEYS, *NO_KEYS):
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.8)
        if near:
            what, fix = f"unknown argument of zmqrl.{function.__name__}", f"did you mean {near[0]!r}?"
            raise ConfigError(what, key=(name,), fix=fix)


def dotted(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides by dotted keys, with the paths of classes; `env="ID"` and `env=my_envs.Walk` are its `id`."""
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    env = named.get("env")
    if callable(env):
        env = path_of(env)
    if isinstance(env, str):
        named["env"] = {"id": env}
    return with_paths(named)


def algorithm_name(algo: Any) -> str | None:
    """What `algorithm.kind` calls `algo`: of a class, its path. ConfigError: it is neither a class nor a text."""
    named = with_paths({"algo": algo})["algo"]
    if named is None or isinstance(named, str):
        return named
    raise ConfigError("must be the name of an algorithm, or its class", key=("algo",), value=repr(algo))


def without_preset(preset: str | None, algo: str | None, env: Any, given: Mapping[str, Any]) -> WithoutPreset | None:
    """What takes the place of a preset; None where there is one.

    `env`: a mapping changes a preset, an id or a class replaces it. `given`: further arguments, from `dotted`.

    Raises:
        ConfigError: A preset and an env are both missing or both given, or `algo` is unknown or given with a preset.
    """
    preset = preset or _value(given, "run", "preset")
    if preset is not None:
        named = _value(given, "env", "id") if isinstance(env, str) or callable(env) else None
        if named is not None and named.startswith(f"{MAIN}:"):
            return None  # refused later, with the file to move the class to
        for argument, value, key in (("env", named, "env__id"), ("algo", algo, "algorithm__kind")):
            if value is not None:
                what = f"cannot be combined with the preset {preset!r}"
                fix = f"to change {key.replace('__', '.')} of the preset: {key}={value!r}"
                raise ConfigError(what, key=(argument,), value=repr(value), is_subject=True, fix=fix)
        return None
    env_id = _value(given, "env", "id")
    if env_id is None:
        other = "" if algo is None else f"algo={algo!r} requires an env: "
        raise ConfigError(f"{other}{REQUIRED}", fix=FORMS)
    kind = algo or _value(given, "algorithm", "kind")
    return WithoutPreset.of(env_id, kind, "algo" if algo else "algorithm.kind", "env")


@errors_of_python()
def request_of(
    preset: str | None,
    algo: str | type[Algorithm] | None,
    run_dir: str | Path | None,
    resume: str | Path | None,
    for_env_steps: int | None,
    mode: ModeName | None,
    workers: int | None,
    seed: int | None,
    init_from: str | Path | None,
    trust: bool,
    overrides: Mapping[str, Any],
) -> StartRequest:
    """What `train`, `start` and `resume` were called with."""
    given = dotted(overrides)
    if resume is not None:
        kept = {"algo": algo, "run_dir": run_dir, "mode": mode, "seed": seed, "init_from": init_from}
        resume, base = _resumable(resume, for_env_steps, kept, given), None
    elif for_env_steps is not None:
        raise ConfigError("for_env_steps continues a run: give resume=DIR; a new run has run__total_env_steps")
    else:
        base = without_preset(preset, algorithm_name(algo), overrides.get("env"), given)
    return StartRequest(
        preset=preset,
        without_preset=base,
        overrides=given,
        mode=mode,
        workers=plain(workers),
        seed=plain(seed),
        init_from=None if init_from is None else str(expanded(init_from, "init_from").absolute()),
        run_dir=None if run_dir is None else expanded(run_dir, "run_dir"),
        resume=resume,
        for_env_steps=plain(for_env_steps),
        trusted=trust,
    )


def for_python(error: ConfigError) -> ConfigError:
    """`error` as the caller of `zmqrl.train` writes arguments: a flag is an argument, and a call has no places."""
    key = error.key
    if key and key[0].startswith("--"):
        key = (key[0].removeprefix("--").replace("-", "_"),)
    source = "" if error.source in OF_THE_CALL else error.source
    places = tuple(place for place in error.places if place[1] not in OF_THE_CALL)
    return error.replaced(key=key, source=source, places=places, fix=error.python_fix or error.fix)


def _resumable(run_dir: str | Path, more: int | None, kept: Mapping[str, Any], given: Mapping[str, Any]) -> Path:
    """The run directory to resume. ConfigError: it is missing, or an argument sets what its run keeps."""
    run = given.get("run")
    sets_total = "run.total_env_steps" in given or (isinstance(run, Mapping) and "total_env_steps" in run)
    if more is not None and sets_total:
        what, fix = "sets run.total_env_steps", "remove run__total_env_steps"
        raise ConfigError(what, key=("for_env_steps",), value=str(more), is_subject=True, fix=fix)
    for name, value in kept.items():
        if value is not None:
            raise ConfigError("a resumed run keeps its own", key=(name,), fix="remove the argument")
    directory = expanded(run_dir, "resume")
    if not directory.is_dir():
        raise ConfigError("run directory not found", key=("resume",), value=str(directory))
    return directory


def _value(given: Mapping[str, Any], section: str, key: str) -> str | None:
    """A text of the arguments: `section.key`, or `key` of the mapping `section`."""
    found = given.get(f"{section}.{key}")
    if found is None and isinstance(within := given.get(section), Mapping):
        found = within.get(key)
    return found if isinstance(found, str) else None
