"""From the `env` section to gymnasium envs, and the launcher's check of an env before anything is started."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium import error as gym_error
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec as EnvRegistration
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import close_env, state_spec
from zmqrl.envs.creators import check_called
from zmqrl.envs.explain import explain, explain_wrapper
from zmqrl.envs.frame_stack import stack_frames
from zmqrl.envs.parallel import StepLimit, is_parallel
from zmqrl.envs.spaces import action_spec, check_mask, observation_spec
from zmqrl.errors import ConfigError
from zmqrl.logs.standard_output import native_output_hidden
from zmqrl.plugins import form, lacks
from zmqrl.types import EnvSpec

Env = gym.Env[Any, Any]
NAMESPACES = {"ALE": "ale_py"}
"""Modules that register a namespace's ids when they are imported."""


def make_single(section: EnvSection) -> Env:
    """One env with its wrappers, without gymnasium's checkers (the vector env checks what comes out).

    `a.b:Name` is attribute Name of module a.b if it exists, else an id that module a.b registers. Raises whatever
    the user's code or gymnasium raises.
    """
    creator = _attribute(section.id)
    kwargs = dict(section.kwargs)
    if creator is not None:
        check_called("env.id", section.id, creator, "reset", "step")
        env: Env = creator(**kwargs)
    else:
        _register_namespace(section.id)
        env = gym.make(section.id, disable_env_checker=True, **kwargs)
    for entry in section.wrappers:
        env = _wrapped(env, entry)
    if section.frame_stack > 1:
        if is_parallel(env):
            raise ConfigError(
                f"env.frame_stack: {section.frame_stack}: frames of several agents are not stacked; "
                "set 1 and use a wrapper that stacks them"
            )
        env = stack_frames(*stripped(env), section.frame_stack)
    if section.max_episode_steps is None:
        return env
    limit: Callable[[Any, int], Any] = StepLimit if is_parallel(env) else TimeLimit
    return limit(env, section.max_episode_steps)  # type: ignore[no-any-return]


def make_for_scores(section: EnvSection) -> Env:
    """As `make_single`, with the rewards and episodes of the env itself.

    Every wrapper with a method `score_full_episodes` is called: one that clips rewards, or ends episodes early.
    """
    env = layer = make_single(section)
    while isinstance(layer, gym.Wrapper):
        score = getattr(layer, "score_full_episodes", None)
        if score is not None:
            score()
        layer = layer.env
    return env


def make_native(section: EnvSection, num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any] | None:
    """The native vector form of gymnasium with NEXT_STEP autoreset, or None when there is none for this section."""
    if (
        section.wrappers
        or section.frame_stack > 1
        or section.max_episode_steps is not None
        or _attribute(section.id) is not None
    ):
        return None
    _register_namespace(section.id)
    env_id = section.id.rpartition(":")[2]  # the module is imported by now
    spec = registered(env_id)
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers:
        return None
    try:
        env = gym.make_vec(spec.id, num_envs, vectorization_mode="vector_entry_point", **dict(section.kwargs))
    except TypeError:
        return None  # the single env takes these kwargs, its vector form does not
    if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        close_env(env)
        return None
    return env


def registered(env_id: str) -> EnvRegistration | None:
    """The entry of gymnasium's register; of an id without a version the highest one, as `gymnasium.make` has it."""
    found = gym.registry.get(env_id)
    if found is None:
        try:
            namespace, name, version = registration.parse_env_id(env_id)
        except gym_error.Error:  # not of the form of an id
            return None
        highest = registration.find_highest_version(namespace, name) if version is None else None
        found = None if highest is None else gym.registry.get(registration.get_env_id(namespace, name, highest))
    return found


def probe(section: EnvSection) -> EnvSpec:
    """Properties of the env. Creates one env and closes it; its output does not reach stdout or stderr.

    Raises:
        ConfigError: It cannot be made, or its spaces are not supported; names key, value and the nearest id.
    """
    with quiet():
        env, spec = examined(section)
        close_env(env)
        return spec


def examined(section: EnvSection) -> tuple[Env, EnvSpec]:
    """An env, and its properties. ConfigError as `probe`."""
    try:
        env = make_single(section)
    except Exception as error:  # the user's constructor may raise anything
        raise explain(section, error) from error
    if not is_parallel(env) and not isinstance(env, gym.Env):
        raise ConfigError(
            f"env.id: {section.id!r} makes {type(env).__name__}, which is neither a gymnasium.Env nor a PettingZoo "
            "env with the parallel API"
        )
    try:
        return env, _spec(section, env)
    except Exception as error:  # get_state of the user's env may raise anything
        close_env(env)
        raise explain(section, error) from error


_QUIET = threading.RLock()
"""stdout and the filter of warnings are the process's: of two threads, the second would restore what the first set."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings, gymnasium's log (which is warnings) and the env's prints away from the user's terminal."""
    python = contextlib.redirect_stdout(io.StringIO())
    with _QUIET, warnings.catch_warnings(), native_output_hidden(), python:
        warnings.simplefilter("ignore")
        yield


def _spec(section: EnvSection, env: Env) -> EnvSpec:
    if is_parallel(env):
        return _spec_of_agents(section, env)
    observation = observation_spec(section.id, _space(section, env, "observation_space"))
    action = action_spec(section.id, _space(section, env, "action_space"))
    check_mask(section.id, observation, action)
    threshold = env.spec.reward_threshold if env.spec is not None else None
    state = state_spec(section.id, stripped(env)[0])
    native = observation.kind == "box" and _has_native(section, env)
    return EnvSpec(section.id, observation, action, threshold, native, _limit(env), state)


def _space(section: EnvSection, env: Env, name: str) -> Any:
    try:
        return getattr(env, name)
    except AttributeError as error:
        if error.name != name:  # of a property of the user's
            raise
        kind = type(env.unwrapped).__name__
        raise ConfigError(f"env.id: {section.id!r}: {kind} has no {name}; set self.{name} in __init__") from error


def _spec_of_agents(section: EnvSection, env: Any) -> EnvSpec:
    """Of a parallel env: its agents have equal spaces, and all are there after a reset."""
    agents = tuple(env.possible_agents)
    if not agents:
        raise ConfigError(f"env.id: {section.id!r} has no possible_agents")
    check_num_envs(section, agents)
    for name in ("observation", "action"):
        spaces = [getattr(env, f"{name}_space")(agent) for agent in agents]
        other = next((a for a, space in zip(agents, spaces, strict=True) if space != spaces[0]), None)
        if other is not None:
            raise ConfigError(
                f"env.id: {section.id!r}: agents {agents[0]!r} and {other!r} have different {name} spaces, and one "
                "policy acts for all; use a wrapper that makes them equal, such as those of supersuit"
            )
    env.reset(seed=0)
    missing = sorted(set(agents) - set(env.agents))
    if missing:
        raise ConfigError(
            f"env.id: {section.id!r}: agent {missing[0]!r} is missing after a reset; agents that join later are not "
            "supported"
        )
    observation = observation_spec(section.id, env.observation_space(agents[0]))
    action = action_spec(section.id, env.action_space(agents[0]))
    check_mask(section.id, observation, action)
    limit = section.max_episode_steps
    return EnvSpec(section.id, observation, action, max_episode_steps=limit, agents=tuple(map(str, agents)))


def check_num_envs(section: EnvSection, agents: Sequence[str]) -> None:
    """Raise `ConfigError` unless the agents of an env fit into a vector env."""
    if agents and section.num_envs % len(agents):
        raise ConfigError(
            f"env.num_envs: {section.num_envs}: each of the {len(agents)} agents counts as one env; set a multiple "
            f"of {len(agents)}"
        )


def stripped(env: Any) -> tuple[Any, float]:
    """`env` without the outer wrappers that only count steps and check the order of calls, and its limit of steps."""
    limit = float("inf")
    while type(env) in (TimeLimit, OrderEnforcing):
        if type(env) is TimeLimit and env._max_episode_steps is not None:
            limit = min(limit, env._max_episode_steps)
        env = env.env
    return env, limit


def _limit(env: Env) -> int | None:
    """The least of the limits that cut its episodes, in steps of the wrapped env at most."""
    limits = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit) and env._max_episode_steps is not None:
            limits.append(int(env._max_episode_steps))
        env = env.env
    return min(limits, default=None)


def _has_native(section: EnvSection, env: Env) -> bool:
    vector = make_native(section, 1)
    if vector is None:
        return False
    try:
        same_obs = vector.single_observation_space == env.observation_space
        return bool(same_obs and vector.single_action_space == env.action_space)
    finally:
        vector.close()


def _attribute(path: str) -> Callable[..., Any] | None:
    module, separator, name = path.partition(":")
    if not separator:
        return None
    return getattr(importlib.import_module(module), name, None)


def _wrapped(env: Env, entry: str | Mapping[str, Mapping[str, Any]]) -> Env:
    if not isinstance(entry, str) and len(entry) != 1:
        from zmqrl.config.yaml_source import shown  # workers do without a parser of YAML

        raise ConfigError(
            f"env.wrappers: {shown(dict(entry))}: each entry must be one wrapper, with its arguments indented below "
            'it; or write ["a.b:Wrapper", {"a.b:Other": {name: value}}]'
        )
    path, arguments = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
    try:
        wrapper = _wrapper(path)
        check_called("env.wrappers", path, wrapper, *(["step"] if is_parallel(env) else []))
        wrapped: Any = wrapper(env, **arguments)
    except Exception as error:  # the user's wrapper may raise anything
        raise explain_wrapper(path, arguments, error) from error
    if not isinstance(wrapped, gym.Env) and not is_parallel(wrapped):
        raise ConfigError(f"env.wrappers: {path!r} makes {form(wrapped)}, which is not an env")
    return wrapped  # type: ignore[no-any-return]


def _wrapper(path: str) -> Any:
    module, separator, name = path.partition(":")
    if not separator:
        raise ConfigError(f"env.wrappers: {path!r}: a wrapper is written module:Wrapper")
    found = _attribute(path)
    if found is None:
        raise ConfigError(f"env.wrappers: {path!r}: {lacks(importlib.import_module(module), name)}")
    return found


def _register_namespace(env_id: str) -> None:
    module = NAMESPACES.get(env_id.partition("/")[0])
    if module is not None and importlib.util.find_spec(module) is not None:
        gym.register_envs(importlib.import_module(module))
