"""What a run in pipelined comes to, in one process and thread: rounds in order, each acted with the version before."""

from __future__ import annotations

from typing import Any

import numpy as np

from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import LearnerContext, OnPolicyLearner, Progress, schedule_of
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.config.codec import from_json
from zmqrl.config.plan import RunPlan
from zmqrl.envs.vector import make_vector_env
from zmqrl.learner.reporting import weights_sha256
from zmqrl.networks.initial import initial_weights
from zmqrl.replay.base import gather
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.rollout.collector import Collector
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version


def pipelined_reference(plan: RunPlan) -> dict[str, Any]:
    """`weights_sha256`, `env_steps` and `updates`; the first round, and no other, has a policy lag of 0."""
    config, env, seed, replay_of = plan.config, plan.config.env, plan.config.run.seed, plan.config.replay
    algorithm, acting, horizon = make_algorithm(config, plan.env), from_json(ActingSpec, plan.acting), config.horizon
    weights = {**initial_weights(algorithm.network(), seed), **algorithm.statistics()}
    given = None if plan.on_policy else replay_of
    learner = algorithm.learner(LearnerContext(weights, "cpu", seed, horizon, given, config.learner.executor))
    policy, collectors = make_policy(acting), []
    for v in range(env.vector_envs):
        vector_env = make_vector_env(env, plan.env, "pipelined", seed, v, 0)
        collectors.append(Collector(vector_env, policy, acting, seed, v, 0, env.vector_envs))
        collectors[v].start()
    free = list(range(plan.held_segments + env.vector_envs))
    columns = {c.name: np.zeros((len(free), *c.shape), c.dtype) for c in plan.columns}
    of_replay = plan.held_segments, seed, algorithm.replay(), algorithm.env.observation, config.continues_episodes
    replay = SegmentReplay(columns, *of_replay) if plan.held_segments else None
    versions: list[tuple[Any, Any]] = []
    env_steps = updates = 0
    while True:
        n, progress = len(versions), Progress(seed, env_steps, updates, horizon, config.run.debug)
        versions.append((learner.weights(), schedule_of(algorithm, progress)))
        if env_steps >= config.run.total_env_steps:
            sha256 = weights_sha256(learner.weights(), learner.network_names())
            return {"weights_sha256": sha256, "env_steps": env_steps, "updates": updates}
        acted_with = max(0, n - 1)
        policy.load(*versions[acted_with])
        refs, metas = [SlotRef(free.pop(), 1) for _ in collectors], []
        for v, collector in enumerate(collectors):
            segment = {name: column[refs[v].slot] for name, column in columns.items()}
            rows = collector.collect(segment, n, lambda _: None, lambda: False)
            metas.append(SegmentMeta(SegmentId(v, 0, n), Version(0, acted_with), rows or 0))
        env_steps += sum(meta.rows for meta in metas)
        progress = Progress(seed, env_steps, updates, horizon, config.run.debug, Version(0, n))
        batch = gather(columns, refs, metas)
        added = [replay.add(ref, meta) for ref, meta in zip(refs, metas, strict=True)] if replay is not None else refs
        if isinstance(learner, OnPolicyLearner):
            learner.replay = replay
            updates += learner.learn(batch, progress).updates
        else:
            learner.observe(batch)
            assert replay is not None
            due = int(max(0, env_steps - replay_of.learning_starts) * replay_of.ratio + 1e-9) - updates
            updates += learner.update(replay, due, progress).updates if due > 0 and replay.size else 0
        free += [ref.slot for ref in added if ref is not None]
