"""What the loop of every mode works with: the parts of a learner, made in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zmqrl.algorithms.base import Algorithm, LearnResult, Progress
from zmqrl.bus_ends.learner_end import LearnerChannel, LearnerEnds, SegmentSource, TakenSegment
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.base import DataStore, unprefixed
from zmqrl.learner.checkpointing import FullCheckpoints
from zmqrl.learner.counters import EndConditions, RunProgress
from zmqrl.learner.episodes import EpisodeTracker
from zmqrl.learner.publishing import Publisher
from zmqrl.learner.reporting import Reporter
from zmqrl.learner.restore import StartState
from zmqrl.learner.retrying_writer import RetryingWriter
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import UPDATE
from zmqrl.replay.base import Replay, SegmentBatch, gather
from zmqrl.replay.mixed import MixedReplay
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.types import ACTING_STATE_END, STATE_COLUMN, SlotRef

if TYPE_CHECKING:
    from zmqrl.data_sets.rows import LoadedReplay
    from zmqrl.learner.recording import Recording


@dataclass(frozen=True)
class Session:
    """The parts of a run that outlive a version. All of them are of the learner's main thread.

    The learner with the tensors is not among them: version 0 is published before it is built.
    """

    plan: RunPlan
    source: SegmentSource
    channel: LearnerChannel
    progress: RunProgress
    end: EndConditions
    publisher: Publisher
    checkpoints: FullCheckpoints
    reporter: Reporter
    recording: Recording | None = None
    loaded: LoadedReplay | None = None

    def drawn(self, replay: Replay) -> Replay:
        """What updates draw from: `replay`, with `replay.load` mixed with the data set."""
        share = self.plan.config.replay.load_share
        return replay if self.loaded is None else MixedReplay(replay, self.loaded, share)

    def record(self, segments: Sequence[TakenSegment]) -> None:
        """Record segments that are used for the first time (`run.record`): before their slots are released."""
        if self.recording is not None:
            self.recording.record(segments, self.source.columns)

    def gathered(self, segments: Sequence[TakenSegment]) -> SegmentBatch:
        """Segments that are about to be used, recorded and side by side."""
        self.record(segments)
        return gather(self.source.columns, [s.ref for s in segments], [s.meta for s in segments])

    @contextmanager
    def training(self) -> Iterator[Progress]:
        """Around a round of training. The detail of an exception names the update from which it came."""
        progress = self.progress.snapshot
        try:
            yield progress
        except BaseException as error:
            detail = getattr(error, "detail", None)
            with suppress(AttributeError, TypeError):  # an exception of the user's may have no room for it
                setattr(error, "detail", {**(detail or {}), UPDATE: progress.updates})  # noqa: B010
            raise

    def count_updates(self, result: LearnResult) -> None:
        """Count what the algorithm did."""
        self.progress.counters.updates += result.updates
        self.reporter.observe(result.metrics)

    def advance_version(self) -> str | None:
        """Pass a version boundary: n + 1. Returns the reason to end the run here, or None."""
        self.progress.advance_version()
        self.end.round_ended()
        self.reporter.version_advanced()
        return self.end.reason_at_boundary(self.progress)


def make_session(
    plan: RunPlan,
    algorithm: Algorithm,
    store: DataStore,
    ends: LearnerEnds,
    events: EventPipe,
    start: StartState,
    spawn: int = 0,
    loaded: LoadedReplay | None = None,
) -> Session:
    """The session of a learner that continues from `start`; `spawn` learners of this attempt were before it."""
    episodes = _episodes(plan)
    if start.full is not None:
        episodes.load_arrays(unprefixed("episodes", start.full.arrays))
    progress = RunProgress(plan, start.counters, episodes, start.oldest_incarnation, start.counted)
    end = EndConditions(plan)
    writer = RetryingWriter(
        events, plan.config.store.wait_s, plan.config.limits.grace_s / 2, lambda: end.stop_requested
    )
    publisher = Publisher(plan, algorithm, store, ends.channel, writer, events, progress)
    checkpoints = FullCheckpoints(plan, store, writer, progress, ends.source)
    recording, checkpoints.loaded, checkpoints.before = None, loaded, lambda: publisher.before
    if plan.config.run.record is not None:
        from zmqrl.learner.recording import Recording  # most runs start without

        recording = Recording(plan, spawn, start.counters, writer)
        checkpoints.syncs.append(recording.sync)
    if plan.config.run.episodes_csv:
        from zmqrl.learner.episodes_file import EpisodesFile  # most runs start without

        episodes_file = EpisodesFile(plan, spawn, start.counters, writer)
        progress.record_episodes = episodes_file.record
        checkpoints.syncs.append(episodes_file.sync)
    reporter = Reporter(plan, algorithm, events, progress, publisher, checkpoints)
    reporter.loaded_env_steps = None if loaded is None else loaded.env_steps
    return Session(plan, ends.source, ends.channel, progress, end, publisher, checkpoints, reporter, recording, loaded)


def hold(replay: SegmentReplay | None, segments: Sequence[TakenSegment]) -> list[SlotRef]:
    """Add used segments to replay; returns the slots to release: those that made room, or without replay all."""
    if replay is None:
        return [segment.ref for segment in segments]
    return [ref for segment in segments if (ref := replay.add(segment.ref, segment.meta)) is not None]


def _episodes(plan: RunPlan) -> EpisodeTracker:
    saves_state = any(column.name == STATE_COLUMN for column in plan.columns)
    acting = [column.name for column in plan.columns if column.name.startswith(ACTING_STATE_END)]
    config, agents = plan.config, plan.env.slots_per_env
    streams, envs = plan.streams, config.env.num_envs
    return EpisodeTracker(streams, envs, config.continues_episodes, saves_state, acting, agents, config.env)
