"""What a command has done in check processes, since it imports the user's code: plain data in, plain data out."""

from __future__ import annotations

import base64
import importlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zmqrl.algorithms.start import make
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, EnvSection
from zmqrl.data_stores import tensors
from zmqrl.envs.check import check_env
from zmqrl.envs.lookup import registered
from zmqrl.messages.check import Stage
from zmqrl.planning.checks import check_settings
from zmqrl.planning.plan_run import plan_run
from zmqrl.types import EnvSpec


def settings(config: Mapping[str, Any], is_here: bool) -> None:
    """See `zmqrl.planning.checks.check_settings`."""
    check_settings(from_json(Config, config), is_here)


def env(section: Mapping[str, Any], seed: int | None) -> Generator[Stage, None, Any]:
    """`EnvSpec` of the env, which is stepped unless `seed` is None."""
    return to_json((yield from check_env(from_json(EnvSection, section), seed)))


def plan(
    config: Mapping[str, Any],
    run_dir: str,
    started_at: float,
    resume: bool,
    is_here: bool,
    env: Any,
    notes: Sequence[str],
) -> Any:
    """`RunPlan`, from the `EnvSpec` of the env."""
    spec = from_json(EnvSpec, env)
    return to_json(plan_run(from_json(Config, config), Path(run_dir), started_at, resume, is_here, spec, notes))


def resolved(request: Mapping[str, Any], base: Any, env: Any) -> Any:
    """`Loaded`: see `zmqrl.planning.configure.resolved`."""
    from zmqrl.config.load import Request  # most runs are of kinds of the package
    from zmqrl.planning import configure
    from zmqrl.planning.without_preset import WithoutPreset

    paths = {key: Path(request[key]) for key in ("hosts_file", "stored_file") if request[key] is not None}
    own = None if base is None else from_json(WithoutPreset, base)
    spec = None if env is None else from_json(EnvSpec, env)
    return to_json(configure.resolved(Request(**{**request, **paths}), own, spec, configure.config_of))


def registering_package(env_id: str, package: str) -> str | None:
    """What has to be imported so that gymnasium knows an id: nothing (empty), `package`, or something else (None)."""
    for module in ("", package):
        with suppress(Exception):  # the module may raise anything
            if module:
                importlib.import_module(module)
            if registered(env_id) is not None:
                return module
    return None


def completed(sections: Sequence[Mapping[str, Any]]) -> Any:
    """Sections `algorithm`; see `zmqrl.algorithms.start.make.completed`."""
    return [to_json(make.completed(section)) for section in sections]


def initial(plan: Any, source: str) -> str:
    """Base64 of the weights that a run starts with."""
    from zmqrl.planning.initial_weights import initial_weights_of

    own = from_json(RunPlan, plan)
    found = initial_weights_of(source, make.make_algorithm(own.config, own.env))
    return base64.b64encode(tensors.dump(found.weights, {"init_from": source})).decode()


def is_prioritised(config: Mapping[str, Any], env: Any) -> bool:
    """Whether the replay of an off-policy algorithm is."""
    algorithm = make.make_algorithm(from_json(Config, config), from_json(EnvSpec, env))
    return not algorithm.on_policy and algorithm.replay().prioritised is not None
