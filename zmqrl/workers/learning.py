"""What the loops of all modes share: counters, publishing a version, FULL, the reasons to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from zmqrl.algorithms.base import Algorithm, LearnResult, OffPolicyLearner, OnPolicyLearner, Progress, schedule_of
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.base import DataStore, Full
from zmqrl.errors import StoreError
from zmqrl.logs.events import EventPipe
from zmqrl.memory_backends.base import LearnerEnds, LearnerWord, LedgerView, TakenSegment, TakeUp
from zmqrl.messages import agent
from zmqrl.replay.base import SegmentBatch
from zmqrl.replay.uniform import UniformReplay
from zmqrl.supervision.run_owner import check_owner
from zmqrl.types import STATE_COLUMN, Array, Notice, SegmentMeta, Version, Weights
from zmqrl.workers.background_full import BackgroundFull
from zmqrl.workers.counters import Counters, LagHistogram, Rates, figures_of, prefixed, unprefixed, weights_sha256
from zmqrl.workers.end_conditions import EndConditions
from zmqrl.workers.episodes import EpisodeBook
from zmqrl.workers.full_writer import FullWriter
from zmqrl.workers.replay_checkpoint import replay_arrays, replay_rows
from zmqrl.workers.saving import Saving

METRICS_EVERY_S = 1.0
SOLVED_EPISODES = 100


class Learning:
    """A learner's run in any mode. Owned by the learner's main thread."""

    def __init__(
        self,
        plan: RunPlan,
        algorithm: Algorithm,
        store: DataStore,
        ends: LearnerEnds,
        events: EventPipe,
        counters: Counters,
        ledger: LedgerView | None = None,
    ) -> None:
        """`ledger` is given in single mode, where the stream records are in this process."""
        self.plan = plan
        self.config = plan.config
        self.algorithm = algorithm
        self.store = store
        self.source, self.channel = ends
        self.events = events
        self.counters = counters
        self._ledger = ledger
        exact = plan.config.run.mode != "async" and plan.config.env.recovery == "exact"
        saves_state = any(column.name == STATE_COLUMN for column in plan.columns)
        self.episodes = EpisodeBook(plan.streams, plan.config.env.num_envs, exact, saves_state)
        self.lags = LagHistogram()
        self.rates = Rates()
        self.waited_s = self._saved_s = 0.0
        self.end = EndConditions(plan)
        limits = plan.config.limits
        self.saving = Saving(events, plan.config.store.wait_s, limits.grace_s / 2, lambda: self.end.stop_requested)
        self.fulls = FullWriter(store, self.saving, plan.config.run.checkpoint_every_s)
        self.oldest_incarnation = 0
        """Segments of earlier ones are abandoned."""
        self.counted: Sequence[tuple[int, int]] = ()
        """Segments before these (incarnation, index) are in the counters already."""
        self.learner: OnPolicyLearner | OffPolicyLearner
        self._metrics_at_s, self._metrics_env_steps = time.monotonic(), counters.env_steps
        self._result: dict[str, float] = {}
        self._notice: Notice | None = None

    @property
    def version(self) -> Version:
        """The version that is current."""
        return Version(self.counters.incarnation, self.counters.n)

    @property
    def progress(self) -> Progress:
        """The counters as the algorithm sees them."""
        c = self.counters
        run = self.config.run
        return Progress(run.seed, c.env_steps, c.updates, c.schedule_env_steps, run.debug, self.version)

    def take(self, timeout_s: float) -> list[TakenSegment]:
        """Take from the stream, count the wait, answer successors of dead workers."""
        begun = time.monotonic()
        taken = self.source.take(timeout_s)
        self.waited_s += time.monotonic() - begun
        return taken

    def advance(self, segment: TakenSegment) -> None:
        """Move the env record of the segment's vector env on to its end."""
        slot, columns = segment.ref.slot, self.source.columns
        self.episodes.advance(segment.meta, {name: columns[name][slot] for name in self.episodes.record_columns})

    def answer_take_ups(self) -> None:
        """Send successors their start state, once the record has reached what the broker has accepted."""
        for request in self.channel.take_up_requests():
            index, states = self.episodes.record(request.vector_env)
            if index >= request.next_index:
                self.channel.answer(TakeUp(request.vector_env, request.incarnation, index, states))

    def note(self, batch: SegmentBatch) -> None:
        """Count a batch that is about to be used."""
        c = self.counters
        self.lags.observe(max(0, c.n - meta.version.n) for meta in batch.metas)
        positions = [tuple(position) for position in c.positions]
        for meta in batch.metas:
            vector_env, incarnation, index = meta.id
            c.rows[vector_env] += meta.rows
            positions[vector_env] = (incarnation, index + 1)
            if not self.counted or (incarnation, index) >= self.counted[vector_env]:
                c.env_steps += meta.rows
        c.positions = positions
        self.episodes.observe(batch)

    def was_used(self, meta: SegmentMeta) -> bool:
        """Whether `note` has seen the segment, here or before the FULL that this learner began from."""
        return meta.id[1:] < tuple(self.counters.positions[meta.id.vector_env])

    def learned(self, result: LearnResult) -> None:
        """Count what the algorithm did."""
        self.counters.updates += result.updates
        if self.config.run.mode == "async":
            self.leave_word()
        if result.metrics:
            self._result = dict(result.metrics)

    def boundary(self) -> str | None:
        """Pass a version boundary: n + 1. Returns the reason to stop here, or None."""
        c = self.counters
        c.n += 1
        self.end.round_ended()
        self.rates.observe(time.monotonic(), c.env_steps, c.updates, self.waited_s, self._saved_s + self.fulls.spent_s)
        self.emit_metrics()
        mean = self._full_mean_return
        threshold = self.plan.env.reward_threshold
        if c.solved_at_env_steps is None and mean is not None and threshold is not None and mean >= threshold:
            c.solved_at_env_steps, c.solved_at_wall_s = c.env_steps, time.time() - self.plan.started_at
        return self.reason_to_end()

    def reason_to_end(self) -> str | None:
        """Why the run is to end at a version boundary that is passed now; None: it continues."""
        return self.goal_reached() or self.end.reason

    def goal_reached(self) -> str | None:
        """The stop condition that the run has met; also used by a learner that begins from the last FULL of a run."""
        c, run, mean = self.counters, self.config.run, self._full_mean_return
        if run.stop_at_return is not None and mean is not None and mean >= run.stop_at_return:
            return "stop_at_return"
        if c.env_steps >= run.total_env_steps:
            return "total_env_steps"
        if run.stop_at_updates is not None and c.updates >= run.stop_at_updates:
            return "stop_at_updates"
        return None

    @property
    def _full_mean_return(self) -> float | None:
        """Of the last `SOLVED_EPISODES` episodes; None before there were as many."""
        return self.episodes.mean_return if len(self.episodes.returns) >= SOLVED_EPISODES else None

    def publish(self, announce: bool = True) -> Notice:
        """Save the current version and, with `announce`, make it known to the workers."""
        weights = {**self.learner.weights()}
        begun = time.monotonic()
        notice = self.save_version(weights)
        saved = time.monotonic()
        if announce:
            self.announce(notice)
        announced = time.monotonic()
        self.store.retire()
        self._saved_s += saved - begun + time.monotonic() - announced
        return notice

    def save_version(self, weights: Weights) -> Notice:
        """Have `weights` in the store as the current version, however long the store fails (`store.wait_s`)."""
        self._notice = self.saving.insist(
            "the current version",
            lambda: publish(self.store, self.version, weights, self.progress, self.algorithm),
            "the run waits because workers receive no weights, retrying",
        )
        return self._notice

    def review_published(self) -> None:
        """Without progress: if the current version was damaged in the store, write it again under its name."""
        notice = self._notice
        if notice is None:
            return
        try:
            self.store.read(notice.key, notice.nbytes, notice.sha256, 0.0)
        except StoreError as error:
            self.saving.problem(str(error), "the version is written and announced again")
            self.publish()

    def announce(self, notice: Notice) -> None:
        """Make `notice` known to the workers; in single mode the learner notifies the host agent."""
        self.leave_word()
        self.channel.announce(notice)
        if self.config.run.mode == "single":
            self.events.send(agent.NewVersion(notice))

    def leave_word(self) -> None:
        """Record the current version for a successor. Before slots of older segments are released.

        A successor that finds a later version than its FULL's collects again what it needs, with slots to spare.
        """
        counters = self.counters
        word = LearnerWord(self.version, counters.updates, counters.updates_lost, self.oldest_incarnation)
        self.channel.leave_word(word)

    def save_full(
        self, last: bool = False, replay: UniformReplay | None = None, without: Collection[int] = ()
    ) -> int | None:
        """Write FULL for the current version, with `replay` when given; returns its bytes, None when it failed.

        `without`: vector envs whose last segment was taken since the boundary, and is left out.

        Raises:
            ConfigError: Another launcher has taken the run over.
        """
        check_owner(Path(self.plan.run_dir), self.plan.run_id)
        arrays, rows = self._full_arrays(without), {}
        if replay is not None:
            arrays.update(replay_arrays(replay))
            rows = replay_rows(replay, self.source.columns)
        return self.fulls.write(Full(self.version, arrays, self._full_meta(), rows), last)

    def make_start_durable(self, full: Full | None, weights: Weights) -> None:
        """Before anything is announced: the FULL begun from, or else a first one, survives a power cut.

        A first FULL has `weights` alone: a learner made from them is the one that began.
        """
        if full is not None:
            version = full.version
            self._insist_on_start(lambda: self.store.sync_full(version))
            return
        arrays = {**prefixed("weights", weights), **prefixed("episodes", self.episodes.arrays())}
        first = Full(self.version, arrays, self._full_meta())
        self._insist_on_start(lambda: self.store.save_full(first, durable=True))

    def _full_meta(self) -> dict[str, object]:
        return {"counters": vars(self.counters), "written_at": time.time()}

    def _insist_on_start(self, write: Callable[[], object]) -> None:
        self.saving.insist("the initial full checkpoint", write, "the start of the run waits, retrying")

    def save_full_beside(self, replay: UniformReplay) -> None:
        """Begin to write FULL with `replay` while training continues; nothing while one is on its way.

        Raises:
            ConfigError: Another launcher has taken the run over.
        """
        check_owner(Path(self.plan.run_dir), self.plan.run_id)
        self.fulls.write_beside(lambda: self._full_beside(replay))

    def _full_beside(self, replay: UniformReplay) -> BackgroundFull:
        # Copies: the thread reads them while we go on.
        now = {**self._full_arrays(), **prefixed("sampler", replay.state())}
        arrays = {name: np.array(array) for name, array in now.items()}
        counters = dict(vars(self.counters), rows=list(self.counters.rows))
        full = Full(self.version, arrays, {"counters": counters, "written_at": time.time()})
        held = [TakenSegment(ref, meta) for ref, meta in replay.held()]
        return BackgroundFull(self.store, full, held, self.source.columns, self.source.is_held)

    def _full_arrays(self, without: Collection[int] = ()) -> dict[str, Array]:
        return {
            **prefixed("weights", self.learner.weights()),
            **prefixed("state", self.learner.state()),
            **prefixed("episodes", self.episodes.arrays(without)),
        }

    def restore_episodes(self, full: Full) -> None:
        """Returns so far, and where the env slots stand; the counters were read from FULL before."""
        self.episodes.load_arrays(unprefixed("episodes", full.arrays))

    def restore_learner(self, full: Full) -> None:
        """The same, once there is one."""
        state = unprefixed("state", full.arrays)
        if state:  # none in the first FULL of a run: the learner was made from its weights just now
            self.learner.load_state(unprefixed("weights", full.arrays), state)

    def ended(self, reason: str) -> None:
        """Report what the summary needs, after a last row of metrics where the last one is older."""
        c, final = self.counters, self.rates.summary()
        if c.env_steps != self._metrics_env_steps:
            self._send_metrics(time.monotonic())
        learning_starts = 0 if self.plan.on_policy else self.config.replay.learning_starts
        trained_steps = c.env_steps - learning_starts
        report = agent.Ended(
            reason=reason,
            env_steps=c.env_steps,
            env_steps_before=c.env_steps_before,
            updates=c.updates,
            updates_lost=c.updates_lost,
            episodes=self.episodes.total,
            train_return_mean_100=self.episodes.mean_return,
            solved_at_env_steps=c.solved_at_env_steps,
            solved_at_wall_s=c.solved_at_wall_s,
            policy_lag=self.lags.summary(),
            replay_ratio=c.updates / trained_steps if trained_steps > 0 else 0.0,
            weights_sha256=weights_sha256(self.learner.weights(), self.learner.network_names()),
            checkpoint_interval_s=self.fulls.interval_s,
            notice=self._notice,
            ledger=None if self._ledger is None else self._ledger.ledger(),
            **final,
        )
        self.events.send(report)

    def emit_metrics(self) -> None:
        """Report progress to the launcher, at most once in `METRICS_EVERY_S`: cheap to call."""
        now = time.monotonic()
        if now - self._metrics_at_s >= METRICS_EVERY_S:
            self._send_metrics(now)

    def _send_metrics(self, now: float) -> None:
        c, lag, since_s = self.counters, self.lags.summary(), now - self._metrics_at_s
        warm_up = {"env_steps_per_s": (c.env_steps - self._metrics_env_steps) / max(since_s, 1e-3)}
        self._metrics_at_s, self._metrics_env_steps = now, c.env_steps
        values = {
            "env_steps": c.env_steps,
            "updates": c.updates,
            "version": c.n,
            "episodes": self.episodes.total,
            "policy_lag_mean": lag["mean"],
            "policy_lag_max": lag["max"],
            "checkpoint_interval_s": self.fulls.interval_s,
            **(self.rates.since(5.0) or warm_up),
            **self._result,
            **schedule_of(self.algorithm, self.progress),
        }
        if not self.plan.on_policy:
            trained_steps = c.env_steps - self.config.replay.learning_starts
            values["replay_ratio"] = c.updates / trained_steps if trained_steps > 0 else 0.0
        if self.episodes.mean_return is not None:
            values["train_return_mean_100"] = self.episodes.mean_return
        if self.episodes.mean_length is not None:
            values["train_length_mean_100"] = self.episodes.mean_length
        self.events.send(agent.Metrics(figures_of(values)))


def publish(
    store: DataStore, version: Version, weights: Mapping[str, Array], progress: Progress, algorithm: Algorithm
) -> Notice:
    """Save `weights` as `version`; the notice that names them."""
    schedule = schedule_of(algorithm, progress)
    saved = store.save(version, weights, {"env_steps": str(progress.env_steps), "updates": str(progress.updates)})
    return Notice(version, saved.key, saved.nbytes, saved.sha256, progress.env_steps, progress.updates, schedule)
