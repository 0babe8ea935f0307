"""Greedy episodes on seeds of their own: the evaluator's scores, and those of `zmqrl eval`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from zmqrl.acting.base import Policy
from zmqrl.acting.heads import clip_to
from zmqrl.acting.previous import PreviousStep
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import StepResult
from zmqrl.envs.make import make_for_scores, quiet
from zmqrl.envs.vector import make_seeded
from zmqrl.metrics.episode_reports import EpisodeReports
from zmqrl.types import PREVIOUS, Array, EnvSpec

OnStep: TypeAlias = Callable[[Array, Array, StepResult, Array], None]
EVALUATION = -1
"""The vector env in the seeds of evaluation: no training vector env has this number."""


@dataclass(frozen=True)
class Score:
    """Returns and lengths of the episodes, in the order of their seeds; of several agents the mean return."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    reports: Mapping[str, float] = field(default_factory=dict)
    """Means over the episodes of the numbers of `env.report`."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation over the episodes."""
        return float(np.std(self.returns))


class EpisodePlayer:
    """All episodes side by side in one vector env, made once; every version plays the same seeds."""

    def __init__(
        self,
        section: EnvSection,
        spec: EnvSpec,
        episodes: int,
        seed: int,
        make: Callable[[EnvSection], Any] = make_for_scores,
    ) -> None:
        self._slots_per_env, self._action = spec.slots_per_env, spec.action
        make_one = partial(make, replace(section, num_envs=episodes))
        self._report, slots = section.report, episodes * spec.slots_per_env
        self._env = make_seeded(spec, make_one, slots, seed, EVALUATION, report=section.report)
        self._clipped = clip_to(spec.action)

    def play(self, policy: Policy, abandoned: Callable[[], bool] = lambda: False) -> Score | None:
        """Each env's first episode to its end; None as soon as `abandoned`. EnvFault as any env.

        `abandoned` is called after the resets and after each step.
        """
        for score in self.steps(policy):
            if score is not None:
                return score
            if abandoned():
                return None
        return None

    def close(self) -> None:
        """Close the envs."""
        self._env.close()

    def steps(self, policy: Policy, on_step: OnStep | None = None) -> Iterator[Score | None]:
        """None after the resets and after each step, then the score.

        `on_step` receives observations and actions `[N, ...]`, the result, and which slots play.
        """
        slots = self._env.num_envs
        returns, lengths = np.zeros(slots), np.zeros(slots, np.int64)
        playing = np.ones(slots, bool)
        reports = EpisodeReports(self._report, self._env.spec.id, (1, slots), None)
        if policy.numbers is not None:
            self._env.on_progress(policy.numbers)
        obs, state = self._env.start(), policy.zero_state(slots)
        previous = PreviousStep(self._action, slots) if PREVIOUS in state else None
        yield None
        while playing.any():
            actions = policy.act_greedily(obs, state)  # each env plays one episode: nothing to set back
            before = obs if on_step is None else obs.copy()  # the env may reuse its array
            result = self._env.step(self._clipped(actions))
            if previous is not None:
                previous.write(state, actions, result.reward)
            if on_step is not None:
                on_step(before, actions, result, playing)
            returns[playing] += result.reward[playing]
            lengths += playing
            done = (result.terminated | result.truncated) & playing
            if self._env.reports is not None:
                reports.observe(0, self._env.reports[None], playing[None], done[None])
            for slot in np.nonzero(done)[0].tolist():
                playing[slot] = False
                self._env.park(slot)
            obs = result.obs
            yield None
        agents = (-1, self._slots_per_env)
        of_envs = returns.reshape(agents).mean(axis=1), lengths.reshape(agents).max(axis=1)
        yield Score(tuple(of_envs[0].tolist()), tuple(of_envs[1].tolist()), dict(reports.means()))


def evaluate(policy: Policy, section: EnvSection, spec: EnvSpec, episodes: int, seed: int) -> Score:
    """`episodes` greedy episodes of a loaded policy, to their ends."""
    with quiet():
        evaluation = EpisodePlayer(section, spec, episodes, seed)
    try:
        score = evaluation.play(policy)
        assert score is not None
        return score
    finally:
        evaluation.close()
