"""`eval`, `record` and `watch`: greedy episodes with a checkpoint of a run."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqrl.config.codec import replace, to_json
from zmqrl.errors import ConfigError
from zmqrl.logs.printable import printable
from zmqrl.views.problem import report_cells

if TYPE_CHECKING:
    from zmqrl.config.sections import Config
    from zmqrl.messages.check import Stage

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
    from zmqrl.evaluator.rendering import check_video

    if video is not None:
        check_video(video)
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # envs draw without a window; SDL prints about displays
    target = None if video is None else str(video.absolute())
    with run_directory(run) as run_dir:
        config = _opened(run_dir, "eval", most_steps)
        seed = config.run.seed if seed is None else seed
        played = _called("scored", run_dir, config, checkpoint, seed, episodes, target, on_stage=_Remark())
    score, frames, return_ = played
    if as_data:
        data = {"run_dir": run if "://" in run else str(run_dir.absolute()), **score}
        click.echo(json.dumps(data if video is None else {**data, "video": str(video)}))
        return
    chosen = f" (best by {score['best_by']})" if score["best_by"] else ""
    result = f"return {score['return_mean']:.2f} +- {score['return_std']:.2f} over {episodes} greedy episodes"
    click.echo(f"version {score['version']}{chosen}: {result}")
    if score["reports"]:
        click.echo(f"  {', '.join(report_cells(score['reports']))}")
    if video is not None:
        result = "the episode is longer" if return_ is None else f"return {return_:.2f}"
        click.echo(f"{video}: first episode, {frames} frames, {result}")


@click.command("record")
@click.argument("run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--episodes", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Number of episodes."
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of the episodes. Default: run.seed of the run.")
@CHECKPOINT
@MOST_STEPS
@click.option("--json", "as_data", is_flag=True, help="Print the result as JSON.")
def record_command(
    run: str, folder: Path, episodes: int, seed: int | None, checkpoint: str, most_steps: int | None, as_data: bool
) -> None:
    """Write greedy episodes of RUN as a data set of Minari.

    FOLDER is new. Needs the extra minari. RUN is a run directory, a run id, or the URL of a copy of a run.
    """
    from zmqrl.data_sets.minari_files import DATA  # imports numpy

    if (folder / DATA).exists():
        raise ConfigError.about(folder, "has a data set", "name another folder")
    with run_directory(run) as run_dir:
        config = _opened(run_dir, "record", most_steps, str(folder))
        seed, target = config.run.seed if seed is None else seed, str(folder.absolute())
        played = _called("recorded", run_dir, config, checkpoint, seed, episodes, target, on_stage=_Remark())
    version, steps, mean, std = played
    if as_data:
        counts = {"folder": str(folder), "version": version, "episodes": episodes, "env_steps": steps, "seed": seed}
        click.echo(json.dumps({**counts, "return_mean": mean, "return_std": std}))
        return
    click.echo(f"{folder}: {steps:,} env steps of {episodes} greedy episodes of version {version}")
    click.echo(f"return {mean:.2f} +- {std:.2f}")


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
    with run_directory(run) as run_dir:
        config = _opened(run_dir, "watch", most_steps)
        if not any(os.environ.get(name) for name in DISPLAYS):
            video = f"zmqrl eval {shlex.quote(run)} --video out.mp4"
            what = "no display (DISPLAY and WAYLAND_DISPLAY are not set)"
            raise ConfigError(what, fix=f"write a video: {video}")
        if not os.environ.get("WAYLAND_DISPLAY"):  # else SDL tries Wayland first, prints an error, may show nothing
            os.environ.setdefault("SDL_VIDEODRIVER", "x11")
        seed = config.run.seed if seed is None else seed
        _called("shown", run_dir, config, checkpoint, seed, episodes, on_stage=_print_return)


@contextmanager
def run_directory(run: str) -> Iterator[Path]:
    """The run directory, also of a run id; of a URL a temporary copy."""
    if "://" not in run:
        from zmqrl.cli.run.find_run import directory_of

        yield directory_of(run)
        return
    from zmqrl.run_files.url_mirror import fetch

    with tempfile.TemporaryDirectory(prefix="zmqrl-eval-") as folder:
        fetch(run, Path(folder), to_resume=False)
        yield Path(folder)


class _Remark:
    """Printed once when the episodes take long: an env without a step limit may never end one."""

    def __init__(self) -> None:
        self._at = 0.0

    def __call__(self, stage: Stage) -> None:
        if stage.name != "episodes":
            return
        self._at = self._at or time.monotonic() + REMARK_AFTER_S
        steps = json.loads(stage.known)
        if steps and time.monotonic() >= self._at:
            self._at = float("inf")
            text = f"no result yet: the longest episodes have {steps:,} steps; --max-episode-steps N truncates them"
            click.echo(text, err=True)


def _print_return(stage: Stage) -> None:
    if stage.name == "close":
        version, seed, return_ = json.loads(stage.known)
        click.echo(f"version {version}, seed {seed}: return {return_:.2f}")


def _opened(run_dir: Path, command: str, most_steps: int | None, *words: str) -> Config:
    from zmqrl.run_files.trust import opened

    config = opened(run_dir, lambda run: shlex.join(("zmqrl", command, run, *words)))
    return config if most_steps is None else replace(config, env=replace(config.env, max_episode_steps=most_steps))


def _called(function: str, run_dir: Path, config: Config, *arguments: Any, on_stage: Callable[[Stage], None]) -> Any:
    """What a function of `zmqrl.planning.play_calls` returns after its warnings, which are printed."""
    from zmqrl.supervision import check_process
    from zmqrl.supervision.served_call import Subject

    with check_process.none_left():
        warnings, *result = check_process.call(
            f"zmqrl.planning.play_calls:{function}",
            *(str(run_dir), to_json(config), *arguments),
            subject=Subject(repr(config.env.id), ("env", "id")),
            limit_s=config.limits.start_s,
            on_stage=on_stage,
        )
    for warning in warnings:
        click.echo(printable(warning), err=True)
    return result
