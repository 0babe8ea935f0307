from __future__ import annotations

import numpy as np
import pytest

from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.broker.env_records import pack_record, unpack_record
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import EnvSlotState
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.learner.episodes import EpisodeTracker
from zmqrl.networks.spec import LayerSpec
from zmqrl.replay.base import SegmentMeta
from zmqrl.rollout.collector import Collector
from zmqrl.types import STATE_COLUMN, ColumnSpec, ModeName, SegmentId, Version

T, N, SEED = 5, 3, 4


class Collecting:
    """A collector with segment columns of its own."""

    def __init__(
        self, env_id: str = "CartPole-v1", mode: ModeName = "sync", states=None, steps: int = T, **kwargs
    ) -> None:
        section = EnvSection(
            id=env_id, num_envs=N, kwargs=kwargs, recovery="state" if "Stateful" in env_id else "exact"
        )
        env_spec = probe(section)
        box = env_spec.action.kind == "box"
        inputs, outputs = env_spec.observation.shape[0], 1 if box else env_spec.action.n
        log_prob = ColumnSpec("log_prob", "float32", (steps, N))
        spec = ActingSpec(
            (LayerSpec("linear", "p", inputs, outputs),),
            "gaussian" if box else "categorical",
            env_spec.action,
            env_spec.observation,
            (log_prob,),
            arrays=("log_std",) if box else (),
        )
        policy = make_policy(spec)
        rng = np.random.default_rng(0)
        weight = rng.standard_normal((outputs, inputs)).astype(np.float32)
        policy.load({"p.weight": weight, "p.bias": np.zeros(outputs, np.float32), "log_std": np.ones(1)}, {})
        self.env = make_vector_env(section, env_spec, mode, SEED, 1)
        self.collector = Collector(self.env, policy, spec, SEED, 1)
        self.collector.start(states)
        action = ("float32", (1,)) if box else ("int64", ())
        self._shapes = {
            "obs": (env_spec.observation.dtype, (steps + 1, N, inputs)),
            "action": (action[0], (steps, N, *action[1])),
            "reward": ("float32", (steps, N)),
            "terminated": ("bool", (steps, N)),
            "truncated": ("bool", (steps, N)),
            "valid": ("bool", (steps, N)),
            "log_prob": ("float32", (steps, N)),
        }
        if env_spec.state is not None:
            self._shapes[STATE_COLUMN] = ("uint8", (1, N, env_spec.state.nbytes))
        self.progress: list[int] = []

    def collect(self, index: int, stop_after: int = 10_000) -> tuple[dict[str, np.ndarray], int | None]:
        columns = {name: np.full(shape, 77, dtype) for name, (dtype, shape) in self._shapes.items()}
        self.progress = []
        stopped = lambda: len(self.progress) >= stop_after  # noqa: E731
        return columns, self.collector.collect(columns, index, self.progress.append, stopped)


def test_next_step_rows() -> None:
    collector = Collecting("tests.envs.odd_envs:Counting", length=3)
    columns, rows = collector.collect(0)
    assert columns["obs"][:, 0, 1].tolist() == [0, 1, 2, 3, 0, 1]
    assert columns["terminated"][:, 0].tolist() == [False, False, True, False, False]
    assert columns["valid"][:, 0].tolist() == [True, True, True, False, True]
    assert columns["reward"][:, 0].tolist() == [1, 1, 1, 0, 1]
    assert rows == 12
    assert collector.progress == [3, 6, 9, 9, 12]


def test_an_end_on_the_last_row_makes_the_next_segments_first_row_invalid() -> None:
    collector = Collecting("tests.envs.odd_envs:Counting", length=5)
    first, rows = collector.collect(0)
    assert first["terminated"][4].all()
    assert rows == 15
    second, rows = collector.collect(1)
    assert second["obs"][0, 0].tolist() == first["obs"][5, 0].tolist()
    assert second["valid"][:, 0].tolist() == [False, True, True, True, True]
    assert rows == 12


def test_a_segments_bits_depend_on_its_name_alone() -> None:
    one, other = Collecting(), Collecting()
    for index in range(3):
        ours, theirs = one.collect(index)[0], other.collect(index)[0]
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
    assert one.collect(3)[0]["action"].tobytes() != other.collect(4)[0]["action"].tobytes()


@pytest.mark.parametrize(
    ("env_id", "form"),
    [
        ("CartPole-v1", None),
        ("tests.envs.odd_envs:Walker", None),
        ("tests.envs.odd_envs:Stateful", "array"),
        ("tests.envs.odd_envs:Stateful", "bytes"),
    ],
)
@pytest.mark.parametrize("steps", [1, 5, 16])
def test_a_successor_with_the_learners_report_continues_with_the_same_bits(
    env_id: str, form: str | None, steps: int
) -> None:
    """Its record goes through the wire and through FULL; with a saved state (in `form`) it is of one size."""
    saves_state = form is not None
    more = {"form": form} if saves_state else {}
    predecessor, tracker = Collecting(env_id, steps=steps, **more), EpisodeTracker(2, N, saves_state=saves_state)
    sizes = set()
    for index in range(64 // steps):
        record = pack_record(tracker.record(1)[1])
        sizes.add(len(record))
        successor = Collecting(env_id, states=unpack_record(record), steps=steps, **more)
        columns, rows = predecessor.collect(index)
        again, rows_again = successor.collect(index)
        assert rows == rows_again
        for name in columns:
            assert columns[name].tobytes() == again[name].tobytes(), (index, name)
        tracker.advance(SegmentMeta(SegmentId(1, 0, index), Version(0, index), rows or 0), columns)
        stored = {name: np.array(array) for name, array in tracker.arrays().items()}
        tracker = EpisodeTracker(2, N, saves_state=saves_state)
        tracker.load_arrays(stored)
    if saves_state:
        assert max(sizes) - min(sizes - {min(sizes)}) < 20, "small numbers are packed in fewer bytes"
        assert all(state.actions is None for state in tracker.record(1)[1])


def test_the_limit_of_steps_continues_where_it_was() -> None:
    section = EnvSection(id="tests.envs.odd_envs:Stateful", num_envs=1, max_episode_steps=4, recovery="state")
    env = make_vector_env(section, probe(section), "sync", SEED, 0)
    obs = env.start()[0].copy()
    stored = np.frombuffer(np.array([5.0, 2.0, 0.5]).tobytes(), np.uint8)
    env.start((EnvSlotState(0, state=stored, obs=obs, elapsed=2),))
    truncated = [bool(env.step(np.zeros(1, np.int64)).truncated[0]) for _ in range(2)]
    assert truncated == [False, True]


def test_box_actions_are_stored_unclipped() -> None:
    columns, _ = Collecting("tests.envs.odd_envs:Walker").collect(0)  # the env asserts that actions are in its space
    assert np.abs(columns["action"]).max() > 1


def test_it_stops_between_two_steps() -> None:
    collector = Collecting()
    assert collector.collect(0, stop_after=2)[1] is None
    assert len(collector.progress) == 2


def test_native_envs_are_collected_too() -> None:
    columns, rows = Collecting(mode="async", steps=64).collect(0)
    assert rows == int(columns["valid"].sum()) < 64 * N
    done = columns["terminated"] | columns["truncated"]
    assert (columns["valid"][1:] == ~done[:-1]).all()
