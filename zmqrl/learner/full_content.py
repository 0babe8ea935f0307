"""What a full checkpoint (FULL) holds, and how a learner is restored from it.

Arrays are named by part: `weights/` and `state/` of the learner, `before/` the weights of the version before (mode
pipelined), `episodes/` of the tracker, `sampler/`, `held/` and `held_metas` of the replay, `loaded/` of the replay of a
data set. The counters are plain numbers alongside.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from zmqrl.algorithms.base import BaseLearner
from zmqrl.bus_ends.learner_end import SegmentSource, TakenSegment
from zmqrl.config.codec import replace
from zmqrl.config.sections import LearnerSection
from zmqrl.data_stores.base import Full, prefixed, unprefixed
from zmqrl.data_stores.tensors import Rows
from zmqrl.errors import ConfigError
from zmqrl.learner.counters import RunProgress
from zmqrl.learner.publishing import PublishedWeights
from zmqrl.learning.package_cache import cpu_flags
from zmqrl.messages.process import ProblemReport
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.types import REPORT_COLUMN, Array, Notice, SegmentId, SegmentMeta, Version, Weights

if TYPE_CHECKING:
    from zmqrl.data_sets.rows import LoadedReplay

RENAMED_COUNTERS = {"updates_forgiven": "updates_offset", "leg": "attempt_started_at"}
"""Names in a FULL of 0.1, and the names of today."""


@cache
def made_with(learner: LearnerSection, device: str | None) -> dict[str, str]:
    """What the bits of a learner depend on in addition to its state: executor, threads, device, torch, instructions.

    `device`: model of the GPU, or cpu; None: nothing was computed yet.
    """
    return {
        "executor": learner.executor,
        "threads": str(learner.threads or 1),
        **({} if device is None else {"device": device}),
        "torch": version("torch"),
        "cpu": sha256(cpu_flags().encode()).hexdigest()[:16],
    }


def check_executor(full: Full, executor: str) -> None:
    """ConfigError when `full` was made with another one: its run would continue with other bits."""
    before = _stored(full).get("executor", executor)
    if before != executor:
        raise ConfigError(
            f"full checkpoint {full.version} was made with {before!r}, and a resumed run must keep it: "
            f"set learner.executor: {before}",
            key=("learner", "executor"),
            value=repr(executor),
        )


def changes_since(full: Full, learner: LearnerSection, device: str) -> ProblemReport | None:
    """The report for a `full` that was made with another device, CPU, torch or number of threads; None: with the same.

    What `full` does not store, as one of 0.1 or the first of a run, is not compared.
    """
    before, now = _stored(full), made_with(learner, device)
    changed = [
        "another type of CPU" if name == "cpu" else f"{name} {before[name]} (now {value})"
        for name, value in now.items()
        if before.get(name, value) != value
    ]
    if not changed:
        return None
    return ProblemReport(
        f"full checkpoint {full.version} was made with other hardware, software or threads than the learner now has: "
        f"{', '.join(changed)}",
        "the run continues; in single, sync and pipelined its weights may differ from those without the change",
    )


def _stored(full: Full) -> Mapping[str, str]:
    """`made_with` of its learner; a FULL of 0.1 has none."""
    stored: Any = full.meta.get("made_with", {})
    return stored  # type: ignore[no-any-return]


def full_of(
    progress: RunProgress,
    weights: Weights,
    state: Weights | None = None,
    without: Collection[int] = (),
    *,
    learner: LearnerSection,
    device: str | None = None,
) -> Full:
    """FULL without replay for the current version. `without`: see `EpisodeTracker.arrays`; `device`: `made_with`."""
    arrays = {
        **prefixed("weights", weights),
        **prefixed("state", state or {}),
        **prefixed("episodes", progress.episodes.arrays(without)),
    }
    made = made_with(learner, device)
    meta = {"counters": progress.counters.stored(), "written_at": time.time(), "made_with": made}
    return Full(progress.version, arrays, meta)


def with_before(full: Full, before: PublishedWeights) -> Full:
    """`full` with the version before it: the round after `full` is acted with that one."""
    notice = before.notice
    described = {"env_steps": notice.env_steps, "updates": notice.updates, "schedule": dict(notice.schedule)}
    arrays = {**full.arrays, **prefixed("before", before.weights)}
    return replace(full, arrays=arrays, meta={**full.meta, "version_before": described})


def stored_before(full: Full) -> PublishedWeights | None:
    """The version before `full`, if it holds one."""
    described: Any = full.meta.get("version_before")
    if described is None:
        return None
    version = Version(full.version.incarnation, full.version.n - 1)
    return PublishedWeights(Notice(version, "", 0, "", **described), unprefixed("before", full.arrays))


def with_loaded(full: Full, loaded: LoadedReplay) -> Full:
    """`full` with the state of the sampler of loaded rows, and the digest of the data set in place of the rows."""
    arrays = {**full.arrays, **prefixed("loaded", loaded.state())}
    return replace(full, arrays=arrays, meta={**full.meta, "data_set": loaded.sha256})


def with_replay(full: Full, replay: SegmentReplay, columns: Mapping[str, Array]) -> Full:
    """`full` with `replay`: the sampler's state, and the held rows, to be written from the slots themselves."""
    held = replay.held()
    slots = [ref.slot for ref, _ in held]
    arrays = {**full.arrays, **prefixed("sampler", replay.state())}
    arrays["held_metas"] = metas_array([meta for _, meta in held])
    return replace(full, arrays=arrays, rows={f"held/{name}": Rows(column, slots) for name, column in columns.items()})


def copy_with_sampler(full: Full, replay: SegmentReplay) -> Full:
    """A copy that stays as it is while training continues, with the sampler's state; `with_held` adds the segments."""
    arrays = {**full.arrays, **prefixed("sampler", replay.state())}
    return replace(full, arrays={name: np.array(array) for name, array in arrays.items()})


def with_held(full: Full, held: Sequence[TakenSegment], whole: Sequence[int], columns: Mapping[str, Array]) -> Full:
    """`full` of `copy_with_sampler` with those of the `held` segments that are at the places `whole`.

    `columns [k, T, N, ...]` are their rows. What the sampler knows of the others is left out.
    """
    arrays = dict(full.arrays)
    for name in [name for name in arrays if name.startswith("sampler/") and len(arrays[name]) == len(held)]:
        if arrays[name].ndim > 1:  # one row a segment
            arrays[name] = arrays[name][whole]
    metas = metas_array([held[place].meta for place in whole])
    return replace(full, arrays={**arrays, **prefixed("held", columns), "held_metas": metas})


def metas_array(metas: Sequence[SegmentMeta]) -> Array:
    """`[k, 6]`, as FULL holds them."""
    return np.array([(*meta.id, *meta.version, meta.rows) for meta in metas], np.int64).reshape(-1, 6)


def stored_counters(full: Full) -> dict[str, Any]:
    """The fields of `Counters` in `full`, under their names of today."""
    stored: Any = full.meta["counters"]
    return {RENAMED_COUNTERS.get(name, name): value for name, value in stored.items()}


def stored_weights(full: Full) -> Weights:
    """The weights in `full`."""
    return unprefixed("weights", full.arrays)


def has_state(full: Full) -> bool:
    """Whether `full` holds more of the learner than weights: not the first FULL of a run."""
    return any(name.startswith("state/") for name in full.arrays)


def load_learner(learner: BaseLearner, full: Full) -> None:
    """Restore a learner that was built from the weights of `full`."""
    if has_state(full):
        learner.load_state(stored_weights(full), unprefixed("state", full.arrays))


def held_segments(arrays: Weights) -> tuple[list[SegmentMeta], dict[str, Array]]:
    """What replay held, oldest first; nothing when FULL has no replay."""
    if "held_metas" not in arrays:
        return [], {}
    rows = arrays["held_metas"].tolist()
    metas = [SegmentMeta(SegmentId(*row[:3]), Version(*row[3:5]), row[5]) for row in rows]
    held = unprefixed("held", arrays)
    held.pop(REPORT_COLUMN, None)  # it was counted, and `env.report` may have changed
    return metas, held


def restore_segments(arrays: Weights, source: SegmentSource) -> list[TakenSegment]:
    """Put the segments of FULL back into slots; none when FULL has no replay."""
    metas, columns = held_segments(arrays)
    return source.restore(metas, columns) if metas else []


def refill(replay: SegmentReplay, arrays: Weights, held: Sequence[TakenSegment]) -> None:
    """Have an empty replay hold what it held, with the same priorities."""
    replay.load_state(unprefixed("sampler", arrays))
    for ref, meta in held:
        replay.add(ref, meta)
