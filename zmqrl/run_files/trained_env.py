"""The env that a run was trained in, as `config.json` stores it, and how the env of today differs from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from zmqrl.config.codec import object_of, to_json
from zmqrl.config.paths import content_of
from zmqrl.config.yaml_source import shown
from zmqrl.errors import ConfigError
from zmqrl.types import EnvSpec

KEY = "env_spec"
"""Key of `config.json`; a run of zmqrl 0.2 or earlier has none until it is resumed."""
BOUNDS = ("low", "high")
FIELDS = ("kind", "shape", "env_shape", "dtype", "env_dtype", "n", "nvec", "start", "starts")
"""Fields of a space; bounds are compared where all of these are equal."""
OF_EPISODES = ("max_episode_steps", "state")
"""Running episodes are restored by them. A run stops, and versions are compared, by returns of episodes of a length."""
Difference = tuple[str, Any, Any]
"""The name of what differs, its value then and now."""


def stored_env(env: EnvSpec) -> dict[str, Any]:
    """Env as `config.json` has it: an infinity is a text, since other readers of JSON refuse the number."""
    data: dict[str, Any] = json.loads(json.dumps(to_json(env)), parse_constant=str)
    return data


def read_trained_env(run_dir: Path) -> EnvSpec | None:
    """The env of the run; None: it is not stored. ConfigError: it is damaged."""
    path = run_dir / "config.json"
    try:
        data = object_of(content_of(path)).get(KEY) if path.exists() else None
        return None if data is None else msgspec.convert(data, EnvSpec, strict=False)
    except (OSError, ValueError) as error:
        fix = "restore the file from a copy of the run"
        raise ConfigError(str(error), key=(KEY,), fix=fix, source=str(path)) from error


def check_trained_env(run_dir: Path, env: EnvSpec, fields: Sequence[str] = ()) -> None:
    """Raise `ConfigError` where `env`, as it is now, is not the one in which the run in `run_dir` was trained."""
    texts = changes(run_dir, env, fields)
    if texts:
        raise ConfigError("; ".join(texts), key=("env", "id"), fix="restore the env, or start a new run")


def changes(run_dir: Path, env: EnvSpec, fields: Sequence[str] = ()) -> list[str]:
    """The differences of `env`, as it is now, for messages; none where the run has another id, or stored no env."""
    before = read_trained_env(run_dir)
    found = () if before is None or before.id != env.id else differences(before, env, fields)
    return [f"{name}: the run was trained with {shown(old)}, the env now has {shown(new)}" for name, old, new in found]


def differences(before: EnvSpec, now: EnvSpec, fields: Sequence[str] = ()) -> Iterator[Difference]:
    """Differences of spaces and agents, on which a policy depends, and of further `fields`."""
    for name in ("observation", "action"):
        then, today = ({part.name: part.space for part in getattr(env, name).leaves()} for env in (before, now))
        for part in {**then, **today}:
            label, one, other = f"{name} {part!r}" if part else name, then.get(part), today.get(part)
            if one is None or other is None:
                kinds = ["absent" if space is None else space.kind for space in (one, other)]
                yield label, kinds[0], kinds[1]
            else:
                for field, old, new in list(_changed(one, other, FIELDS)) or _changed(one, other, BOUNDS):
                    yield f"{label} {field}", old, new
    yield from _changed(before, now, ("agents", *fields))


def _changed(before: Any, now: Any, fields: Sequence[str]) -> Iterator[Difference]:
    """Differences of `fields`; of an array with a value for each entry, the first entry that differs."""
    for field in fields:
        then, today = to_json(getattr(before, field)), to_json(getattr(now, field))
        if then != today and field in (*BOUNDS, "nvec", "starts") and len(then) == len(today) > 1:
            at = next(at for at, (one, other) in enumerate(zip(then, today, strict=True)) if one != other)
            yield f"{field}[{at}]", then[at], today[at]
        elif then != today:
            yield field, then, today
