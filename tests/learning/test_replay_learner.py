"""What a learner receives of replay: transitions or sequences with their extras, and what becomes of its priorities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import Tensor

from tests.support.raising import raises
from zmqrl.acting.spec import ActingSpec, ActingState, previous_size
from zmqrl.algorithms.base import Algorithm
from zmqrl.config.codec import replace
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.learning import PRIORITY, Batch, Group, LearnerContext, Noise, Progress, ReplayLearner
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.ops.returns import sequence_priorities
from zmqrl.replay.base import AnySample, Replay
from zmqrl.replay.segment_replay import SegmentReplay, build_replay
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.testing.algorithm import DISCRETE, VECTOR
from zmqrl.testing.experience import SEED, SEGMENTS, acted, context_of, progress_at
from zmqrl.types import MODES, Array, EnvSpec, ModeName, SegmentId, SegmentMeta, SlotRef, Version

STEPS, ENVS, SIZE = 16, 2, 5
CORE = "q.gru"
TRANSITIONS = ReplaySpec(n_step=2)
SEQUENCES = ReplaySpec(length=6, burn_in=2, stride=4, prioritised=Prioritised(max_share=0.5))


@dataclass(frozen=True)
class Settings:
    spec: ReplaySpec = TRANSITIONS
    learning_rate: float = 1e-3
    gamma: float = 0.9
    batch_size: int = 7


class Recurrent(Algorithm):
    Config: ClassVar[type[Settings]] = Settings
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    config: Settings

    def network(self) -> NetworkSpec:
        core, last = LayerSpec("gru", CORE, 3, SIZE), LayerSpec("linear", "q.0", SIZE, self.env.action.n)
        return NetworkSpec((("q", (core, last)),))

    def acting(self) -> ActingSpec:
        extras = (self.extra("log_prob"),)
        state, layers = (ActingState(CORE, SIZE),), self.network().tower("q")
        action, obs = self.env.action, self.env.observation
        return ActingSpec(layers, "categorical", action, obs, extras, state=state, state_every=4)

    def replay(self) -> ReplaySpec:
        return self.config.spec

    def learner(self, context: LearnerContext) -> Recording:
        return Recording(self, context, [Group("q")])


class Recording(ReplayLearner):
    """Keeps its batch; the errors are numbers of it."""

    seen: Mapping[str, Tensor]

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.drawn: list[Array] = []
        """The noise of each update."""

    def noise(self) -> Mapping[str, tuple[int, ...]]:
        return {"noise": (3,)}

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        self.seen = batch
        self.drawn.append(batch["noise"].numpy())
        self.net.step("q", self.net("q", batch["obs"].reshape(-1, 3)).square().mean())
        return {PRIORITY: batch["log_prob"][:, -6:] if self.config.spec.length else batch["log_prob"]}


class Unrolling(Recording):
    """Trains on what acting has seen."""

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        self.seen = batch
        x, reset, previous = (batch[name].transpose(0, 1) for name in ("obs", "reset", "previous"))
        outputs, _ = self.net.unroll("q", x, {CORE: batch[f"state.{CORE}"]}, reset, previous)
        self.net.step("q", outputs.square().mean())
        return {PRIORITY: batch["log_prob"][:, -6:], "outputs": outputs.detach().mean()}


class Watched(SegmentReplay):
    given: list[Array]

    def set_priorities(self, sample: AnySample, priorities: Array) -> None:
        self.given = [priorities]
        super().set_priorities(sample, priorities)


class Previous(Recurrent):
    """The tower sees the step before."""

    def network(self) -> NetworkSpec:
        size = previous_size(self.env.action)
        joined, core = LayerSpec("concat", inputs=3, outputs=3 + size), LayerSpec("gru", CORE, 3 + size, SIZE)
        return NetworkSpec((("q", (joined, core, *super().network().tower("q")[1:])),))

    def acting(self) -> ActingSpec:
        return replace(super().acting(), previous=True)

    def learner(self, context: LearnerContext) -> Unrolling:
        return Unrolling(self, context, [Group("q")])


def updated(
    spec: ReplaySpec, *calls: int, begin: int = 0, seed: int = SEED, kind: type[Recurrent] = Recurrent
) -> tuple[Recording, Watched]:
    """A learner after one update, or after `calls` of so many, which continues at update `begin`."""
    algorithm = kind(Settings(spec), NetworkSection(), EnvSpec("toy", VECTOR, DISCRETE), STEPS, ENVS)
    slots = acted(algorithm, SEED)
    replay = Watched(slots, SEGMENTS, SEED, spec)
    for slot in range(SEGMENTS):
        replay.add(SlotRef(slot, 1), SegmentMeta(SegmentId(slot, 0, 0), Version(0, 0), STEPS))
    learner = algorithm.learner(replace(context_of(algorithm), seed=seed))
    for count in calls or (1,):
        learner.update(replay, count, replace(progress_at(), updates=begin))
        begin += count
    return learner, replay


def test_noise_is_that_of_the_update_however_many_calls_there_were() -> None:
    """Also of a learner that takes over: it has the noise that its predecessor would have had."""
    whole = updated(TRANSITIONS, 5)[0].drawn
    assert len({noise.tobytes() for noise in whole}) == 5
    for learner, first in (
        (updated(TRANSITIONS, 1, 3, 1)[0], 0),
        (updated(TRANSITIONS, 2, begin=3)[0], 3),
        (updated(TRANSITIONS, 1, 1, begin=2)[0], 2),
    ):
        assert np.array_equal(learner.drawn, whole[first : first + len(learner.drawn)])
    assert not np.array_equal(updated(TRANSITIONS, 5, seed=SEED + 1)[0].drawn, whole)


@pytest.mark.parametrize("kind", [(2, 3), Noise((2, 3)), Noise((2, 3), "uniform")], ids=str)
def test_noise_has_its_distribution(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = updated(TRANSITIONS)[0]
    monkeypatch.setattr(learner, "noise", lambda: {"first": (4,), "drawn": kind})
    found, again = (learner.draw_noise(7, 20_000)["drawn"].numpy() for _ in range(2))
    assert found.shape == (20_000, 2, 3) and np.array_equal(found, again)
    numbers = np.sort(found.ravel().astype(np.float64))
    if kind == Noise((2, 3), "uniform"):
        assert 0 <= numbers[0] < numbers[-1] < 1
        expected = (np.arange(numbers.size) + 0.5) / numbers.size
    else:
        expected = np.array([NormalDist().inv_cdf((i + 0.5) / numbers.size) for i in range(numbers.size)])
    assert abs(numbers - expected)[500:-500].max() < 0.03, "quantiles"


def test_a_distribution_that_is_unknown_is_named() -> None:
    with raises(ConfigError, key=("Noise", "distribution"), value="'gaussian'", what="must be normal or uniform"):
        Noise((2,), "gaussian")  # type: ignore[arg-type]


class Varying(ReplayLearner):
    """Without noise; keeps what differs between its updates."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.annealed: list[int] = []
        self.variants: list[bool] = []

    def anneal(self, replay: Replay, progress: Progress) -> None:
        assert not self.variants, "before the updates"
        self.annealed.append(progress.updates)

    def variant(self, number: int) -> Mapping[str, bool]:
        return {"even": number % 2 == 0}

    def train(self, batch: Batch, even: bool = False) -> Mapping[str, Tensor]:
        self.variants.append(even)
        self.net.step("q", self.net("q", batch["obs"]).square().mean())
        return {}


def test_replay_is_annealed_once_and_each_update_has_the_variant_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recurrent, "learner", lambda self, context: Varying(self, context, [Group("q")]))
    learner: Any = updated(TRANSITIONS, 3, begin=5)[0]
    assert (learner.annealed, learner.variants) == ([5], [False, True, False])


def is_seen(learner: Recording, expected: Mapping[str, Array]) -> None:
    assert learner.seen.keys() == {*expected, "noise"}
    for name, column in expected.items():
        found = learner.seen[name]
        assert found.is_contiguous() and found.dtype.is_floating_point == (column.dtype.kind == "f"), name
        assert np.array_equal(found.numpy(), column.astype(found.numpy().dtype)), name
    assert learner.seen["noise"].shape == (7, 3)


def test_a_batch_of_transitions_has_their_extras() -> None:
    learner, replay = updated(TRANSITIONS)
    sample = replay.sample(7, 2, 0.9, 0)
    names = ("obs", "action", "n_step_return", "next_obs", "discount", "weight")
    is_seen(learner, {"log_prob": sample.extras["log_prob"], **{name: getattr(sample, name) for name in names}})
    assert np.array_equal(replay.given[0], sample.extras["log_prob"])


def test_a_batch_of_sequences_has_their_states_resets_and_extras() -> None:
    learner, replay = updated(SEQUENCES)
    fresh = build_like(replay)
    sample = fresh.sample_sequences(7, 0)
    names = ("obs", "action", "reward", "terminated", "truncated", "valid", "reset", "mask")
    expected = {name: getattr(sample, name).swapaxes(0, 1) for name in names}
    expected |= {"log_prob": sample.extras["log_prob"].T, "weight": sample.weight, f"state.{CORE}": sample.state[CORE]}
    is_seen(learner, expected)
    assert learner.seen["obs"].shape == (7, 9, 3) and learner.seen["mask"].shape == (7, 8)
    mixed = sequence_priorities(sample.extras["log_prob"], sample.mask, 0.5)
    np.testing.assert_allclose(replay.given[0], mixed, rtol=1e-6)


def test_sequences_have_the_previous_action_and_reward() -> None:
    tensors = updated(SEQUENCES, kind=Previous)[0].seen
    assert tensors["previous"].is_contiguous()
    seen = {name: tensor.numpy() for name, tensor in tensors.items()}
    assert seen["previous"].shape == (7, 9, 4) and not seen["valid"].all()
    assert np.array_equal(seen["previous"][:, 0], seen["state.previous"])
    for i, t in np.ndindex(7, 8):
        one_hot = [float(seen["action"][i, t] == value) for value in range(3)]
        expected = np.array([*one_hot, seen["reward"][i, t]]) * seen["valid"][i, t]
        assert np.array_equal(seen["previous"][i, t + 1], expected)


@pytest.mark.parametrize(
    ("spec", "change", "value", "what"),
    [
        (SEQUENCES, lambda errors: errors.T, "[6, 7]", "must be [batch_size, length], here [7, 6]"),
        (SEQUENCES, lambda errors: errors.mean(1), "[7]", "must be [batch_size, length], here [7, 6]"),
        (TRANSITIONS, lambda errors: errors.unsqueeze(1), "[7, 1]", "must be [batch_size], here [7]"),
    ],
)
def test_priorities_of_another_shape_are_refused(
    spec: ReplaySpec, change: Callable[[Tensor], Tensor], value: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Recording.train
    monkeypatch.setattr(Recording, "train", lambda self, batch: {PRIORITY: change(train(self, batch)[PRIORITY])})
    with raises(ConfigError, key=("PRIORITY",), value=value, what=what):
        updated(spec)


def build_like(replay: SegmentReplay) -> SegmentReplay:
    """With the same segments, and no priorities yet."""
    fresh = build_replay(replay._columns, SEGMENTS * STEPS * ENVS, SEED, SEQUENCES)
    for ref, meta in replay.held():
        fresh.add(ref, meta)
    return fresh
