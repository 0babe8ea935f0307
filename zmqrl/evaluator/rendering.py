"""Greedy episodes that are seen: in a window (`zmqrl watch`), or in a video file."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from zmqrl.acting.base import Policy
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.data_stores.files import check_file
from zmqrl.envs.make import make_for_scores, quiet, stripped
from zmqrl.errors import ConfigError, EnvFault, user_exceptions
from zmqrl.evaluator.evaluation import EpisodePlayer, Score
from zmqrl.types import Array, EnvSpec

SUFFIXES = (".mp4", ".gif")
IMAGES, WINDOW = "rgb_array", "human"
"""Values of gymnasium's `render_mode`."""
MOST_FRAMES = 3_000
"""Most frames of a video: a longer episode is cut."""
FRAMES_PER_S = 30.0
"""Frame rate of an env that declares none."""
INSTALL = "run in the checkout of zmqrl: pip install '.[video]'"


class RenderedEpisode:
    """The first greedy episode of a score, in an env that renders."""

    def __init__(self, section: EnvSection, spec: EnvSpec, seed: int, mode: str) -> None:
        """ConfigError when the env cannot be made with this `render_mode`."""
        self._section, self._mode = replace(section, kwargs={**section.kwargs, "render_mode": mode}), mode
        self._env: Any
        try:
            with quiet():
                self._evaluation = EpisodePlayer(self._section, spec, 1, seed, self._make)
        except EnvFault as error:
            raise self._fault(error.__cause__ or error) from error
        modes = self._env.metadata.get("render_modes")
        if modes and mode not in modes:
            self.close()
            raise self._fault(ValueError(f"its render modes are {', '.join(map(str, modes))}"))

    @property
    def frames_per_s(self) -> float:
        """Frame rate as the env declares it."""
        return float(self._env.metadata.get("render_fps") or FRAMES_PER_S)

    def steps(self, policy: Policy) -> Iterator[Score | None]:
        """Play as `EpisodePlayer.steps` does."""
        return self._evaluation.steps(policy)

    def frame(self) -> Array:
        """The env as an image, uint8 `[height, width, 3]`, both even. ConfigError when it renders none."""
        try:
            with quiet():
                found = self._env.render()
        except user_exceptions() as error:
            raise self._fault(error) from error
        image = found[-1] if isinstance(found, list) and found else found
        if not isinstance(image, np.ndarray) or image.ndim != 3 or image.shape[2] != 3:
            what = "None" if image is None else f"{type(image).__name__} {getattr(image, 'shape', '')}".strip()
            raise self._fault(ValueError(f"render() returned {what}, expected an array [height, width, 3]"))
        height, width = image.shape[:2]
        return np.pad(image.astype(np.uint8, copy=False), ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")

    def close(self) -> None:
        """Close the env, and its window."""
        self._evaluation.close()

    def _make(self, section: EnvSection) -> Any:
        env = make_for_scores(section)
        self._env = stripped(env)[0]  # as it is stepped: the wrapper that checks the order of calls sees no reset
        return env

    def _fault(self, error: BaseException) -> ConfigError:
        cause = _first_line(error)
        what = cause if type(error) is ValueError else f"{type(error).__name__}: {cause}".removesuffix(": ")
        return ConfigError(
            f"cannot be rendered with render_mode {self._mode!r}: {what}{_fix(cause)}",
            key=("env", "id"),
            value=repr(self._section.id),
            is_subject=True,
        )


def check_video(path: Path) -> None:
    """Raise `ConfigError` when a video cannot be written to `path`: its suffix, its folder, a missing package."""
    if path.suffix not in SUFFIXES:
        what = f"the file name of a video must end in {' or '.join(SUFFIXES)}"
        raise ConfigError(what, source=str(path))
    check_file("", path)
    check_packages(path)


def check_packages(path: Path) -> None:
    """Raise `ConfigError` when a package that writes such a file is missing."""
    for package in ("imageio", *(["imageio_ffmpeg"] if path.suffix == ".mp4" else [])):
        try:
            importlib.import_module(package)
        except ImportError as error:
            what = f"a video needs the package {package}, which is missing"
            raise ConfigError(what, fix=INSTALL, source=str(path)) from error


def record(
    policy: Policy,
    section: EnvSection,
    spec: EnvSpec,
    seed: int,
    path: Path,
    abandoned: Callable[[], bool] = lambda: False,
) -> tuple[int, float | None]:
    """Write the first greedy episode on `seed` to `path`, an .mp4 or .gif.

    Returns:
        The number of frames, and the return of the episode; None: it was cut, or `abandoned` after a step.

    Raises:
        ConfigError: The env does not render images, a package is missing, or the file cannot be written.
        EnvFault: As any env.
    """
    check_video(path)
    episode = RenderedEpisode(section, spec, seed, IMAGES)
    try:
        return _written(policy, episode, path, abandoned)
    except (OSError, RuntimeError) as error:  # imageio raises both when ffmpeg or the disk fails
        raise ConfigError(f"the video cannot be written: {_first_line(error)}", key=(), source=str(path)) from error
    finally:
        episode.close()


def _written(
    policy: Policy, episode: RenderedEpisode, path: Path, abandoned: Callable[[], bool]
) -> tuple[int, float | None]:
    writer: Any = None
    try:
        for frames, score in enumerate(episode.steps(policy)):
            if score is not None:
                return frames, score.mean
            image = episode.frame()
            if writer is None:  # only now: an env that renders nothing leaves no file
                writer = _writer(path, episode.frames_per_s)
            writer.append_data(image)
            if frames + 1 >= MOST_FRAMES or abandoned():
                return frames + 1, None
    finally:
        if writer is not None:
            writer.close()
    raise AssertionError("no score")


def _writer(path: Path, frames_per_s: float) -> Any:
    import imageio.v2

    if path.suffix == ".gif":
        return imageio.v2.get_writer(path, format="GIF", duration=1000.0 / frames_per_s, loop=0)  # type: ignore[arg-type]
    return imageio.v2.get_writer(path, format="FFMPEG", fps=frames_per_s, macro_block_size=1)  # type: ignore[arg-type]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def _fix(cause: str) -> str:
    """A hint for what most often is missing on a machine without a display."""
    text = cause.lower()
    if "pygame" in text:
        return f"; {INSTALL}"
    if "gl" in text.replace(".", " ").split() or "egl" in text or "mujoco" in text or "display" in text:
        return "; MuJoCo renders without a display with the environment variable MUJOCO_GL=egl (or osmesa)"
    return ""
