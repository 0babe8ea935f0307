"""The start state of a learner: new, from FULL in a new arena, or from FULL in the arena of one that died."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.start.weights import start_weights
from zmqrl.broker.events import RESUMED_SHIFT
from zmqrl.bus_ends.learner_end import LearnerChannel, LearnerEnds, TakenSegment
from zmqrl.config.codec import replace
from zmqrl.config.plan import INITIAL, Boot, RunPlan
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore, Full
from zmqrl.data_stores.no_full import check_nothing_loads, no_full
from zmqrl.errors import ConfigError, StoreError
from zmqrl.learner.counters import Counters
from zmqrl.learner.full_content import has_state, held_segments, restore_segments, stored_counters
from zmqrl.learner.retrying_writer import RetryingWriter
from zmqrl.logs.events import EventPipe
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.limiter import NO_LIMIT
from zmqrl.types import Version, Weights


@dataclass(frozen=True)
class PublishedVersion:
    """What was published last, to start from where no FULL can be loaded."""

    version: Version
    weights: Weights
    """Weights with the statistics that they depend on, as far as the version has them."""
    missing: tuple[str, ...]
    """Learner-only networks and statistics that it lacks."""
    env_steps: int
    updates: int


@dataclass(frozen=True)
class StartState:
    """What a learner starts from."""

    counters: Counters
    full: Full | None = None
    version: PublishedVersion | None = None
    """async: in place of FULL; in sync the run would have other bits than from its beginning."""
    passed_over: PublishedVersion | None = None
    """async: it lacks networks that only a learner has, so the learner starts from the older FULL, or from version 0.

    Next to untrained critics the actor would lose what it has learned. Networks of one moment learn from the replay,
    which is in the arena: see decision 0033.
    """
    held: Sequence[TakenSegment] = ()
    """What replay holds, oldest first: the segments of FULL."""
    oldest_incarnation: int = 0
    """Segments of earlier incarnations are abandoned: the learner rolled back."""
    counted: Sequence[tuple[int, int]] = ()
    """async: segments before (incarnation, index) of each vector env are in `counters.env_steps` already."""


def await_store(boot: Boot, store: DataStore, channel: LearnerChannel, events: EventPipe) -> None:
    """Wait for a store that is away: without it a replaced learner would begin at env step 0.

    A learner leaves its record in the arena after it has saved a version. StoreError after `store.wait_s`.
    """

    def check() -> None:
        if store.newest() is None and not _has_full(store):
            what = "is empty, but this run has written there: the store is unavailable"
            raise StoreError(what, place=boot.plan.store_path)

    if boot.spawn > 0 and channel.last_record() is not None:
        writer = RetryingWriter(events, boot.plan.config.store.wait_s)
        writer.retry_until("the store", check, "the start of the replacement learner waits, retrying")


def _has_full(store: DataStore) -> bool:
    try:
        return store.newest_full() is not None
    except StoreError:  # damaged ones: `load_start_state` decides what follows
        return True


def load_start_state(boot: Boot, algorithm: Algorithm, store: DataStore, ends: LearnerEnds) -> StartState:
    """Call before anything is announced. `TrainingFailed` when the run cannot continue."""
    plan = boot.plan
    if boot.spawn == 0 and not plan.resume:
        return StartState(_new_counters(boot))
    full = _newest_full(plan, store, boot.spawn)
    counters = _counters(boot, store, ends.channel, full)
    found = None
    if not plan.config.mode.deterministic and not plan.from_scratch:
        found = _published(store, full, algorithm)
    published, passed_over = (None, found) if algorithm.network().learner_only else (found, None)
    if published is not None:
        full, counters = None, _at(published, counters, boot.spawn == 0)
    # In single mode the slots died with the learner; and before the first notice nothing was leased.
    if plan.config.mode.in_process or boot.spawn == 0 or ends.channel.last_record() is None:
        held = restore_segments(full.arrays, ends.source) if full is not None else []
        return StartState(_rebased(plan, counters), full, published, passed_over, held)
    if not plan.config.mode.deterministic:
        return replace(_resume(plan, counters, ends, full, published), passed_over=passed_over)
    metas, columns = held_segments(full.arrays) if full is not None else ([], {})
    at = Version(counters.incarnation, counters.n)
    again = ends.source.reattach(at, metas, columns)
    if again.rolled_back:
        ends.channel.roll_back(counters.rows[: plan.config.env.vector_envs])
    return StartState(counters, full, held=again.replay, oldest_incarnation=again.oldest_incarnation)


def _newest_full(plan: RunPlan, store: DataStore, spawn: int) -> Full | None:
    """ConfigError when there is none and a resume must not begin at env step 0."""
    try:
        full = store.newest_full()
    except StoreError:
        if not plan.from_scratch or spawn > 0:
            raise
        full = None
    if spawn == 0:  # of an earlier attempt, in a store that the launcher may not see
        check_nothing_loads(plan, full)
    if full is None and plan.full_required:
        raise no_full(plan, store.passed_over())
    return full


def _published(store: DataStore, full: Full | None, algorithm: Algorithm) -> PublishedVersion | None:
    """The newest version, where no FULL is left but the first of the run, which holds initial weights alone."""
    if full is not None and has_state(full):
        return None
    found = store.newest()
    if found is None or (full is not None and found[0] <= full.version):
        return None
    arrays, meta = tensors.parse(found[1])
    weights, missing = start_weights(arrays, meta, algorithm)
    return PublishedVersion(found[0], weights, missing, int(meta["env_steps"]), int(meta["updates"]))


def _at(published: PublishedVersion, counters: Counters, resumed: bool) -> Counters:
    """The counters of that version; where the arena is another one, the run continues from its env steps."""
    lost = max(0, counters.updates_lost - published.updates)
    counters = replace(counters, n=published.version.n, updates=published.updates, updates_lost=lost)
    if not resumed:
        return counters
    env_steps = max(counters.env_steps, published.env_steps)
    return replace(counters, env_steps=env_steps, env_steps_before=env_steps)


def _resume(
    plan: RunPlan, counters: Counters, ends: LearnerEnds, full: Full | None, published: PublishedVersion | None
) -> StartState:
    """async: the stream records count, also what the predecessor took and this learner never sees."""
    positions, base = ends.source.stream_positions(), ends.channel.base_env_steps()
    # A predecessor may have begun this attempt from a newer FULL, which is damaged by now.
    before = counters.env_steps_before if base is None else base
    env_steps = before + sum(stream.rows for stream in positions)
    counted = [(stream.incarnation, stream.next_index) for stream in positions]
    counters = replace(counters, env_steps=env_steps, env_steps_before=before)
    return StartState(_rebased(plan, counters), full, published, counted=counted)


def _rebased(plan: RunPlan, counters: Counters) -> Counters:
    """async, off-policy: updates that are lost, or were due when the last learner ended, are not repeated.

    All at once on a replay that may receive no new rows meanwhile, they would overfit it: see decision 0015.
    """
    if plan.config.mode.deterministic or plan.on_policy:
        return counters
    due = replace(counters, updates_offset=0).updates_due(plan.config.replay, NO_LIMIT)
    return replace(counters, updates_offset=due)


def _new_counters(boot: Boot) -> Counters:
    streams = boot.plan.streams
    return Counters(
        schedule_env_steps=boot.plan.config.horizon,
        attempt_started_at=boot.plan.started_at,
        rows=[0] * streams,
        positions=[(-1, 0)] * streams,
    )


def _counters(boot: Boot, store: DataStore, channel: LearnerChannel, full: Full | None) -> Counters:
    """Counters of FULL under the next incarnation, else new ones."""
    new = _new_counters(boot)
    stored = stored_counters(full) if full is not None else {}
    horizon = boot.plan.config.run.schedule_env_steps or stored.get("schedule_env_steps", new.schedule_env_steps)
    counters = replace(new, **{**stored, "schedule_env_steps": horizon})
    newest, record = store.newest(), channel.last_record()
    versions = (full.version if full else None, newest[0] if newest else None, record.version if record else None)
    seen = max((version for version in versions if version is not None), default=Version(0, 0))
    lost = counters.updates_lost
    if record is not None:
        lost = record.updates_lost + max(0, record.updates - counters.updates)
    elif newest is not None and full is not None and newest[0] > full.version:
        lost += max(0, int(tensors.parse(newest[1])[1]["updates"]) - counters.updates)
    counters = replace(counters, incarnation=seen.incarnation + 1, updates_lost=lost)
    is_of_this_attempt = stored.get("attempt_started_at") == new.attempt_started_at
    if full is not None and (not is_of_this_attempt or boot.plan.config.mode.in_process):
        # FULL is of an earlier attempt, in whose arena all of its segments were.
        positions = [((full.version.incarnation + 1) << RESUMED_SHIFT, 0)] * len(new.rows)
        before = max(counters.env_steps, _summed_up(boot.plan))
        counters = replace(counters, attempt_started_at=new.attempt_started_at, rows=new.rows, positions=positions)
        counters = replace(counters, env_steps=before, env_steps_before=before)
    return counters


def _summed_up(plan: RunPlan) -> int:
    """async: env steps of the attempt before, also those stored after its last FULL; 0 when it was not summed up."""
    if plan.config.mode.deterministic:
        return 0
    try:
        return int(json.loads(Path(plan.run_dir, "summary.json").read_text(encoding="utf-8"))["env_steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def with_learner_only(algorithm: Algorithm, plan: RunPlan, weights: Weights) -> Weights:
    """`weights`, and the first ones of the learner-only tensors that they lack; a full checkpoint replaces these."""
    spec = algorithm.network()
    return {**initial_weights(spec, plan.config.run.seed), **weights} if spec.learner_only else weights


def version_0(plan: RunPlan, algorithm: Algorithm) -> Weights:
    """Random, or as `run.init_from` names them: the launcher has put those into the run directory and checked them."""
    spec: NetworkSpec = algorithm.network()
    drawn = {**initial_weights(spec, plan.config.run.seed), **algorithm.statistics()}
    if plan.config.run.init_from is None:
        return drawn
    path = Path(plan.run_dir, INITIAL)
    try:
        content = path.read_bytes()
        tensors.verify(content)
    except (OSError, StoreError) as error:
        raise ConfigError(
            f"{path} cannot be loaded: {error}", key=("run", "init_from"), fix="start a new run"
        ) from error
    return {**drawn, **tensors.parse(content)[0]}
