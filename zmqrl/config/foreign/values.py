"""What settings of other libraries are in zmqrl, where more than the name differs: defaults and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from zmqrl.config.foreign.aliases import KEYS, NO_KEYS, alias
from zmqrl.config.foreign.kinds import Keys
from zmqrl.config.foreign.settings import CLEANRL, JORLDY, ML_AGENTS, RLLIB, ZOO
from zmqrl.config.known_keys import LOCAL, KnownKeys

SECTIONS = ("run", "env", "network", "replay", "algorithm")
MOST = 1e18
ON_POLICY = ("a2c", "impala", "ppo", "pqn", "reinforce", "vmpo")
CONTINUOUS = ("ddpg", "mpo", "sac", "td3", "tqc")
_PPO = "anneal_lr=true update_epochs=4 clip_coef=0.2 clip_vloss=true vf_coef=0.5"
_JORLDY = "buffer_size=50000 batch_size=64 start_train_step=2000 target_update_period=500"
DEFAULTS = {
    (ZOO, "ppo"): "n_envs=1 n_steps=2048",
    (ZOO, "ppolstm"): "n_envs=1 n_steps=128",
    (ZOO, "a2c"): "n_envs=1 n_steps=5",
    (ZOO, "dqn"): "learning_rate=1e-4 buffer_size=1e6 learning_starts=100 batch_size=32 train_freq=4 "
    "target_update_interval=10000 exploration_fraction=0.1 activation_fn=relu",
    (ZOO, "sac"): "learning_starts=100 buffer_size=1e6 hidden_size=256 activation_fn=relu",
    **dict.fromkeys(((ZOO, "ddpg"), (ZOO, "td3")), "learning_starts=100 buffer_size=1e6 activation_fn=relu"),
    (ZOO, "tqc"): "learning_starts=100 buffer_size=1e6 hidden_size=256 activation_fn=relu",
    (RLLIB, "dqn"): "double_q=true dueling=true",
    (CLEANRL, "ppo"): "env_id=CartPole-v1 total_timesteps=500000 learning_rate=2.5e-4 num_envs=4 num_steps=128 "
    f"num_minibatches=4 ent_coef=0.01 {_PPO}",
    (CLEANRL, "ppocontinuousaction"): "total_timesteps=1e6 learning_rate=3e-4 num_envs=1 num_steps=2048 "
    f"num_minibatches=32 norm_obs=true norm_reward=true {_PPO.replace('=4', '=10')}",
    (CLEANRL, "dqn"): "env_id=CartPole-v1 total_timesteps=500000 learning_rate=2.5e-4 buffer_size=10000 batch_size=128 "
    "train_frequency=10 learning_starts=10000 target_network_frequency=500 exploration_fraction=0.5",
    (CLEANRL, "saccontinuousaction"): "total_timesteps=1e6 buffer_size=1e6 learning_starts=5000 policy_lr=3e-4",
    **dict.fromkeys(
        ((CLEANRL, "ddpgcontinuousaction"), (CLEANRL, "td3continuousaction")),
        "total_timesteps=1e6 buffer_size=1e6 learning_starts=25000 learning_rate=3e-4",
    ),
    **{
        (JORLDY, name): f"learn_period=1 {_JORLDY}"
        for name in ("dqn", "double", "dueling", "noisy", "multistep", "c51", "qrdqn", "iqn", "mdqn", "miqn")
    },
    (JORLDY, "per"): f"learn_period=16 {_JORLDY}",
    **{(JORLDY, name): f"learn_period=4 n_step=4 {_JORLDY}" for name in ("rainbow", "rainbowiqn", "apex", "r2d2")},
}
"""What a library sets where the user does not, and zmqrl has another default."""
OTHER_GROUPS = {ML_AGENTS: {"behavioral_cloning", "curiosity", "gail", "memory", "rnd", "self_play"}}
"""Groups of settings in which general names mean something else."""
RENAMED = {
    (ML_AGENTS, "beta"): "ent_coef",
    (ML_AGENTS, "epsilon"): "clip_range",
    (ML_AGENTS, "init_entcoef"): "ent_coef",
    (ML_AGENTS, "normalize"): "norm_obs",
    (RLLIB, "vf_clip_param"): "",  # a bound of the loss
    (JORLDY, "name"): "optimizer",  # in the section optim; agent and env are read elsewhere
    **dict.fromkeys(((JORLDY, "head"), (JORLDY, "network")), "policy_class"),
}
RENAMED_ON_POLICY = {(ML_AGENTS, "buffer_size"): "train_batch_size", (JORLDY, "n_step"): "n_steps"}
_PRIORITISED = {"alpha": "algorithm.prioritised.alpha", "beta": "algorithm.prioritised.beta"}
_MUNCHAUSEN = {"alpha": "algorithm.munchausen.alpha", "tau": "algorithm.munchausen.temperature"}
OF_AGENTS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("per", "apex", "r2d2", "rainbow", "rainbowiqn"), _PRIORITISED),
    **dict.fromkeys(("mdqn", "miqn"), _MUNCHAUSEN),
}
"""Settings of JORLDY that mean something else in its other agents, by the letters of the agent."""
LINEAR = re.compile(r"lin_([\d.e-]+)")
TOTALS = ("timesteps_total", "num_env_steps_sampled_lifetime", "improve_steps")
UPDATES_EVERY = ("train_freq", "train_frequency", "learn_period")
PER_ENV = ("n_steps", "num_steps", "num_consecutive_playing_steps", "rollout_fragment_length")

Conversion: TypeAlias = Callable[["Values", Any], Keys]
CONVERSIONS: dict[str, Conversion] = {
    "clip_vloss": lambda v, x: {"algorithm.value_clip": float(v.get("clip_coef", default=0.2))} if x else {},
    "l_0": lambda _, x: {"algorithm.munchausen.clip": -x},
    "noise_std": lambda _, x: {"algorithm.exploration_noise": x},
    "normalize": lambda _, x: {"algorithm.normalise_obs": True, "algorithm.normalise_reward": True} if x else {},
    "num_minibatches": lambda v, x: {"algorithm.minibatch_size": v.envs * int(v.get(*PER_ENV, default=128)) // int(x)},
    "observation_filter": lambda _, x: {"algorithm.normalise_obs": True} if x == "MeanStdFilter" else {},
    "prioritized_replay": lambda _, x: {"algorithm.prioritised": {}} if x else {},
    "seq_len": lambda v, x: {"algorithm.length": x - v.get("n_burn_in", default=0), "algorithm.stride": max(1, x // 2)},
    "steps_per_update": lambda _, x: {"replay.ratio": 1 / x},
    "tau": lambda v, x: {} if x == 1 and v.has("target_update_every") else {"algorithm.target_tau": x},
    "vf_coef": lambda v, x: {"algorithm.vf_coef": x / 2 if v.library == CLEANRL else x},  # of half the squared error
    **dict.fromkeys((*UPDATES_EVERY, "gradient_steps"), lambda v, _: {"replay.ratio": v.ratio}),
    **dict.fromkeys(("anneal_lr", "learning_rate_schedule", "lr_decay", "noise_type", "num_layers"), lambda *_: {}),
}
"""Conversions to keys, by the setting whose value has another meaning in zmqrl."""


class LeftOut(Exception):
    """Why a setting has no key in the preset."""


@dataclass
class Values:
    """The settings of one training."""

    library: str
    kind: str
    """Kind of the algorithm."""
    known: KnownKeys
    given: Mapping[str, Any]
    """Values by the names that `aliases` has."""
    has_env: bool = True

    def get(self, *names: str, default: Any = None) -> Any:
        """The value of the first setting of these names that there is."""
        return next((self.given[name] for name in names if name in self.given), default)

    def has(self, key: str) -> bool:
        """Whether the algorithm has this key."""
        return f"algorithm.{key}" in self.known.keys

    @property
    def envs(self) -> int:
        found = self.get("n_envs", "num_envs", "num_envs_per_worker", "num_envs_per_env_runner")
        workers = self.get("num_workers", "num_env_runners", "num_rollout_workers")
        if self.library not in (RLLIB, JORLDY) or workers is None:
            has_rows = self.kind in ON_POLICY and self.get(*PER_ENV) is not None
            return _count(found, 1 if has_rows else 4)
        return _count(found, 1) * _count(workers, 1)

    @property
    def ratio(self) -> float:
        """Updates per env step."""
        every, steps = self.get(*UPDATES_EVERY), self.get("gradient_steps", default=1)
        if every is None or steps == -1:
            return 0.25 if steps != -1 and self.kind not in CONTINUOUS else 1.0
        return float(steps) / (float(every) * int(self.get("n_envs", "num_envs", default=1)))

    def keys_of(self, name: str, value: Any) -> Keys:
        """The keys of a setting. LeftOut: it has none."""
        if isinstance(value, Mapping) and "grid_search" in value:
            raise LeftOut("a preset has one value")
        if isinstance(value, (int, float)) and not abs(value) < MOST:
            raise LeftOut("the number is too large")
        if (convert := CONVERSIONS.get(name)) is not None:
            return convert(self, value)
        if name in self.known.keys:
            return {name: value}
        candidates, note = KEYS.get(name, ((), ""))
        if any(candidate.startswith(LOCAL) for candidate in candidates):
            raise LeftOut("zmqrl train FILE --workers N")
        key = next((key for key in candidates if key in self.known.keys), None) or self._only_key(name)
        if key is None or note or name in NO_KEYS:
            raise LeftOut(self.known.of_another_library(name) or "zmqrl has no such key")
        if (key == "env.segment_steps") != (self.kind in ON_POLICY) and key.startswith(("env.segment", "replay.")):
            raise LeftOut(f"of no use to algorithm {self.kind}")
        return {key: value}

    def _only_key(self, name: str) -> str | None:
        found = [f"{section}.{name}" for section in SECTIONS if f"{section}.{name}" in self.known.keys]
        return found[0] if len(found) == 1 and name not in ("id", "kind", "name", "preset") else None


def _of(names: str) -> Callable[[Conversion], Conversion]:
    def registered(convert: Conversion) -> Conversion:
        CONVERSIONS.update(dict.fromkeys(names.split(), convert))
        return convert

    return registered


@_of("learning_rate lr policy_lr actor_learning_rate")
def _rate(values: Values, value: Any) -> Keys:
    match = LINEAR.fullmatch(str(value))
    if match or values.get("anneal_lr", "lr_decay", "learning_rate_schedule") in (True, "linear"):
        return {"algorithm.learning_rate": {"start": float(match[1] if match else value), "end": 0.0}}
    return {"algorithm.learning_rate": float(value)}


@_of("lr_schedule")
def _rate_points(_: Values, value: Any) -> Keys:
    return {"algorithm.learning_rate": [[int(step), float(rate)] for step, rate in value]}


@_of("clip_range clip_coef clip_param epsilon_clip")
def _clip(values: Values, value: Any) -> Keys:
    if match := LINEAR.fullmatch(str(value)):
        return {"algorithm.clip": {"start": float(match[1]), "end": 0.0}}
    return {"algorithm.clip": float(value)}


@_of("n_envs num_envs num_envs_per_worker num_envs_per_env_runner")
def envs(values: Values, _: Any) -> Keys:
    """Keys for as many envs in the form that up to four workers can share."""
    vectors = next(count for count in (4, 2, 1) if values.envs % count == 0)
    return {"env.vector_envs": vectors, "env.num_envs": values.envs // vectors}


@_of("train_batch_size")
def _train_batch(values: Values, value: Any) -> Keys:
    if values.kind not in ON_POLICY:
        return {"algorithm.batch_size": value}
    return {"env.segment_steps": max(1, round(value / values.envs)), **envs(values, value)}


@_of("policy")
def _policy(values: Values, value: Any) -> Keys:
    kind = {"MlpPolicy": "mlp", "CnnPolicy": "cnn"}.get(str(value))
    if kind is None or (kind == "cnn" and not values.has_env):
        raise LeftOut(f"in zmqrl it is network.kind: mlp, cnn for images, or {KEYS['policy'][1]}")
    return {"network.kind": kind}


@_of("net_arch pi vf qf hidden_size hidden_units fcnet_hiddens scheme")
def _hidden(values: Values, value: Any) -> Keys:
    if not isinstance(value, list):
        value = [int(value)] * int(values.get("num_layers", default=2))
    elif value and isinstance(value[0], Mapping):
        value = value[0].get("pi", value)
    if not all(isinstance(width, int) for width in value):
        raise LeftOut("in zmqrl it is network.hidden, a list of widths")
    return {"network.hidden": value}


@_of("activation_fn activation_function fcnet_activation")
def _activation(values: Values, value: Any) -> Keys:
    name = str(value).rpartition(".")[2].lower()
    if name not in (known := ("tanh", "relu", "gelu", "silu")):
        raise LeftOut(f"network.activation is one of {', '.join(known)}, or a dotted path")
    return {"network.activation": name}


@_of("target_update_interval target_network_frequency target_network_update_freq target_update_period")
@_of("num_steps_between_copying_online_weights_to_target")
def _target(values: Values, value: Any) -> Keys:
    if not values.has("target_update_every"):
        raise LeftOut(f"algorithm {values.kind} has no algorithm.target_update_every")
    return {"algorithm.target_update_every": max(1, round(value * values.ratio))}  # env steps to updates


@_of("ent_coef entropy_coeff entropy_coef beta_entropy")
def _entropy(values: Values, value: Any) -> Keys:
    if values.has("temperature"):
        return {"algorithm.temperature": "auto" if str(value).startswith("auto") else float(value)}
    return {"algorithm.ent_coef": float(value)}


@_of("epsilon_schedule epsilon_timesteps")
def _epsilon(values: Values, value: Any) -> Keys:
    """`LinearSchedule(1.0, 0.01, 10000)` of Coach, or the last number alone."""
    *ends, steps = map(float, re.findall(r"-?[\d.]+(?:e-?\d+)?", str(value)))
    total = float(values.get(*TOTALS, default=steps))
    found = dict(zip(("algorithm.epsilon.start", "algorithm.epsilon.end"), ends, strict=False))
    return {**found, "algorithm.epsilon.fraction": min(1.0, steps / total)}


def _count(value: Any, default: int) -> int:
    return int(value) if isinstance(value, (int, float)) and 1 <= value < 1e6 else default


def name_of(library: str, dotted: str, kind: str, agent: str = "") -> str:
    """The name that the tables have for a setting, or its key; empty: it has another meaning there.

    `agent`: letters of the algorithm's name in the library.
    """
    *groups, last = dotted.split(".")
    renamed = {**RENAMED, **(RENAMED_ON_POLICY if kind in ON_POLICY else {})}
    if OTHER_GROUPS.get(library, set()) & set(groups):
        return ""
    if library == JORLDY and groups == ["agent"] and last in OF_AGENTS.get(agent, {}):
        return OF_AGENTS[agent][last]
    return renamed.get((library, last), alias(last.rpartition("/")[2]))
