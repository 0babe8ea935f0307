"""What a command has done in check processes, since it imports the user's code: plain data in, plain data out."""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from zmqrl.algorithms import make
from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.config.load import Request, resolve
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.data_stores import tensors
from zmqrl.envs.check import check_env
from zmqrl.launch.configure import config_of
from zmqrl.launch.initial_weights import initial_weights_of
from zmqrl.launch.plan_run import check_settings, plan_run
from zmqrl.messages.check import Stage
from zmqrl.types import EnvSpec

PROBED_ENVS = 5040
"""A multiple of any number of agents up to 10; `plan_run` checks `env.num_envs`."""


def env(config: Mapping[str, Any], is_here: bool, is_whole: bool, seed: int | None) -> Generator[Stage, None, Any]:
    """`EnvSpec` of the env, which is stepped unless `seed` is None. `is_whole`: other keys are checked before."""
    own = from_json(Config, config)
    if is_whole:
        check_settings(own, is_here)
    return (yield from check_env(to_json(replace(own.env, num_envs=PROBED_ENVS)), seed))


def plan(config: Mapping[str, Any], run_dir: str, started_at: float, resume: bool, is_here: bool, env: Any) -> Any:
    """`RunPlan`, from the `EnvSpec` of the env."""
    spec = from_json(EnvSpec, env)
    return to_json(plan_run(from_json(Config, config), Path(run_dir), started_at, resume, is_here, spec))


def resolved(request: Mapping[str, Any]) -> Any:
    """`Loaded`: the configuration that a `Request` describes."""
    paths = {key: Path(request[key]) for key in ("hosts_file", "stored_file") if request[key] is not None}
    return to_json(resolve(Request(**{**request, **paths}), config_of))


def kind_of(name: str) -> None:
    """ConfigError: the algorithm `name` cannot be loaded."""
    make.kind_of(name)


def defaults(name: str, env: Any, own: Mapping[str, Any]) -> Any:
    """`Algorithm.defaults` of an algorithm, for an `EnvSpec`.

    Those are left out that lose their meaning with another value that the user wrote, which `own` has.
    """
    kind = make.kind_of(name)
    sections = {section: dict(keys) for section, keys in kind.defaults(from_json(EnvSpec, env)).items()}
    keys = sections.setdefault("algorithm", {})
    changed = {key for key, value in own.items() if value != keys.get(key)}
    dropped = {key for joint in kind.joint_defaults if joint & changed for key in joint}
    return to_json({**sections, "algorithm": {key: value for key, value in keys.items() if key not in dropped}})


def completed(section: Mapping[str, Any]) -> Any:
    """See `zmqrl.algorithms.make.completed`."""
    return to_json(make.completed(section))


def initial(plan: Any, source: str) -> str:
    """Base64 of the weights that a run starts with."""
    own = from_json(RunPlan, plan)
    found = initial_weights_of(source, make.make_algorithm(own.config, own.env))
    return base64.b64encode(tensors.dump(found.weights, {"init_from": source})).decode()


def is_prioritised(config: Mapping[str, Any], env: Any) -> bool:
    """Whether the replay of an off-policy algorithm is."""
    algorithm = make.make_algorithm(from_json(Config, config), from_json(EnvSpec, env))
    return not algorithm.on_policy and algorithm.replay().prioritised is not None
