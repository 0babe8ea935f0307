"""What an algorithm promises. A maker returns a new instance, always with the same configuration and env."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from zmqrl.acting.make_head import check_schedule, make_head
from zmqrl.acting.state import check_acting
from zmqrl.algorithms.base import Algorithm, OffPolicyLearner, OnPolicyLearner, check_batch, schedule_of
from zmqrl.config.codec import to_json
from zmqrl.errors import ConfigError
from zmqrl.networks.initial import parameter_shapes
from zmqrl.random_streams import stream
from zmqrl.replay.segment_replay import check_spec
from zmqrl.testing.expect import checks_of, is_frozen_config, is_same
from zmqrl.testing.experience import (
    SEED,
    acted,
    context_of,
    learn,
    observed,
    policy_of,
    progress_at,
    published,
    train,
    version_0,
)
from zmqrl.types import MODES, SpaceSpec

DISCRETE = SpaceSpec("discrete", (), "int64", 3)
CONTINUOUS = SpaceSpec("box", (2,), "float32", 0, (-1.0, -1.0), (1.0, 1.0))
VECTOR = SpaceSpec("box", (3,), "float32")
PIXELS = SpaceSpec("box", (2, 8, 8), "uint8")
"""Spaces for the env of a maker: `EnvSpec("toy", VECTOR, DISCRETE)`."""

AlgorithmMaker: TypeAlias = Callable[[], Algorithm]
"""For example `lambda: Mine(Mine.Config(), NetworkSection(hidden=(8,)), EnvSpec("toy", VECTOR, DISCRETE), 16, 2)`."""


def config_is_a_frozen_dataclass(make: AlgorithmMaker) -> None:
    """The keys of the section `algorithm` are validated against `Config`; the learner rebuilds it from JSON."""
    from pydantic import TypeAdapter

    algorithm = make()
    config = type(algorithm).Config
    is_frozen_config(config)
    text = json.dumps(to_json(algorithm.config))
    assert TypeAdapter(config).validate_json(text, strict=True) == algorithm.config, f"not the same from JSON: {text}"


def modes_are_named(make: AlgorithmMaker) -> None:
    """`modes` names the modes that the algorithm allows; the launcher refuses the others."""
    modes = type(make()).modes
    assert modes, "modes is empty"
    assert modes <= set(MODES), f"unknown modes: {sorted(modes - set(MODES))}"


def batches_are_announced_by_on_policy_algorithms_only(make: AlgorithmMaker) -> None:
    """`batch_segments`, the size of a batch in async, is at least 1 or None on-policy, and None off-policy."""
    try:
        check_batch(make())
    except ConfigError as error:
        raise AssertionError(str(error)) from error


def two_instances_agree(make: AlgorithmMaker) -> None:
    """The launcher and the learner each make an instance: network, acting, replay and statistics are the same."""
    one, other = make(), make()
    assert one.network() == other.network()
    assert one.acting() == other.acting()
    assert one.replay() == other.replay()
    is_same(one.statistics(), other.statistics(), "statistics")


def acting_is_of_the_network(make: AlgorithmMaker) -> None:
    """Workers act with the published arrays alone: every named layer and array of `acting` is among them."""
    algorithm = make()
    acting, weights = algorithm.acting(), published(algorithm)
    shapes = [name for name in parameter_shapes(algorithm.network()) if name in weights]
    for layer in acting.layers:
        if layer.name:
            own = [name for name in shapes if name.startswith(f"{layer.name}.")]
            assert own, f"layer {layer.name!r} of acting() has no published tensor in network()"
    missing = set(acting.arrays) - set(weights)
    assert not missing, f"arrays that acting() needs are not published: {sorted(missing)}"
    assert ({"obs_mean", "obs_scale"} <= set(weights)) == acting.normalise_obs
    assert (acting.action, acting.observation) == (algorithm.env.action, algorithm.env.observation)
    check_acting(acting, algorithm.segment_steps)


def extras_have_a_row_of_each_env(make: AlgorithmMaker) -> None:
    """An extra column is `[T, N, ...]`."""
    algorithm = make()
    for extra in algorithm.acting().extras:
        assert extra.shape[:2] == (algorithm.segment_steps, algorithm.num_envs), f"{extra.name}: {extra.shape}"


def workers_act_with_version_0(make: AlgorithmMaker) -> None:
    """A policy made of `acting` returns finite actions of the space, and repeats them bit for bit."""
    algorithm = make()
    one, other = acted(algorithm, SEED), acted(algorithm, SEED)
    is_same(one, other, "actions")
    assert all(np.isfinite(column).all() for column in one.values() if column.dtype.kind == "f"), "not finite"
    action = algorithm.env.action
    if action.choices:
        assert (one["action"] >= 0).all() and (one["action"] < np.array(action.nvec or action.n)).all()
    policy = policy_of(algorithm)
    obs = observed(algorithm, stream(SEED, "obs"), (algorithm.num_envs,))
    greedy = policy.act_greedily(obs, policy.zero_state(algorithm.num_envs))
    assert greedy.shape == (algorithm.num_envs, *algorithm.env.action.shape)


def acting_has_no_memory_of_its_own(make: AlgorithmMaker) -> None:
    """One policy acts for all vector envs of a worker in turn: each has the bits that it has alone.

    What a head or layer keeps from row to row belongs into the state of the spec, which each vector env has for itself.
    """
    algorithm = make()
    alone = [acted(algorithm, SEED + place) for place in range(2)]
    policy = policy_of(algorithm)
    together = [acted(algorithm, SEED + place, policy) for place in range(2)]
    for place in range(2):
        is_same(together[place], alone[place], f"columns of vector env {place}, acted by a policy that acts for two")


def replay_fits_a_segment(make: AlgorithmMaker) -> None:
    """Sequences, first priority and sampler of `replay` fit T and the columns of a segment."""
    algorithm = make()
    if not algorithm.on_policy or algorithm.held_batches:
        lead = (algorithm.segment_steps, algorithm.num_envs)
        shapes = {"reward": lead} | {column.name: column.shape for column in algorithm.acting().extras}
        check_spec(algorithm.replay(), shapes, observation=algorithm.env.observation)


def schedules_are_finite(make: AlgorithmMaker) -> None:
    """`schedule` and `learning_rate` are finite numbers over the whole run, and the head reads those of `schedule`."""
    algorithm = make()
    head = make_head(algorithm.acting(), algorithm.num_envs)
    for env_steps in (0, 1, 5_000, 10_000, 20_000):
        progress = dataclasses.replace(progress_at(), env_steps=env_steps)
        check_schedule(head, schedule_of(algorithm, progress), algorithm.env.receives_numbers)
        rate = algorithm.learning_rate(progress)
        assert rate is None or (math.isfinite(rate) and rate >= 0), f"learning_rate at {env_steps}: {rate}"


def the_learner_publishes_what_it_was_given(make: AlgorithmMaker) -> None:
    """Before the first batch `weights` returns version 0 bit for bit; `network_names` are those of `network`."""
    algorithm = make()
    learner, weights = algorithm.learner(context_of(algorithm)), published(algorithm)
    kind = OnPolicyLearner if algorithm.on_policy else OffPolicyLearner
    assert isinstance(learner, kind), f"on_policy is {algorithm.on_policy}, and the learner is {type(learner).__name__}"
    assert set(learner.network_names()) == set(weights) - set(algorithm.statistics())
    is_same(learner.weights(), weights, "weights")
    for name, array in learner.weights().items():
        assert array.flags.c_contiguous, f"{name} is not C-contiguous"
        assert array.dtype == weights[name].dtype, f"{name} is {array.dtype}, given was {weights[name].dtype}"


def an_update_runs(make: AlgorithmMaker) -> None:
    """A round of training raises nothing, and `PRIORITY` has one number per row, `[B]`; of sequences `[B, length]`."""
    algorithm = make()
    learn(algorithm, algorithm.learner(context_of(algorithm)), acted(algorithm, SEED), updates=1)


def published_weights_are_copies(make: AlgorithmMaker) -> None:
    """Training does not change arrays that `weights` returned before."""
    algorithm = make()
    learner = algorithm.learner(context_of(algorithm))
    before = learner.weights()
    frozen = {name: array.copy() for name, array in before.items()}
    train(algorithm, learner, range(2))
    is_same(before, frozen, "weights published before the training")


def training_changes_the_network(make: AlgorithmMaker) -> None:
    """Two batches change tensors of the network; weights and metrics stay finite, and updates are counted."""
    algorithm = make()
    learner = algorithm.learner(context_of(algorithm))
    before = learner.weights()
    updates, metrics = train(algorithm, learner, range(2))
    after = learner.weights()
    assert updates >= 1
    assert any(not np.array_equal(before[name], after[name]) for name in learner.network_names())
    assert all(np.isfinite(after[name]).all() for name in learner.network_names()), "weights are not finite"
    bad = {name: value for name, value in metrics.items() if not math.isfinite(float(value))}
    assert not bad, f"metrics are not finite: {bad}"


def training_is_deterministic(make: AlgorithmMaker) -> None:
    """Two learners with the same batches have the same bits: numbers of global random generators would differ.

    Also from weights in another order, as of a file.
    """
    algorithm = make()
    weights = version_0(algorithm)
    learners = [
        algorithm.learner(context_of(algorithm)),
        make().learner(context_of(algorithm, dict(reversed(weights.items())))),
    ]
    for learner in learners:
        train(algorithm, learner, range(2))
    is_same(learners[0].weights(), learners[1].weights(), "weights of two learners")


def a_restored_learner_continues_bit_for_bit(make: AlgorithmMaker) -> None:
    """`load_state` of `weights` and `state` in a new learner: the next batches lead to the same bits."""
    algorithm = make()
    straight, resumed = (make().learner(context_of(algorithm)) for _ in range(2))
    train(algorithm, straight, range(2))
    saved = {name: np.ascontiguousarray(array) for name, array in straight.state().items()}
    resumed.load_state(straight.weights(), dict(reversed(saved.items())))
    for learner in (straight, resumed):
        train(algorithm, learner, range(2, 4))
    is_same(straight.weights(), resumed.weights(), "weights after a resume")
    is_same(straight.state(), resumed.state(), "state after a resume")


ALGORITHM = checks_of(__name__)
