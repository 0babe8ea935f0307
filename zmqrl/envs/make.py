"""Gymnasium envs of the `env` section, and the launcher's check of an env before anything is started."""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.envs.arguments import called
from zmqrl.envs.base import ALTERNATIVES, Numbers, close_env, has_state_pair, state_spec
from zmqrl.envs.creators import check_called
from zmqrl.envs.env_index import EnvIndex
from zmqrl.envs.explain import explain, explain_wrapper, not_an_env
from zmqrl.envs.frame_stack import stack_frames
from zmqrl.envs.lookup import creator_of, wrapper_of
from zmqrl.envs.parallel import StepLimit, is_parallel
from zmqrl.envs.returned import NOTHING, fault_of
from zmqrl.envs.slots import ON_PROGRESS, pass_numbers, receivers
from zmqrl.envs.spaces import action_spec, check_mask, observation_spec
from zmqrl.envs.vectorised import check_vector, has_native, spec_of_vector
from zmqrl.errors import ConfigError, user_exceptions
from zmqrl.plugins import form, traceback_of
from zmqrl.types import EnvSpec

Env = gym.Env[Any, Any]
_QUIET = threading.RLock()
"""stdout and the filter of warnings are the process's: of two threads, the second would restore what the first set."""


def make_single(section: EnvSection) -> Env:
    """One env with its wrappers, without gymnasium's checkers (the vector env checks what comes out).

    `a.b:Name` is attribute Name of module a.b if it exists, else an id that module a.b registers. Raises whatever
    the user's code or gymnasium raises.
    """
    with EnvIndex() as index:
        env: Any = called(creator_of(section), (), section.kwargs, index.number, "env.kwargs")
        if isinstance(env, gym.vector.VectorEnv):
            check_vector(section, env)
            return index.keep_for(env)  # type: ignore[no-any-return]
        for entry in section.wrappers:
            env = _wrapped(env, entry, index.number)
        if not is_parallel(env) and not isinstance(env, gym.Env):
            raise not_an_env(section, env)
        index.keep_for(env)
    if section.frame_stack > 1:
        if is_parallel(env):
            what, fix = "frames of several agents are not stacked", "set 1 and use a wrapper that stacks them"
            raise ConfigError(what, key=("env", "frame_stack"), value=str(section.frame_stack), fix=fix)
        env = stack_frames(*stripped(env), section.frame_stack, section.recovery == "state")
    if section.max_episode_steps is None:
        return env  # type: ignore[no-any-return]
    limit: Callable[[Any, int], Any] = StepLimit if is_parallel(env) else TimeLimit
    return limit(env, section.max_episode_steps)  # type: ignore[no-any-return]


def make_for_scores(section: EnvSection) -> Env:
    """An env as of `make_single`, with the rewards and episodes of the env itself."""
    return for_scores(make_single(section))


def for_scores(env: Env) -> Env:
    """Call `score_full_episodes` of each wrapper that has it: one that clips rewards, or ends episodes early."""
    layer = env
    while isinstance(layer, gym.Wrapper):
        score = getattr(layer, "score_full_episodes", None)
        if score is not None:
            score()
        layer = layer.env
    return env


def probe(section: EnvSection) -> EnvSpec:
    """Properties of the env. Creates one env and closes it; its output does not reach stdout or stderr.

    Raises:
        ConfigError: It cannot be made, or its spaces are not supported; names key, value and the nearest id.
    """
    with quiet():
        env, spec = examined(section)
        close_env(env)
    check_num_envs(section, spec.agents)
    return spec


def examined(section: EnvSection) -> tuple[Env, EnvSpec]:
    """An env, and its properties. ConfigError as `probe`."""
    try:
        env = make_single(section)
    except Exception as error:  # the user's constructor may raise anything
        raise explain(section, error) from error
    try:
        return env, replace(spec_of(section, env), receives_numbers=bool(receivers(env)))
    except Exception as error:  # get_state of the user's env may raise anything
        close_env(env)
        raise explain(section, error) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings, gymnasium's log (which is warnings) and the env's prints away from the user's terminal."""
    with _QUIET, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def spec_of(section: EnvSection, env: Env) -> EnvSpec:
    """Properties of an env that is made. ConfigError as `probe`; an env may raise anything."""
    if is_parallel(env):
        return _spec_of_agents(section, env)
    if isinstance(vector := cast(Any, env), gym.vector.VectorEnv):
        return spec_of_vector(section.id, vector)
    observation = observation_spec(section.id, _space(section, env, "observation_space"))
    action = action_spec(section.id, _space(section, env, "action_space"))
    check_mask(section.id, observation, action)
    threshold = env.spec.reward_threshold if env.spec is not None else None
    inner = stripped(env)[0]
    state = state_spec(inner) if section.recovery == "state" else None
    native = observation.kind == "box" and has_native(section, env)
    return EnvSpec(
        section.id, observation, action, threshold, native, _limit(env), state, has_state_pair=has_state_pair(inner)
    )


def _space(section: EnvSection, env: Env, name: str) -> Any:
    try:
        return getattr(env, name)
    except AttributeError as error:
        if error.name != name:  # of a property of the user's
            raise
        kind = type(env.unwrapped).__name__
        raise ConfigError(
            f"{kind} has no {name}", key=("env", "id"), value=repr(section.id), fix=f"set self.{name} in __init__"
        ) from error


def _spec_of_agents(section: EnvSection, env: Any) -> EnvSpec:
    """Spec of a parallel env: its agents have equal spaces, and all are there after a reset."""
    agents = tuple(env.possible_agents)
    if not agents:
        raise ConfigError("has no possible_agents", key=("env", "id"), value=repr(section.id), is_subject=True)
    if section.recovery == "state":
        raise ConfigError(
            f"states of several agents are not saved, {ALTERNATIVES}", key=("env", "recovery"), value="'state'"
        )
    for name in ("observation", "action"):
        spaces = [getattr(env, f"{name}_space")(agent) for agent in agents]
        other = next((a for a, space in zip(agents, spaces, strict=True) if space != spaces[0]), None)
        if other is not None:
            what = f"agents {agents[0]!r} and {other!r} have different {name} spaces, and one policy acts for all"
            fix = "use a wrapper that makes them equal, such as those of supersuit"
            raise ConfigError(what, key=("env", "id"), value=repr(section.id), fix=fix)
    env.reset(seed=0)
    missing = sorted(set(agents) - set(env.agents))
    if missing:
        what = f"agent {missing[0]!r} is missing after a reset; agents that join later are not supported"
        raise ConfigError(what, key=("env", "id"), value=repr(section.id))
    observation = observation_spec(section.id, env.observation_space(agents[0]))
    action = action_spec(section.id, env.action_space(agents[0]))
    check_mask(section.id, observation, action)
    limit = section.max_episode_steps
    return EnvSpec(section.id, observation, action, max_episode_steps=limit, agents=tuple(map(str, agents)))


def check_num_envs(section: EnvSection, agents: Sequence[str]) -> None:
    """Raise `ConfigError` unless the agents of an env fit into a vector env."""
    if agents and section.num_envs % len(agents):
        what, fix = f"each of the {len(agents)} agents counts as one env", f"set a multiple of {len(agents)}"
        raise ConfigError(what, key=("env", "num_envs"), value=str(section.num_envs), fix=fix)


def check_numbers(section: EnvSection, spec: EnvSpec, numbers: Numbers, is_here: bool = True) -> None:
    """Raise `ConfigError` where nothing receives `env.schedule`, or where `on_progress` of an env made here raises."""
    if section.schedule and not spec.receives_numbers:
        what, fix = "neither the env nor a wrapper has a method on_progress", "add it (docs/envs.md) or remove the key"
        raise ConfigError(what, key=("env", "schedule"), value=", ".join(section.schedule), fix=fix)
    if spec.receives_numbers and is_here and section.check:
        env = make_single(section)
        try:
            pass_numbers(env, numbers)
        except user_exceptions() as error:
            what = f"{fault_of(env, ON_PROGRESS, NOTHING, error)[0]}\n{traceback_of(error)}"
            raise ConfigError(what, key=("env", "id"), value=repr(section.id)) from error
        finally:
            close_env(env)


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


def _wrapped(env: Env, entry: str | Mapping[str, Mapping[str, Any]], index: int) -> Env:
    if not isinstance(entry, str) and len(entry) != 1:
        from zmqrl.config.yaml_source import shown  # workers do without a parser of YAML

        what = "each entry must be one wrapper, with its arguments indented below it"
        fix = 'or write ["a.b:Wrapper", {"a.b:Other": {name: value}}]'
        raise ConfigError(what, key=("env", "wrappers"), value=shown(dict(entry)), fix=fix)
    path, arguments = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
    try:
        wrapper = wrapper_of(path)
        check_called("env.wrappers", path, wrapper, *(["step"] if is_parallel(env) else []))
        wrapped: Any = called(wrapper, (env,), arguments, index, f"env.wrappers: {path!r}")
    except Exception as error:  # the user's wrapper may raise anything
        raise explain_wrapper(path, arguments, error) from error
    if not isinstance(wrapped, gym.Env) and not is_parallel(wrapped):
        raise ConfigError(
            f"makes {form(wrapped)}, which is not an env", key=("env", "wrappers"), value=repr(path), is_subject=True
        )
    return wrapped  # type: ignore[no-any-return]
