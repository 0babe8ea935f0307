"""`eval` and `watch`: greedy episodes with a checkpoint of a run."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError

if TYPE_CHECKING:
    from zmqrl.acting.base import Policy
    from zmqrl.config.sections import Config
    from zmqrl.types import EnvSpec, Version

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
"""Environment variables, of which one is set where a window can be opened."""
CHECKPOINT = click.option(
    "--checkpoint",
    metavar="VERSION|best|last",
    default="best",
    show_default=True,
    help="Checkpoint to load: best, last, or a version such as 0-23.",
)
MOST_STEPS = click.option(
    "--max-episode-steps",
    "most_steps",
    type=click.IntRange(1),
    metavar="N",
    help="Truncate each episode after N steps.",
)
REMARK_AFTER_S = 10.0


@dataclass(frozen=True)
class Played:
    """A run whose policy plays."""

    config: Config
    spec: EnvSpec
    version: Version
    policy: Policy
    seed: int


@click.command("eval")
@click.argument("run")
@click.option(
    "--episodes", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Number of episodes."
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of the episodes. Default: run.seed of the run.")
@CHECKPOINT
@MOST_STEPS
@click.option(
    "--video", type=click.Path(path_type=Path), help="Write a video of the first episode to this .mp4 or .gif file."
)
@click.option("--json", "as_data", is_flag=True, help="Print the score as JSON.")
def eval_command(
    run: str,
    episodes: int,
    seed: int | None,
    checkpoint: str,
    most_steps: int | None,
    video: Path | None,
    as_data: bool,
) -> None:
    """Play greedy episodes with a checkpoint of RUN.

    RUN is a run directory, a run id, or the URL of a copy of a run.
    """
    from zmqrl.evaluator.evaluation import evaluate
    from zmqrl.evaluator.rendering import check_video, record

    if video is not None:
        check_video(video)
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # envs draw without a window; SDL prints about displays
    with run_directory(run) as run_dir:
        played = _load(run_dir, "eval", checkpoint, seed, most_steps)
    config, spec = played.config, played.spec
    recorded = None if video is None else record(played.policy, config.scored_env, spec, played.seed, video)
    score = evaluate(played.policy, config.scored_env, spec, episodes, played.seed, _Remark())
    if as_data:
        data = {
            "run_dir": run if "://" in run else str(run_dir.absolute()),
            "version": str(played.version),
            "episodes": episodes,
            "seed": played.seed,
            "return_mean": score.mean,
            "return_std": score.std,
            "returns": score.returns,
        }
        click.echo(json.dumps(data if recorded is None else {**data, "video": str(recorded.path)}))
        return
    mean, std = f"{score.mean:.2f}", f"{score.std:.2f}"
    click.echo(f"version {played.version}: return {mean} +- {std} over {episodes} greedy episodes")
    if recorded is not None:
        result = "the episode is longer" if recorded.return_ is None else f"return {recorded.return_:.2f}"
        click.echo(f"{recorded.path}: first episode, {recorded.frames} frames, {result}")


@click.command("watch")
@click.argument("run")
@click.option(
    "--episodes", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Number of episodes."
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of the episodes. Default: run.seed of the run.")
@CHECKPOINT
@MOST_STEPS
def watch_command(run: str, episodes: int, seed: int | None, checkpoint: str, most_steps: int | None) -> None:
    """Show greedy episodes in a window of the env.

    The env is created with render_mode=human. RUN is a run directory, a run id, or the URL of a copy of a run.
    """
    from zmqrl.evaluator.rendering import WINDOW, RenderedEpisode

    with run_directory(run) as run_dir:
        played = _load(run_dir, "watch", checkpoint, seed, most_steps)
    if not any(os.environ.get(name) for name in DISPLAYS):
        video = f"zmqrl eval {shlex.quote(run)} --video out.mp4"
        raise ConfigError(f"no display (DISPLAY and WAYLAND_DISPLAY are not set); write a video: {video}")
    if not os.environ.get("WAYLAND_DISPLAY"):  # else SDL tries Wayland first, prints an error, and may show nothing
        os.environ.setdefault("SDL_VIDEODRIVER", "x11")
    for number in range(episodes):
        episode = RenderedEpisode(played.config.scored_env, played.spec, played.seed + number, WINDOW)
        try:
            return_ = episode.play(played.policy, lambda: False)
        finally:
            episode.close()
        click.echo(f"version {played.version}, seed {played.seed + number}: return {return_:.2f}")


@contextmanager
def run_directory(run: str) -> Iterator[Path]:
    """The run directory, also of a run id; of a URL a temporary copy."""
    if "://" not in run:
        from zmqrl.cli.find_run import directory_of

        yield directory_of(run)
        return
    from zmqrl.launch.url_mirror import fetch

    with tempfile.TemporaryDirectory(prefix="zmqrl-eval-") as folder:
        fetch(run, Path(folder), to_resume=False)
        yield Path(folder)


class _Remark:
    """Printed once when the episodes take long: an env without a step limit may never end one."""

    def __init__(self) -> None:
        self._steps, self._at = 0, time.monotonic() + REMARK_AFTER_S

    def __call__(self) -> None:
        self._steps += 1
        if time.monotonic() >= self._at:
            self._at = float("inf")
            text = (
                f"no result yet: the longest episodes have {self._steps:,} steps; --max-episode-steps N truncates them"
            )
            click.echo(text, err=True)


def _load(run_dir: Path, command: str, checkpoint: str, seed: int | None, most_steps: int | None) -> Played:
    from zmqrl.envs.make import probe
    from zmqrl.launch.policies import stored_policy
    from zmqrl.launch.run_directory import stored_in
    from zmqrl.launch.trained_env import check_trained_env
    from zmqrl.launch.trust import opened

    config = opened(run_dir, lambda run: f"zmqrl {command} {shlex.quote(run)}")
    if most_steps is not None:
        config = replace(config, env=replace(config.env, max_episode_steps=most_steps))
    with stored_in(run_dir):
        spec = probe(config.env)
        check_trained_env(run_dir, spec)
    version, policy = stored_policy(run_dir, config, spec, checkpoint)
    return Played(config, spec, version, policy, config.run.seed if seed is None else seed)
