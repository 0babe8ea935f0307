"""Recurrent state is the collector's: one per vector env, zero where an episode begins, handed over with its env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from zmqrl.acting.base import ActingContext, Policy
from zmqrl.acting.heads import Categorical
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec, ActingState, previous_size
from zmqrl.acting.state import state_columns, state_of
from zmqrl.broker.env_records import pack_record, unpack_record
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import EnvSlotState
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.learner.episodes import EpisodeTracker
from zmqrl.networks.initial import parameter_shapes
from zmqrl.networks.spec import LayerSpec, ModulePart, ModuleSpec, NetworkSpec
from zmqrl.rollout.collector import Collector
from zmqrl.types import STATE_COLUMN, Array, ColumnSpec, ModeName, SegmentId, SegmentMeta, Version

N, H, SEED = 3, 6, 4


class Counting(Categorical):
    """Rows acted since the state was zero, in the state `rows`."""

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        context.state["rows"][:] += 1.0
        return super().act(outputs, t, context)


class Run:
    """Vector envs of one worker: all of them act with one policy."""

    def __init__(
        self,
        env_id: str,
        steps: int,
        every: int = 0,
        mode: ModeName = "sync",
        core: str = "gru",
        previous: bool = False,
        **kwargs: Any,
    ) -> None:
        self.section = EnvSection(
            id=env_id, num_envs=N, kwargs=kwargs, recovery="state" if "Stateful" in env_id else "exact"
        )
        self.env = probe(self.section)
        self.steps, self.mode = steps, mode
        inputs = self.env.observation.shape[0]
        module = ModuleSpec("tests.networks.nets:Remembers", "{}", (ModulePart("", (inputs,)),))
        size = inputs + previous_size(self.env.action) * previous
        joined = (LayerSpec("concat", inputs=inputs, outputs=size),) if previous else ()
        layer = LayerSpec(core, "core", size, H, module=module if core == "module" else None)
        layers = (*joined, layer, LayerSpec("linear", "out", 5 if core == "module" else H, self.env.action.n))
        self.spec = ActingSpec(
            layers,
            f"{__name__}:Counting",
            self.env.action,
            self.env.observation,
            (ColumnSpec("log_prob", "float32", (steps, N)),),
            state=(*state_of(layers), ActingState("rows", 1)),
            state_every=every,
            previous=previous,
        )
        self.ends = [f"state_end.{state.name}" for state in self.spec.state]
        self.policy = self.new_policy()

    def new_policy(self) -> Policy:
        rng, policy = np.random.default_rng(0), make_policy(self.spec)
        shapes = parameter_shapes(NetworkSpec((("p", self.spec.layers),)))
        policy.load({name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}, {})
        return policy

    def collector(
        self, vector_env: int = 1, policy: Policy | None = None, states: tuple[EnvSlotState, ...] | None = None
    ) -> Collector:
        env = make_vector_env(self.section, self.env, self.mode, SEED, vector_env)
        collector = Collector(env, policy or self.policy, self.spec, SEED, vector_env)
        collector.start(states)
        return collector

    def collect(self, collector: Collector, index: int) -> dict[str, Array]:
        steps, obs = self.steps, self.env.observation
        shapes: Mapping[str, tuple[str, tuple[int, ...]]] = {
            "obs": (obs.dtype, (steps + 1, N, *obs.shape)),
            "action": ("int64", (steps, N)),
            "reward": ("float32", (steps, N)),
            **dict.fromkeys(("terminated", "truncated", "valid"), ("bool", (steps, N))),
            **{c.name: (c.dtype, c.shape) for c in (*self.spec.extras, *state_columns(self.spec, steps, N))},
        }
        columns = {name: np.full(shape, 77, dtype) for name, (dtype, shape) in shapes.items()}
        if self.env.state is not None:
            columns[STATE_COLUMN] = np.zeros((1, N, self.env.state.nbytes), np.uint8)
        assert collector.collect(columns, index, lambda rows: None, lambda: False) is not None
        return columns


def test_the_state_is_zero_where_an_episode_begins_and_lasts_until_its_reset_row() -> None:
    """Episodes of 3 rows; every fourth row is the reset, and its observation the final one of the episode."""
    run = Run("tests.envs.odd_envs:Counting", steps=10, every=1, length=3)
    columns = run.collect(run.collector(), 0)
    assert columns["valid"][:, 0].tolist() == [True, True, True, False] * 2 + [True, True]
    assert columns["state.rows"][:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert columns["state_end.rows"][0, :, 0].tolist() == [2.0] * N
    begins = columns["state.rows"][:, :, 0] == 0
    assert (columns["state.core"][begins] == 0).all()
    assert (columns["state.core"][~begins] != 0).any(axis=-1).all()
    np.testing.assert_array_equal(begins[1:], ~columns["valid"][:-1])


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_segments_hold_what_the_rows_were_acted_with(length: int) -> None:
    """Whatever the segments and the stored rows: `state` of a segment is `state_end` of the one before."""
    whole = Run("tests.envs.odd_envs:Counting", steps=12, every=1, previous=True, length=length)
    expected = whole.collect(whole.collector(), 0)["state.rows"]
    run = Run("tests.envs.odd_envs:Counting", steps=4, every=2, previous=True, length=length)
    collector, end = run.collector(), None
    for index in range(3):
        columns = run.collect(collector, index)
        np.testing.assert_array_equal(columns["state.rows"], expected[4 * index : 4 * index + 4 : 2])
        for name in ("core", "rows", "previous"):
            if end is not None:
                assert columns[f"state.{name}"][0].tobytes() == end[f"state_end.{name}"][0].tobytes()
        end = columns


@pytest.mark.parametrize("core", ["gru", "lstm", "module"])
def test_two_vector_envs_of_one_worker_do_not_mix_their_states(core: str) -> None:
    run = Run("CartPole-v1", steps=8, core=core)
    together = [run.collector(vector_env) for vector_env in (0, 1)]
    alone = [run.collector(vector_env, run.new_policy()) for vector_env in (0, 1)]
    for index in range(6):
        for one, other in zip(together, alone, strict=True):
            ours, theirs = run.collect(one, index), run.collect(other, index)
            assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


@pytest.mark.parametrize(
    ("form", "steps", "core", "previous"),
    [
        *(
            (form, steps, "gru", previous)
            for form in (None, "array")
            for steps in (1, 5, 16)
            for previous in (False, True)
        ),
        (None, 5, "lstm", False),
        (None, 5, "module", False),
    ],
)
def test_a_successor_continues_with_the_same_bits(form: str | None, steps: int, core: str, previous: bool) -> None:
    """The record goes over the wire and through FULL, with actions to repeat or with the state of the env."""
    saves_state, kwargs = form is not None, dict[str, Any](form=form) if form else {}
    run = Run("tests.envs.odd_envs:Stateful" if form else "CartPole-v1", steps, core=core, previous=previous, **kwargs)
    ends = run.ends
    assert ("state_end.previous" in ends) == previous
    predecessor, tracker = run.collector(), EpisodeTracker(2, N, saves_state=saves_state, acting_states=ends)
    assert set(ends) <= set(tracker.record_columns)
    for index in range(64 // steps):
        states = unpack_record(pack_record(tracker.record(1)[1]))
        columns = run.collect(predecessor, index)
        again = run.collect(run.collector(policy=run.new_policy(), states=states), index)
        for name in columns:
            assert columns[name].tobytes() == again[name].tobytes(), (index, name)
        rows = int(columns["valid"].sum())
        tracker.advance(SegmentMeta(SegmentId(1, 0, index), Version(0, index), rows), columns)
        stored = {name: np.array(array) for name, array in tracker.arrays().items()}
        tracker = EpisodeTracker(2, N, saves_state=saves_state, acting_states=ends)
        tracker.load_arrays(stored)
    untouched = tracker.record(0)[1][0].acting_state
    assert untouched is None or not untouched.any()


def test_without_exact_recovery_the_next_episodes_begin_with_nothing() -> None:
    run = Run("CartPole-v1", steps=5)
    tracker = EpisodeTracker(2, N, replayable=False, acting_states=["state_end.core", "state_end.rows"])
    assert not any(name.startswith("state_end.") for name in tracker.record_columns)
    collector = run.collector()
    tracker.advance(SegmentMeta(SegmentId(1, 0, 0), Version(0, 0), 5 * N), run.collect(collector, 0))
    states = tracker.record(1)[1]
    assert all(state.acting_state is None for state in states)
    successor = run.collector(states=states)
    assert not run.collect(successor, 1)["state.core"][0].any()


def test_native_envs_in_async() -> None:
    run = Run("CartPole-v1", steps=64, every=1, mode="async")
    columns = run.collect(run.collector(), 0)
    begins = columns["state.rows"][:, :, 0] == 0
    np.testing.assert_array_equal(begins[1:], ~columns["valid"][:-1])
    assert begins[1:].any()
