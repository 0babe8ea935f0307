"""What a caller sees of a run while it trains: progress, metrics, scores, checkpoints, and its functions for them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from zmqrl.config.codec import replace
from zmqrl.config.sections import Config
from zmqrl.data_stores.checkpoints import checkpoint_names
from zmqrl.errors import ConfigError
from zmqrl.launch.launcher import Observer
from zmqrl.launch.run.state import RunState
from zmqrl.launch.status import Phase, status_of
from zmqrl.messages.process import Metrics, VersionScore
from zmqrl.orchestrators.base import HostEvent
from zmqrl.summary import Summary

CheckpointKind: TypeAlias = Literal["full", "best"]
PREFIXES: Mapping[CheckpointKind, str] = {"full": "full-", "best": "best-"}
LOG = logging.getLogger("zmqrl")


@dataclass(frozen=True)
class Progress:
    """Where a run is; updated once a second."""

    phase: Phase
    """paused: fewer workers are ready than `min_workers`."""
    env_steps: int
    total_env_steps: int
    fraction: float
    """Share of the limit that ends the run first: env steps, updates or `run.max_wall_s`."""
    wall_s: float
    eta_s: float | None
    """Seconds to that limit at the mean speed so far; `run.stop_at_return` may end the run earlier."""
    return_mean: float | None
    """Mean return of the last 100 training episodes."""
    eval_return_mean: float | None
    """Mean return of the evaluator's last score."""


@dataclass(frozen=True)
class Score:
    """Greedy episodes of one version, from the evaluator."""

    version: str
    env_steps: int
    return_mean: float | None
    """None: not finite."""
    return_std: float | None
    episodes: int
    is_best: bool
    is_final: bool


@dataclass(frozen=True)
class Checkpoint:
    """A new file in the directory of checkpoints; retention may remove it at any time."""

    path: Path
    kind: CheckpointKind
    """full: what a resume continues from. best: the version with the highest score so far."""
    version: str


@dataclass(frozen=True)
class Callbacks:
    """Functions of the caller. One that returns False requests a stop."""

    on_metrics: Callable[[Mapping[str, float]], object] | None = None
    on_score: Callable[[Score], object] | None = None
    on_checkpoint: Callable[[Checkpoint], object] | None = None


class RunObserver(Observer):
    """Called in the launcher's thread; what it publishes is replaced whole, and may be read in any thread."""

    def __init__(self, config: Config, store_path: Path, callbacks: Callbacks) -> None:
        """ConfigError where checkpoints are not files that this machine can list."""
        if callbacks.on_checkpoint is not None and config.store.kind != "directory":
            raise ConfigError(f"on_checkpoint requires store.kind directory, and the run has {config.store.kind!r}")
        self._callbacks, self._place = callbacks, store_path
        self._seen = self._checkpoints() if callbacks.on_checkpoint is not None else {}
        self._reported: set[str] = set()
        self.metrics: Mapping[str, float] = {}
        self.progress = Progress("starting", 0, config.run.total_env_steps, 0.0, 0.0, None, None, None)

    def on_event(self, event: HostEvent, state: RunState) -> bool:
        match event.event:
            case Metrics() as metrics:
                wall_s = round(state.wall_s, 3)
                self.metrics = {"wall_s": wall_s, **metrics.values}
                return self._call("on_metrics", self._callbacks.on_metrics, self.metrics)
            case VersionScore() as score:
                return self._call("on_score", self._callbacks.on_score, _score_of(score))
        return True

    def on_status(self, state: RunState) -> bool:
        status = status_of(state, time.time(), state.wall_s)
        self.progress = Progress(
            phase=status["phase"],
            env_steps=status["env_steps"],
            total_env_steps=status["total_env_steps"],
            fraction=status["progress"],
            wall_s=status["wall_s"],
            eta_s=status["eta_s"],
            return_mean=state.metrics.get("train_return_mean_100"),
            eval_return_mean=None if state.score is None else state.score.return_mean,
        )
        return self.report_checkpoints()

    def report_checkpoints(self) -> bool:
        """Report checkpoints that are new since the last call; False where the function requests a stop."""
        function = self._callbacks.on_checkpoint
        if function is None:
            return True
        before, self._seen = self._seen, self._checkpoints()
        new = [checkpoint for path, checkpoint in self._seen.items() if path not in before]
        answers = [self._call("on_checkpoint", function, checkpoint) for checkpoint in new]
        return all(answers)

    def finish(self, summary: Summary | None) -> None:
        """The run has ended."""
        self.report_checkpoints()
        at_end = replace(self.progress, phase="ended", eta_s=None)
        if summary is not None:
            env_steps = summary.env_steps or 0
            at_end = replace(
                at_end,
                env_steps=env_steps,
                fraction=min(1.0, env_steps / at_end.total_env_steps),
                wall_s=summary.wall_s,
                return_mean=summary.train_return_mean_100,
                eval_return_mean=summary.eval_return_mean,
            )
        self.progress = at_end

    def _checkpoints(self) -> dict[Path, Checkpoint]:
        try:
            names = os.listdir(self._place)
        except OSError:  # not made yet, or away
            return {}
        return {
            self._place / name: Checkpoint(self._place / name, kind, str(version))
            for kind, prefix in PREFIXES.items()
            for name, version in checkpoint_names(names, prefix).items()
        }

    def _call(self, name: str, function: Callable[..., object] | None, *arguments: object) -> bool:
        """Training does not depend on what the caller's function raises, which is logged once."""
        if function is None:
            return True
        try:
            result = function(*arguments)
            return not isinstance(result, (bool, np.bool_)) or bool(result)
        except Exception:  # code of the caller
            if name not in self._reported:
                self._reported.add(name)
                LOG.error("%s raised an exception; the run continues, further ones are not shown", name, exc_info=True)
            return True


def _score_of(score: VersionScore) -> Score:
    return Score(
        version=str(score.version),
        env_steps=score.env_steps,
        return_mean=score.return_mean,
        return_std=score.return_std,
        episodes=score.episodes,
        is_best=score.best,
        is_final=score.final,
    )
