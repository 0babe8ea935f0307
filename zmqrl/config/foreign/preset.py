"""A preset from the settings of another library, with a comment for each that is left out."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from zmqrl.config.foreign.kinds import KINDS, Keys, letters
from zmqrl.config.foreign.settings import JORLDY, Foreign, scalar
from zmqrl.config.foreign.values import DEFAULTS, ON_POLICY, SECTIONS, LeftOut, Values, envs, name_of
from zmqrl.config.kinds import KindConfig
from zmqrl.config.load import Request, resolve
from zmqrl.config.overrides import from_stored
from zmqrl.config.tree_checks import known_keys
from zmqrl.config.yaml_source import Source, shown
from zmqrl.errors import ConfigError, Key, key_of

PLACEHOLDER = "CartPole-v1"
"""Env of a preset whose origin names none."""
ATARI = re.compile(r"(\w+)NoFrameskip-v4")
ATARI_KEYS: Keys = {
    "env.kwargs": {"frameskip": 1, "repeat_action_probability": 0.0},
    "env.wrappers": [{"zmqrl.envs.atari:Atari": {"stack": 1}}],
    "env.frame_stack": 4,
}
CARTPOLE = "env.name: in CartPole, JORLDY trains with rewards of 0.1 per step and -1 at the end, zmqrl with 1 per step"
CARTPOLE_BOUNDS = "agent.v_max: bounds for rewards of 0.1; for those of 1, set algorithm.low=0 and algorithm.high=100"
FIXED = ("algorithm.kind", "env.id")
SOURCE = Source("import")
END_OF_SCALAR = "...\n"


@dataclass
class _Preset:
    """Keys, the setting that each is from, and what is left out."""

    keys: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def set_env(self, env: str | None) -> None:
        """The keys of an env, or of `PLACEHOLDER`."""
        self.keys["env.id"] = env or PLACEHOLDER
        if env is None:
            self.left_out.append(f"env.id: the env is not named; {PLACEHOLDER} is in its place (zmqrl import --env ID)")
        elif atari := ATARI.fullmatch(env):
            self.keys.update({**ATARI_KEYS, "env.id": f"ALE/{atari[1]}-v5"})

    def add(self, values: Values, name: str, value: Any, origin: str) -> None:
        """The keys of a setting, or why it has none."""
        try:
            found = values.keys_of(name, value) if name else {}
            if not name:
                raise LeftOut("zmqrl has no such key")
            for key in found:
                others = (each for each, value in self.keys.items() if value != {})
                other = next((each for each in others if _overlap(key_of(each), key_of(key))), key)
                if other != key or (key in self.origins and self.keys[key] != found[key]) or key in FIXED:
                    raise LeftOut(f"{other} is set by {self.origins.get(other, 'another one')}")
                self.origins[key] = ", ".join(filter(None, (self.origins.get(key), origin)))
            self.keys.update(found)
            if not found:
                raise LeftOut("needs no key of its own")
        except LeftOut as reason:
            self.left_out.append(f"{origin}: {reason}")
        except (TypeError, ValueError, ArithmeticError):
            self.left_out.append(f"{origin}: the value has no meaning in zmqrl")

    def keep_valid(self, config_of: KindConfig) -> None:
        """Leave out the keys whose values are refused."""
        while True:
            try:
                resolve(Request(sections=_nested(self.keys), sections_name=SOURCE.name), config_of)
                return
            except ConfigError as error:
                refused = [key for key in self.origins if _overlap(key_of(key), error.key)]
                if not refused:
                    raise
                for key in refused:
                    self.left_out.append(f"{self.origins.pop(key)}: {key} {error.what}")
                    del self.keys[key]

    def lines(self) -> Iterator[str]:
        nested = _nested(self.keys)
        for section in (name for name in SECTIONS if name in nested):
            yield f"{section}:"
            for name, value in nested[section].items():
                text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
                origins = [o for key, o in self.origins.items() if f"{key}.".startswith(f"{section}.{name}.")]
                comment = f"  # {_line(', '.join(dict.fromkeys(origins)))}" if origins else ""
                yield f"  {name}: {text.removesuffix(END_OF_SCALAR).strip()}{comment}"
        if self.left_out:
            yield "# Left out:"
        yield from (f"# - {_line(each)}" for each in self.left_out)


def preset(foreign: Foreign, config_of: KindConfig, env: str | None = None, algorithm: str | None = None) -> str:
    """A YAML file that trains what `foreign` describes, with `env` and `algorithm` in place of its own.

    `config_of`: from section and kind to a config class.

    Raises:
        ConfigError: zmqrl does not have the algorithm.
    """
    library, named = foreign.library, letters(foreign.algorithm or _guess(foreign))
    kind, more = (algorithm, {}) if algorithm else KINDS.get(named, ("", {}))
    if not kind:
        what = f"zmqrl does not have the algorithm {foreign.algorithm!r} of {library}"
        kinds = ", ".join(sorted({kind for kind, _ in KINDS.values()}))
        raise ConfigError(what, key=("--algo",), fix=f"choose another: --algo KIND ({kinds})")
    default = dict(pair.split("=") for pair in DEFAULTS.get((library, named), "").split())
    names = {dotted: name_of(library, dotted, kind, named) for dotted in foreign.settings}
    given = {names[dotted]: value for dotted, value in foreign.settings.items() if names[dotted]}
    defaults = {key: scalar(value) for key, value in default.items() if key not in given}
    default_env = defaults.pop("env_id", None)
    env = env or foreign.env or default_env
    known = known_keys(from_stored({"algorithm": {"kind": kind}}, SOURCE), config_of)
    values = Values(library, kind, known, {**defaults, **given}, env is not None)
    found = _Preset({"algorithm.kind": kind, **more})
    found.set_env(env)
    for dotted, value in foreign.settings.items():
        found.add(values, names[dotted], value, f"{dotted}: {shown(value)}")
    for name, value in defaults.items():
        found.add(values, name, value, f"{name}: {shown(value)}, default of {library}")
    found.keep_valid(config_of)
    _add_rest(found, values, config_of("algorithm", kind))
    found.keep_valid(config_of)
    entry = f", entry {foreign.entry}" if foreign.entry else ""
    others = "" if defaults else " What was not set has the defaults of zmqrl (`zmqrl config keys`)."
    head = _line(f"# From {library}{entry}. A comment after a key is the setting that it is from.{others}")
    return "\n".join([head, *found.lines(), ""])


def _overlap(key: Key, other: Key) -> bool:
    return all(map(operator.eq, key, other))


def _guess(foreign: Foreign) -> str:
    """The algorithm of settings that name none."""
    has = foreign.settings.keys()
    if {"exploration_fraction", "exploration_final_eps", "target_update_interval"} & has:
        return "dqn"
    return "sac" if {"gradient_steps", "train_freq"} & has else "ppo"


def _add_rest(found: _Preset, values: Values, defaults: type[Any]) -> None:
    """Keys that follow from others."""
    keys, is_on_policy = found.keys, values.kind in ON_POLICY

    def value(name: str) -> Any:
        return keys.get(f"algorithm.{name}", getattr(defaults, name, 1))

    if values.has("burn_in"):
        burn_in, length, stride = map(value, ("burn_in", "length", "stride"))
        keys["env.segment_steps"] = burn_in + length + 4 * stride
    elif not is_on_policy:
        keys["env.segment_steps"] = 4 * value("n_step")
    if "env.segment_steps" in keys and "env.num_envs" not in keys:
        keys.update(envs(values, None))
    rows = math.prod(keys.get(f"env.{name}", 64) for name in ("segment_steps", "vector_envs", "num_envs"))
    if is_on_policy and values.has("minibatch_size") and keys.get("algorithm.minibatch_size", 64) > rows:
        keys["algorithm.minibatch_size"] = rows
    if values.library == JORLDY and keys["env.id"] == "CartPole-v1":
        found.left_out += [CARTPOLE, CARTPOLE_BOUNDS] if values.has("high") else [CARTPOLE]
    if values.has("warmup_env_steps") and "replay.learning_starts" in keys:
        keys["algorithm.warmup_env_steps"] = keys["replay.learning_starts"]


def _nested(keys: Keys) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        section = nested
        for name in path:
            section = section.setdefault(name, {})
        section[last] = dict(value) if isinstance(value, Mapping) else value
    return nested


def _line(text: str) -> str:
    return " ".join(text.split())
