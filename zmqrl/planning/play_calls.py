"""What `eval`, `watch` and `record` have done in a check process: greedy episodes in the env of a run."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterator
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, TypeAlias

from zmqrl.acting.base import Policy
from zmqrl.capacity import disk_error
from zmqrl.config.codec import from_json
from zmqrl.config.sections import Config
from zmqrl.data_sets.episodes import PlayedEpisodes
from zmqrl.data_sets.minari_files import h5py_of, write_data_set
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.evaluator.evaluation import EpisodePlayer, Score
from zmqrl.evaluator.rendering import WINDOW, RenderedEpisode, record
from zmqrl.messages.check import Stage, data_of
from zmqrl.planning.policies import BEST, named_checkpoint, policy_of, stored_checkpoints
from zmqrl.run_files.stored_config import stored_in
from zmqrl.run_files.trained_env import check_trained_env
from zmqrl.types import EnvSpec

EVERY_S = 1.0
"""Between two stages of episodes: without one, a step takes long."""
MOST_WARNINGS = 1000
MOST_STEPS = 1_000_000
"""Steps of an episode that is scored: without a limit of the env, a greedy policy may never end one."""
Stages: TypeAlias = Generator[Stage, None, Any]


def scored(run_dir: str, config: Any, checkpoint: str, seed: int, episodes: int, video: str | None) -> Stages:
    """Play `episodes` side by side; `video`: the first one is also recorded, to this absolute path.

    Returns:
        Warnings; the score as `zmqrl eval --json` has it; frames and return of the video.

    Raises:
        EnvFault: An episode has more than `MOST_STEPS` steps, and more than the limit of the env.
    """
    own, frames, return_ = from_json(Config, config), 0, None
    spec, version, policy, warnings = yield from _loaded(Path(run_dir), own, checkpoint)
    by = own.evaluator.best_by if checkpoint == BEST else None
    if by is not None and stored_checkpoints(Path(run_dir), own)[0].best() is None:  # it is the newest version
        by = None
    if video is not None:
        yield Stage("video", is_limited=False)
        frames, return_ = record(policy, own.scored_env, spec, seed, Path(video))
    yield Stage("construction")
    evaluation = EpisodePlayer(own.scored_env, spec, episodes, seed)
    score = yield from _played(_bounded(evaluation.steps(policy), own.env.id, spec), evaluation.close)
    data = {
        "version": version,
        "episodes": episodes,
        "seed": seed,
        "return_mean": score.mean,
        "return_std": score.std,
        "returns": score.returns,
        "reports": score.reports,
        "best_by": by,
    }
    return warnings, data, frames, return_


def shown(run_dir: str, config: Any, checkpoint: str, seed: int, episodes: int) -> Stages:
    """Play `episodes` in a window, one after the other. `known` of a stage `close`: version, seed and return.

    Returns:
        Warnings.
    """
    own = from_json(Config, config)
    spec, version, policy, warnings = yield from _loaded(Path(run_dir), own, checkpoint)
    for own_seed in range(seed, seed + episodes):
        yield Stage("construction")
        episode = RenderedEpisode(own.scored_env, spec, own_seed, WINDOW)
        yield from _played(episode.steps(policy), episode.close, version, own_seed)
    return (warnings,)


def recorded(run_dir: str, config: Any, checkpoint: str, seed: int, episodes: int, folder: str) -> Stages:
    """Play `episodes` side by side in the env of the training, and write them as a data set to `folder`.

    Returns:
        Warnings, version, env steps, mean and standard deviation of the returns.
    """
    own, played = from_json(Config, config), PlayedEpisodes()
    h5py_of("zmqrl record")
    spec, version, policy, warnings = yield from _loaded(Path(run_dir), own, checkpoint)
    yield Stage("construction")
    evaluation = EpisodePlayer(own.env, spec, episodes, seed)
    score = yield from _played(evaluation.steps(policy, played.observe), evaluation.close)
    try:
        _, steps = write_data_set(Path(folder), spec, str(own.algorithm["kind"]), played.episodes())
    except OSError as error:
        raise ConfigError.about(folder, f"cannot be written: {disk_error(error, folder)}") from error
    return warnings, version, steps, score.mean, score.std


def _loaded(
    run_dir: Path, config: Config, checkpoint: str
) -> Generator[Stage, None, tuple[EnvSpec, str, Policy, list[str]]]:
    """The env, the version, the policy, and warnings."""
    folder, kept, log = Path.cwd(), BufferingHandler(MOST_WARNINGS), logging.getLogger("zmqrl")
    yield Stage("construction")
    with stored_in(run_dir):
        spec = probe(config.env)
        os.chdir(folder)  # the env may have left it
        check_trained_env(run_dir, spec)
    yield Stage("checkpoint", is_limited=False)
    log.addHandler(kept)
    try:
        version, content = named_checkpoint(*stored_checkpoints(run_dir, config), checkpoint)
    finally:
        log.removeHandler(kept)
    yield Stage("network")
    policy = policy_of(run_dir, config, spec, version, content)
    return spec, str(version), policy, [one.getMessage() for one in kept.buffer]


def _bounded(steps: Iterator[Score | None], env: str, spec: EnvSpec) -> Iterator[Score | None]:
    most = max(MOST_STEPS, spec.max_episode_steps or 0)
    for number, score in enumerate(steps):
        if score is None and number > most:
            fix = "set env.max_episode_steps, or --max-episode-steps of zmqrl eval"
            raise EnvFault(f"an episode has more than {most:,} steps; {fix}", subject=f"env {env!r}")
        yield score


def _played(steps: Iterator[Score | None], close: Callable[[], None], *about: object) -> Generator[Stage, None, Score]:
    """The score of the episodes. After an error nothing is closed: the process ends."""
    yield Stage("first reset")
    next_at = 0.0
    for number, score in enumerate(steps):
        if score is not None:
            yield Stage("close", data_of([*about, score.mean]))
            close()
            return score
        if number < 2 or time.monotonic() >= next_at:
            yield Stage("episodes", str(number), is_limited=False)
            next_at = time.monotonic() + EVERY_S
    raise AssertionError("no score")
