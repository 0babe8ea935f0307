"""The loop of mode offline: updates on a data set, published at the same updates in every run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zmqrl.algorithms.base import Algorithm, OffPolicyLearner
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.base import Full, unprefixed
from zmqrl.errors import ConfigError
from zmqrl.learner.session import Session
from zmqrl.replay.base import Replay

if TYPE_CHECKING:
    from zmqrl.data_sets.rows import LoadedReplay

UPDATES_PER_VERSION = 100
"""Versions end at its multiples: rates and schedules are read once per version, so a resume reads the same."""


def loaded_replay(plan: RunPlan, algorithm: Algorithm, full: Full | None) -> LoadedReplay | None:
    """Replay with the rows of `replay.load`, as `full` has its priorities; None without this key.

    ConfigError as of `read_data_set`, and when `full` is of another data set.
    """
    if plan.config.replay.load is None:
        return None
    from zmqrl.data_sets.minari_files import read_data_set  # most learners start without
    from zmqrl.data_sets.rows import LoadedReplay, columns_of, digest_of

    section, path = plan.config.env, plan.config.replay.load
    episodes = read_data_set(Path(path), plan.env)
    sha256 = digest_of(episodes)
    if full is not None and full.meta.get("data_set", sha256) != sha256:
        what = f"is not the data set of full checkpoint {full.version}: its content is another"
        fix = "restore it, or start a new run with --init-from"
        raise ConfigError(what, key=("replay", "load"), value=repr(path), is_subject=True, fix=fix)
    state = None if full is None else unprefixed("loaded", full.arrays)
    columns, spec = columns_of(episodes, section.segment_steps, section.num_envs), algorithm.replay()
    return LoadedReplay(columns, plan.config.run.seed, spec, plan.env.observation, state, sha256)


def run_offline(session: Session, learner: OffPolicyLearner, replay: Replay) -> str:
    """Train until a reason to end; the last version is saved and not announced."""
    counters, checkpoints = session.progress.counters, session.checkpoints
    total = session.plan.config.run.stop_at_updates
    while True:
        due = UPDATES_PER_VERSION - counters.updates % UPDATES_PER_VERSION
        if total is not None:
            due = min(due, total - counters.updates)
        with session.training() as progress:
            session.count_updates(learner.update(replay, due, progress))
        reason = session.advance_version()
        if reason is not None or checkpoints.is_due():
            checkpoints.write(learner, last=reason is not None)
        session.publisher.publish(learner.weights(), announce=reason is None)
        if reason is not None:
            return reason
