"""Algorithm of a resolved configuration, as launcher and learner both make it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from zmqrl.algorithms.base import Algorithm
from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.config.foreign.kinds import instead_of
from zmqrl.config.former_keys import current_options
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError
from zmqrl.plugins import load, modules
from zmqrl.types import EnvSpec

PACKAGE = "zmqrl.algorithms"


def make_algorithm(config: Config, env: EnvSpec) -> Algorithm:
    """The algorithm of `config.algorithm["kind"]`; `ConfigError` when its settings do not go together."""
    kind, own = _kind_and_config(config.algorithm)
    misfit, section = kind.misfit(env), config.env
    if misfit is not None:
        others = fitting(env)
        fix = f"algorithms for this env: {', '.join(others)}" if others else ""
        raise ConfigError(misfit, key=("algorithm", "kind"), fix=fix)
    algorithm: Algorithm = kind(own, config.network, env, section.segment_steps, section.num_envs)
    return algorithm


def check_towers(config: Config, env: EnvSpec) -> None:
    """Check that each entry of `network.hidden_by_tower` names a tower whose depth follows `network.hidden`.

    Raises:
        ConfigError: The algorithm makes no hidden layers under this name.
    """
    section = config.network
    if not section.hidden_by_tower:
        return
    sections = (replace(section, hidden=(1,) * depth, hidden_by_tower={}) for depth in (1, 2))
    networks = (make_algorithm(replace(config, network=other), env).network() for other in sections)
    one, other = (Counter(n.name.partition(".")[0] for _, layers in net.towers for n in layers) for net in networks)
    fitting = [name for name in one if name and one[name] != other[name]]
    for name in section.hidden_by_tower:
        if name not in fitting:
            what, key = f"tower {name!r} has no hidden layers of section network", ("network", "hidden_by_tower")
            fix = f"towers with such layers: {', '.join(fitting)}" if fitting else "remove the key"
            raise ConfigError(what, key=key, value=repr(name), fix=fix, others=(("algorithm", "kind"),))


def kind_of(name: str) -> type[Algorithm]:
    """The algorithm that `algorithm.kind` names. ConfigError: it is unknown."""
    instead = instead_of(name)
    if instead is not None and name.lower() not in modules(PACKAGE, Algorithm):
        raise ConfigError(f"unknown algorithm {name!r}", fix=instead)
    found: type[Algorithm] = load(name, PACKAGE, Algorithm)
    return found


def fitting(env: EnvSpec) -> list[str]:
    """The algorithms of the package that can train with the spaces of `env`."""
    return [name for name in modules(PACKAGE, Algorithm) if kind_of(name).misfit(env) is None]


def completed(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section `algorithm` with the defaults of the keys that it lacks, as that of a run of an earlier version.

    Raises:
        ConfigError: Its kind cannot be loaded, or its keys are not those of the kind.
    """
    own = _kind_and_config(section)[1]
    return {"kind": section["kind"], **to_json(own)}


def _kind_and_config(section: Mapping[str, Any]) -> tuple[type[Algorithm], Any]:
    name = section.get("kind")
    if not isinstance(name, str):
        value = "missing" if name is None else repr(name)
        raise ConfigError("must be a name such as ppo, or module:Name", key=("algorithm", "kind"), value=value)
    try:
        kind = kind_of(name)
    except ConfigError as error:
        raise error.of(("algorithm", "kind")) from error.__cause__
    options = current_options(kind.Config, {key: value for key, value in section.items() if key != "kind"})
    try:
        own = _from_checked(kind.Config, options) if ":" in name else from_json(kind.Config, options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the fields of {name} are not those of its Config: {error}", key=("algorithm",)) from error
    return kind, own


def _from_checked(cls: type[Any], options: Mapping[str, Any]) -> Any:
    """A user's own `Config` may have types that msgspec does not build, such as a union of dataclasses.

    It is built as the launcher checked it (`config/validate.py`), so it means the same in both processes.
    """
    from pydantic import TypeAdapter  # 0.1 s that a learner of a built-in algorithm does not wait

    checked = TypeAdapter(cls).validate_json(json.dumps(to_json(options)), strict=True)
    if cls.__dataclass_params__.init:
        return checked
    return cls(**{name: getattr(checked, name) for name in cls.__dataclass_fields__})  # its own `__init__` sets more
