"""What a spec declares beyond layers and a head: options, the place of an env in the run, further noise."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pytest

from tests.support.raising import fields, raises
from zmqrl.acting.base import ActingContext, Place, noise_for
from zmqrl.acting.make_head import check_schedule, make_head
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec, ActingState, NoiseSpec
from zmqrl.acting.state import check_acting
from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.errors import ConfigError
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, ColumnSpec, SpaceSpec

N, T, A = 4, 3, 3
OBS = SpaceSpec("box", (2,), "float32")
DISCRETE = SpaceSpec("discrete", (), "int64", n=5)
BOX = SpaceSpec("box", (A,), "float32", low=(-2.0, -1.0, 5.0), high=(2.0, 1.0, 7.0))
UNBOUNDED = SpaceSpec("box", (A,), "float32")
UNIFORM = NoiseSpec("uniform", A, "uniform")
LADDER = {"ladder": 7.0}


def spec_of(head: str, action: SpaceSpec = DISCRETE, outputs: int = 5, **more: object) -> ActingSpec:
    arrays = ("log_std",) if head == "gaussian" and outputs == A else ()
    return ActingSpec((LayerSpec("linear", "p", 2, outputs),), head, action, OBS, arrays=arrays, **more)  # type: ignore[arg-type]


def weights(outputs: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    drawn = {"p.weight": (outputs, 2), "p.bias": (outputs,), "log_std": (A,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in drawn.items()}


def test_a_spec_with_everything_travels_as_json() -> None:
    spec = spec_of(
        "epsilon_greedy",
        options=LADDER,
        noise=(NoiseSpec("noisy", 7), UNIFORM),
        state=(ActingState("core", 16),),
        state_every=8,
    )
    assert from_json(ActingSpec, json.loads(json.dumps(to_json(spec)))) == spec
    assert from_json(ActingSpec, to_json(spec_of("categorical"))) == spec_of("categorical")


def test_declared_noise_is_drawn_after_that_of_every_head() -> None:
    """So that a run without any keeps its bits."""
    further = (NoiseSpec("noisy", 7), UNIFORM)
    before = noise_for(np.random.default_rng(3), T, N, 2)
    after = noise_for(np.random.default_rng(3), T, N, 2, further)
    assert before.uniform.tobytes() == after.uniform.tobytes()
    assert before.normal.tobytes() == after.normal.tobytes()
    assert (before.further, list(after.further)) == ({}, ["noisy", "uniform"])
    assert after.further["noisy"].shape == (T, N, 7)
    assert after.further["uniform"].shape == (T, N, A)
    assert after.further["uniform"].min() >= 0 and after.further["uniform"].max() < 1
    assert after.further["noisy"].min() < 0


def test_a_place_is_the_number_of_the_env_in_the_run() -> None:
    assert Place.of(2, 4, 3).slots.tolist() == [6, 7, 8]
    assert Place.of(2, 4, 3).total == 12
    assert Place.of(5, 4, 3).slots.tolist() == [3, 4, 5], "of a worker that was added during the run"


def test_a_per_slot_epsilon_schedule() -> None:
    policy = make_policy(spec_of("epsilon_greedy", options=LADDER))
    policy.load(weights(5), {"epsilon": 0.4})
    obs = np.random.default_rng(2).standard_normal((N, 2)).astype(np.float32)
    greedy = policy.act_greedily(obs)
    noise = noise_for(np.random.default_rng(4), 4000, N, 0)
    for vector_env in (0, 1, 0):  # one policy serves them in turn
        place = Place.of(vector_env, 2, N)
        context = ActingContext(noise, {}, place)
        expected = 0.4 ** (1 + 7 * place.slots / (2 * N - 1))
        other = np.mean([policy.act(obs, t, context) != greedy for t in range(4000)], axis=0)
        np.testing.assert_allclose(other, expected * 4 / 5, atol=0.02)
    policy.load(weights(5), {"epsilon": 0.9})
    other = np.mean([policy.act(obs, t, context) != policy.act_greedily(obs) for t in range(4000)], axis=0)
    np.testing.assert_allclose(other, 0.9 ** (1 + 7 * place.slots / (2 * N - 1)) * 4 / 5, atol=0.02)
    alone = make_policy(spec_of("epsilon_greedy", options=LADDER))
    alone.load(weights(5), {"epsilon": 1.0})
    alone.act(obs[:1], 0, ActingContext(noise_for(np.random.default_rng(4), 1, 1, 0), {}, Place.of(0, 1, 1)))


@pytest.mark.parametrize(
    ("head", "options", "fault"),
    [
        (
            "categorical",
            {"temperature": 2.0},
            fields(what="head 'categorical' has no options ['temperature'], only []"),
        ),
        (
            "epsilon_greedy",
            {"ladder": -1.0},
            fields(what="head 'epsilon_greedy': option ladder -1.0 must be at least 0"),
        ),
    ],
)
def test_options_that_are_not_those_of_the_head(head: str, options: dict[str, float], fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        make_head(spec_of(head, options=options), N)


NOISY = ActingSpec((LayerSpec("noisy", "p", 2, 5),), "epsilon_greedy", DISCRETE, OBS, noise=(NoiseSpec("p", 7),))


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_a_noisy_layer_acts_with_the_noise_of_its_row_and_greedily_without(runtime: Literal["numpy", "torch"]) -> None:
    spec = replace(NOISY, runtime=runtime)
    check_acting(spec, 12)
    policy, obs = make_policy(spec), np.random.default_rng(2).standard_normal((N, 2)).astype(np.float32)
    drawn = {name: value * 5.0 for name, value in weights(5).items()}
    policy.load({**drawn, "p.weight_sigma": drawn["p.weight"], "p.bias_sigma": drawn["p.bias"]}, {"epsilon": 0.0})
    greedy = policy.act_greedily(obs)
    noise = noise_for(np.random.default_rng(4), 200, N, 0, spec.noise)
    context = ActingContext(noise, {}, Place.of(0, 1, N))
    found = np.array([policy.act(obs, t, context) for t in range(200)])
    assert all(len(set(column)) > 1 for column in found.T), "the noise has no effect"
    assert (found == np.array([policy.act(obs, t, context) for t in range(200)])).all()
    assert (policy.act_greedily(obs) == greedy).all()
    noise.further["p"][...] = 0.0
    assert (policy.act(obs, 0, context) == greedy).all()


WARM = spec_of("squashed_gaussian", BOX, 2 * A, noise=(UNIFORM,))
COLD = spec_of("squashed_gaussian", BOX, 2 * A)


@pytest.mark.parametrize(
    ("spec", "schedule"),
    [
        (spec_of("categorical"), {}),
        (spec_of("epsilon_greedy"), {"epsilon": 0.1}),
        (spec_of("epsilon_greedy", options=LADDER), {"epsilon": 0.4}),
        (spec_of("deterministic_noise", BOX, A, noise=(UNIFORM,)), {"noise": 0.1, "uniform": 1.0}),
        (WARM, {"uniform": 1.0}),
        (COLD, {}),
    ],
)
def test_a_head_reads_these_values_of_the_schedule(spec: ActingSpec, schedule: dict[str, float]) -> None:
    head = make_head(spec, N)
    check_schedule(head, schedule)
    assert head.reads == set(schedule)
    head.load(weights(2), schedule)


@pytest.mark.parametrize(
    ("spec", "schedule", "fault"),
    [
        (
            spec_of("epsilon_greedy"),
            {},
            fields(what="head 'epsilon_greedy' reads ['epsilon'] of the algorithm's schedule(), and it gives none"),
        ),
        (
            spec_of("epsilon_greedy"),
            {"epsilonn": 0.1},
            fields(
                what="head 'epsilon_greedy' reads ['epsilon'] of the algorithm's schedule(), and it gives ['epsilonn']"
            ),
        ),
        (
            spec_of("categorical"),
            {"epsilon": 0.1},
            fields(what="head 'categorical' does not read ['epsilon'] of the algorithm's schedule()"),
        ),
        (
            spec_of("epsilon_greedy"),
            {"epsilon": 0.1, "noise": 0.1},
            fields(
                what="head 'epsilon_greedy' does not read ['noise'] of the algorithm's schedule(), only ['epsilon']"
            ),
        ),
        (
            WARM,
            {},
            fields(what="head 'squashed_gaussian' reads ['uniform'] of the algorithm's schedule(), and it gives none"),
        ),
        (COLD, {"uniform": 1.0}, fields(fix="declare NoiseSpec('uniform', 3, 'uniform') in acting()")),
    ],
)
def test_a_schedule_that_does_not_fit_the_head(
    spec: ActingSpec, schedule: dict[str, float], fault: dict[str, Any]
) -> None:
    with raises(ConfigError, **fault):
        check_schedule(make_head(spec, N), schedule)


HEADS = [("squashed_gaussian", 2 * A), ("deterministic_noise", A), ("gaussian", A), ("gaussian", 2 * A)]


@pytest.mark.parametrize(("head", "outputs"), HEADS)
def test_a_warm_up_with_uniform_actions(head: str, outputs: int) -> None:
    steps = 2000
    plain, spec = (spec_of(head, BOX, outputs, noise=noise) for noise in ((), (UNIFORM,)))
    obs = np.random.default_rng(2).standard_normal((N, 2)).astype(np.float32)
    low, high = np.array(BOX.low), np.array(BOX.high)
    found = {}
    for name, some, share in (("plain", plain, 0.0), ("none", spec, 0.0), ("half", spec, 0.5), ("all", spec, 1.0)):
        policy = make_policy(some)
        policy.load(weights(outputs), {"noise": 0.1, "uniform": share})
        noise = noise_for(np.random.default_rng(4), steps, N, A, spec.noise)
        context = ActingContext(noise, {}, Place.of(0, 1, N))
        found[name] = np.array([policy.act(obs, t, context) for t in range(steps)])
        assert found[name].dtype == np.float32
    assert found["none"].tobytes() == found["plain"].tobytes()
    uniform = found["all"].reshape(-1, A)
    assert (uniform >= low).all() and (uniform <= high).all()
    np.testing.assert_allclose(uniform.mean(axis=0), (low + high) / 2, atol=0.05 * (high - low).max())
    np.testing.assert_allclose(uniform.std(axis=0), (high - low) / 12**0.5, rtol=0.05)
    assert np.abs(np.corrcoef(uniform.T) - np.eye(A)).max() < 0.05
    drawn = (found["half"] == found["all"]).all(axis=2)
    assert (found["half"][~drawn] == found["plain"][~drawn]).all()
    assert drawn.mean() == pytest.approx(0.5, abs=0.03)


LOG_PROB = (ColumnSpec("log_prob", "float32", (T, N)),)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (
            spec_of("deterministic_noise", BOX, A, noise=(NoiseSpec("uniform", 2, "uniform"),)),
            fields(value="NoiseSpec(name='uniform', size=2, distribution='uniform')", fix=f"declare {UNIFORM}"),
        ),
        (
            spec_of("deterministic_noise", BOX, A, noise=(NoiseSpec("uniform", A),)),
            fields(value="NoiseSpec(name='uniform', size=3, distribution='normal')", fix=f"declare {UNIFORM}"),
        ),
        (
            spec_of("gaussian", UNBOUNDED, A, noise=(UNIFORM,)),
            fields(what="head 'gaussian': uniform actions need an action space that is bounded on every side"),
        ),
        (
            spec_of("gaussian", BOX, A, noise=(UNIFORM,), extras=LOG_PROB),
            fields(what="head 'gaussian': the extra 'log_prob' is not that of uniform actions; leave out one"),
        ),
        (
            spec_of("squashed_gaussian", BOX, 2 * A, noise=(UNIFORM,), extras=LOG_PROB),
            fields(what="head 'squashed_gaussian': the extra 'log_prob' is not that of uniform actions; leave out one"),
        ),
    ],
)
def test_a_warm_up_that_cannot_be(spec: ActingSpec, fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        make_head(spec, N)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (
            spec_of("categorical", noise=(NoiseSpec("a", 1), NoiseSpec("a", 2))),
            fields("acting", what="noise ['a'] is declared more than once; each needs a name of its own"),
        ),
        (
            spec_of("categorical", noise=(NoiseSpec("a", 0),)),
            fields("acting", what="'a' has size 0: noise and state have a size of at least 1"),
        ),
        (
            spec_of("categorical", state=(ActingState("a", 1), ActingState("a", 2))),
            fields("acting", what="state ['a'] is declared more than once; each needs a name of its own"),
        ),
        (
            spec_of("categorical", state=(ActingState("a", 0),)),
            fields("acting", what="'a' has size 0: noise and state have a size of at least 1"),
        ),
        (
            spec_of("categorical", options={"x": float("nan")}),
            fields("acting", what="option 'x' of head 'categorical' is nan: must be a finite number"),
        ),
        (
            spec_of("categorical", state=(ActingState("a", 1),), state_every=5),
            fields("env.segment_steps", "12", fix="0 stores the first only"),
        ),
        (spec_of("categorical", state_every=-1), fields("env.segment_steps", "12", fix="0 stores the first only")),
        (
            replace(NOISY, noise=()),
            fields(
                "acting", value="no noise", what="layer 'p' needs NoiseSpec(name='p', size=7, distribution='normal')"
            ),
        ),
        (
            replace(NOISY, noise=(NoiseSpec("p", 3),)),
            fields(
                "acting",
                value=str(NoiseSpec("p", 3)),
                what="layer 'p' needs NoiseSpec(name='p', size=7, distribution='normal')",
            ),
        ),
        (
            spec_of("categorical", extras=(ColumnSpec("state.a", "float32", (T, N)),)),
            fields("acting", what="extra 'state.a' has the name of a column of state; use another name"),
        ),
    ],
)
def test_a_spec_that_cannot_be(spec: ActingSpec, fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        check_acting(spec, 12)
