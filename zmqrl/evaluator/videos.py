"""Videos of the evaluator (`evaluator.video_every`). A video that fails is reported, and training continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zmqrl.acting.base import Policy
from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.evaluator.rendering import check_packages, record
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import ProblemReport
from zmqrl.types import Notice

VIDEOS = "videos"
"""Directory in the run directory."""


class Videos:
    """One of the first version, and one after each further `every` env steps, until one fails."""

    def __init__(self, plan: RunPlan, every: int, events: EventPipe) -> None:
        self._env, self._spec, self._seed = plan.config.scored_env, plan.env, plan.config.run.seed
        self._folder, self._every, self._events = Path(plan.run_dir) / VIDEOS, every, events
        self._next_at: int | None = 0

    def add(self, policy: Policy, notice: Notice, abandoned: Callable[[], bool]) -> None:
        """Write the video of a loaded version if one is due; none is left where `abandoned`."""
        if self._next_at is None or notice.done < self._next_at:
            return
        try:
            self._record(policy, notice, abandoned)
        except (ConfigError, EnvFault, OSError) as error:
            self._events.send(ProblemReport(str(error), "no further videos are written, training continues"))
            self._next_at = None
            return
        self._next_at = (notice.done // self._every + 1) * self._every

    def _record(self, policy: Policy, notice: Notice, abandoned: Callable[[], bool]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{notice.done:09d}-v{notice.version}{video_suffix()}"
        written = path.with_name(f".{path.name}.tmp{path.suffix}")  # a reader sees whole videos only
        ended = False

        def ends() -> bool:
            nonlocal ended
            ended = abandoned()
            return ended

        try:
            record(policy, self._env, self._spec, self._seed, written, ends)
            if not ended:
                written.rename(path)
        finally:
            written.unlink(missing_ok=True)


def video_suffix() -> str:
    """`.mp4`, or `.gif` where imageio has no ffmpeg. ConfigError when imageio is missing."""
    try:
        check_packages(Path("video.mp4"))
    except ConfigError:
        check_packages(Path("video.gif"))
        return ".gif"
    return ".mp4"
