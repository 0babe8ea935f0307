"""Experience and learners for the suites: acted with version 0 in an env of noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from zmqrl.acting.base import ActingContext, Place, Policy, noise_for
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.previous import PreviousStep
from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import state_columns
from zmqrl.algorithms.base import (
    Algorithm,
    LearnerContext,
    LearnResult,
    OffPolicyLearner,
    OnPolicyLearner,
    Progress,
    schedule_of,
)
from zmqrl.config.sections import ReplaySection
from zmqrl.networks.initial import initial_weights
from zmqrl.random_streams import stream
from zmqrl.replay.base import SegmentMeta, gather
from zmqrl.replay.segment_replay import build_replay
from zmqrl.testing.observations import observations
from zmqrl.types import ACTING_STATE, ACTING_STATE_END, FIXED_COLUMNS, Array, SegmentId, SlotRef, Version, Weights

SEED, SEGMENTS, UPDATES = 1, 4, 10
Learner: TypeAlias = OnPolicyLearner | OffPolicyLearner


def version_0(algorithm: Algorithm) -> dict[str, Array]:
    """Version 0."""
    return {**initial_weights(algorithm.network(), SEED), **algorithm.statistics()}


def published(algorithm: Algorithm) -> dict[str, Array]:
    """Version 0 as workers receive it."""
    spec = algorithm.network()
    return {name: array for name, array in version_0(algorithm).items() if not spec.is_learner_only(name)}


def context_of(algorithm: Algorithm, weights: Weights | None = None) -> LearnerContext:
    """On the CPU, beginning with `weights`, or with version 0."""
    replay = None if algorithm.on_policy else ReplaySection()
    return LearnerContext(weights or version_0(algorithm), "cpu", SEED, 10_000, replay)


def progress_at(rounds: int = 0) -> Progress:
    """After so many rounds."""
    return Progress(SEED, 100 * rounds, UPDATES * rounds, 10_000, version=Version(0, rounds))


def observed(algorithm: Algorithm, rng: np.random.Generator, lead: tuple[int, ...]) -> Array:
    """Random observations `[*lead, ...]` of its env."""
    space = algorithm.env.observation
    if space.kind != "box":
        return observations(space, rng, lead)
    drawn = rng.normal(size=(*lead, *space.shape)) * 40 + 100
    return drawn.clip(0, 255).astype(space.dtype) if space.dtype == "uint8" else drawn.astype(space.dtype)


def policy_of(algorithm: Algorithm) -> Policy:
    """Policy of `algorithm` with version 0."""
    policy = make_policy(algorithm.acting())
    policy.load(published(algorithm), schedule_of(algorithm, progress_at()))
    return policy


def acted(algorithm: Algorithm, seed: int, policy: Policy | None = None) -> dict[str, Array]:
    """Slots `[SEGMENTS, T, N, ...]` of an env of noise with NEXT_STEP autoreset, acted by the algorithm's policy.

    Its vector envs have one segment each.
    """
    rng, steps, envs = stream(seed, "testing"), algorithm.segment_steps, algorithm.num_envs
    acting, lead = algorithm.acting(), (SEGMENTS, steps, envs)
    policy = policy or policy_of(algorithm)
    ended = rng.random(lead) < 0.1
    valid = np.ones(lead, dtype=bool)
    for t in range(1, steps):
        valid[:, t] = ~ended[:, t - 1]
        ended[:, t] &= valid[:, t]
    truncated = ended & (rng.random(lead) < 0.3)
    obs = observed(algorithm, rng, (SEGMENTS, steps + 1, envs))
    action = np.zeros((*lead, *algorithm.env.action.shape), algorithm.env.action.dtype)
    choices = algorithm.env.action.choices
    size = 0 if choices else math.prod(algorithm.env.action.shape)
    noises = [noise_for(rng, steps, envs, size, acting.noise, len(choices)) for _ in range(SEGMENTS)]
    reward = np.where(valid, rng.normal(size=lead), 0.0).astype(np.float32)
    fixed = (obs, action, reward, ended & ~truncated, truncated, valid)
    added = (*acting.extras, *state_columns(acting, steps, envs))
    extras = {column.name: np.zeros((SEGMENTS, *column.shape), column.dtype) for column in added}
    columns = {**dict(zip(FIXED_COLUMNS, fixed, strict=True)), **extras}
    for segment, noise in enumerate(noises):
        filled = {name: column[segment] for name, column in columns.items()}
        context = ActingContext(noise, filled, Place.of(segment, SEGMENTS, envs), policy.zero_state(envs))
        _fill(filled, policy, acting, context)
    return columns


def _fill(columns: Mapping[str, Array], policy: Policy, acting: ActingSpec, context: ActingContext) -> None:
    """Act in a segment: its actions, extras and states follow from all other columns."""
    obs, valid, state, steps = columns["obs"], columns["valid"], context.state, len(columns["valid"])
    every = acting.state_every or steps
    previous = PreviousStep(acting.action, valid.shape[1]) if acting.previous else None
    for t in range(steps):
        if t % every == 0:
            for name, array in state.items():
                columns[ACTING_STATE + name][t // every] = array
        columns["action"][t] = policy.act(obs[t], t, context)
        if previous is not None:
            previous.write(state, columns["action"][t], columns["reward"][t])
        for name, array in state.items():
            array[~valid[t]] = 0.0
            columns[ACTING_STATE_END + name][0] = array
    if context.outputs:
        policy.complete(obs[steps], columns, context)


def train(algorithm: Algorithm, learner: Learner, seeds: Sequence[int]) -> tuple[int, dict[str, Any]]:
    """Rounds of training: updates that were done, and the metrics of the last round."""
    updates, metrics = 0, {}
    for seed in seeds:
        result = learn(algorithm, learner, acted(algorithm, SEED + seed), seed)
        updates, metrics = updates + result.updates, dict(result.metrics)
    return updates, metrics


def learn(
    algorithm: Algorithm, learner: Learner, slots: Mapping[str, Array], number: int = 0, updates: int = UPDATES
) -> LearnResult:
    """Round `number` of training, on these slots; `updates` of them off-policy."""
    refs = [SlotRef(slot, 1) for slot in range(SEGMENTS)]
    rows = slots["valid"].sum(axis=(1, 2))
    metas = [SegmentMeta(SegmentId(v, 0, number), Version(0, number), int(rows[v])) for v in range(SEGMENTS)]
    batch, progress = gather(slots, refs, metas), progress_at(number)
    if isinstance(learner, OnPolicyLearner) and not algorithm.held_batches:
        return learner.learn(batch, progress)
    replay = build_replay(slots, slots["valid"].size, SEED, algorithm.replay(), algorithm.env.observation)
    for ref, meta in zip(refs, metas, strict=True):
        replay.add(ref, meta)
    if isinstance(learner, OnPolicyLearner):
        learner.replay = replay
        return learner.learn(batch, progress)
    learner.observe(batch)
    return learner.update(replay, updates, progress)
