"""`evaluate`: scores of any function of observations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from zmqrl.api.policies import LoadedPolicy, described
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection, Reduction
from zmqrl.config.yaml_source import shown
from zmqrl.envs.explain import explain
from zmqrl.envs.make import make_for_scores, quiet
from zmqrl.envs.returned import NOTHING, BadValue, InfoReader, fault_of, flag, number
from zmqrl.envs.slots import pass_numbers
from zmqrl.envs.spaces import action_spec, observation_spec
from zmqrl.errors import ConfigError, EnvFault, ZmqrlError
from zmqrl.evaluator.evaluation import Score as EpisodeScores
from zmqrl.metrics.episode_reports import EpisodeReports
from zmqrl.planning.own_code import path_of
from zmqrl.run_files.trained_env import differences
from zmqrl.types import EnvSpec


class Evaluation(EpisodeScores):
    """Returns and lengths of the episodes, in the order of their seeds, with their mean and standard deviation."""


class _InfoReports(EpisodeReports):
    """The numbers of the episodes of one env, step by step."""

    def __init__(self, report: Mapping[str, Reduction], env: str) -> None:
        super().__init__(report, env, (1, 1), None)
        self._reader = InfoReader(list(report), 1) if report else None

    def take(self, info: Any, over: bool) -> None:
        """Count a step."""
        if self._reader is not None:
            self._reader.read(0, info)
            self.observe(0, self._reader.values[None], np.array([[True]]), np.array([[over]]))


def evaluate(
    policy: Callable[[Any], Any],
    env: gym.Env[Any, Any] | type[gym.Env[Any, Any]] | str | None = None,
    episodes: int = 20,
    *,
    seed: int = 0,
) -> Evaluation:
    """Play whole episodes with a policy, one after the other; episode k is reset with `seed + k`.

    Args:
        policy: From `load_policy`, or any function from an observation to an action.
        env: An env, which stays open, its class, or an id as `env.id` takes it; None: that of the run of `load_policy`,
            with its wrappers, without those that change rewards, and with the numbers of the version for its
            `on_progress`. Its episodes have to end.
        episodes: How many.
        seed: Of the first episode.

    Raises:
        ConfigError: The env cannot be made, has several agents, or other spaces than those of a loaded policy; or an
            episode of the env of the run does not have a name of `env.report`.
        EnvFault: It returned a reward that is not a number, or a flag that is not a bool.
    """
    if episodes < 1:
        raise ConfigError("at least 1", key=("episodes",), value=str(episodes))
    _check_callable(policy)
    made = env if isinstance(env, gym.Env) else _made(policy, path_of(env) if inspect.isclass(env) else env)
    try:
        if isinstance(policy, LoadedPolicy):
            _check_spaces(policy._env, made, is_own=env is None)
            if env is None and policy._policy.numbers is not None:
                pass_numbers(made, policy._policy.numbers)
        section = getattr(policy, "section", None) if env is None else None
        reports = _InfoReports({} if section is None else section.report, _name_of(made))
        played = [_play(policy, made, seed + episode, reports) for episode in range(episodes)]
    finally:
        if made is not env:
            made.close()
    returns, lengths = zip(*played, strict=True)
    return Evaluation(returns, lengths, dict(reports.means()))


def _check_callable(policy: object) -> None:
    if not callable(policy):
        load = f"zmqrl.load_policy({str(policy)!r})" if isinstance(policy, (str, Path)) else "zmqrl.load_policy(RUN)"
        what = f"expected a function of observations, such as {load}"
        raise ConfigError(what, key=("policy",), value=repr(str(policy)))


def _made(policy: Callable[[Any], Any], env: str | None) -> gym.Env[Any, Any]:
    if env is not None and not isinstance(env, str):
        raise ConfigError(
            f"an object of type {type(env).__name__}", key=("env",), fix="expected a gymnasium.Env, its class, or an id"
        )
    section = EnvSection(id=env) if env is not None else getattr(policy, "section", None)
    if section is None:
        what = "required: an env, or its id"
        raise ConfigError(what, key=("env",), fix="only a policy of zmqrl.load_policy has an env of its own")
    try:
        with quiet():
            made = make_for_scores(section)
    except ZmqrlError:
        raise
    except Exception as error:  # the user's constructor may raise anything
        raise explain(section, error) from error
    if not isinstance(made, gym.Env):
        raise ConfigError(f"{section.id!r} has several agents", key=("env", "id"), fix="`zmqrl eval` scores its policy")
    return made


def _play(policy: Callable[[Any], Any], env: gym.Env[Any, Any], seed: int, reports: _InfoReports) -> tuple[float, int]:
    if isinstance(policy, LoadedPolicy):
        policy.reset()
    score, length, reward, over, call = 0.0, 0, 0.0, False, "reset"
    try:
        obs, _ = env.reset(seed=seed)
        call = "step"
        while not over:
            action = policy(obs, reward) if isinstance(policy, LoadedPolicy) else policy(obs)
            obs, given, terminated, truncated, info = env.step(action)
            reward = float(number(given))
            score, length = score + reward, length + 1
            over = flag("terminated", terminated) | flag("truncated", truncated)
            reports.take(info, over)
    except BadValue as error:
        what, place = fault_of(env, call, NOTHING, error)
        raise EnvFault(what, subject=f"env {_name_of(env)}, seed {seed}", place=place) from None
    return score, length


def _check_spaces(trained: EnvSpec, env: gym.Env[Any, Any], is_own: bool) -> None:
    """Raise `ConfigError` where `env` has other observations or actions than those of the run.

    Its observations may have other bounds and another dtype, unless it is the run's own.
    """
    name = _name_of(env)
    observation, action = observation_spec(name, env.observation_space), action_spec(name, env.action_space)
    pairs = (("observations", observation, trained.observation), ("actions", action, trained.action))
    for what, found, before in pairs:
        if described(found) != described(before) or (what == "actions" and found.start != before.start):
            fix = f"the policy was trained with {described(before)} in {trained.id}"
            raise ConfigError(f"{name} has {what} {described(found)}", key=("env",), fix=fix)
    for what, then, now in differences(replace(trained, agents=()), EnvSpec(name, observation, action)):
        if is_own or what.startswith(("action low", "action high")):
            raise ConfigError(
                f"{name} has {what} {shown(now)}", key=("env",), fix=f"the policy was trained with {shown(then)}"
            )


def _name_of(env: gym.Env[Any, Any]) -> str:
    return type(env.unwrapped).__name__ if env.spec is None else env.spec.id
