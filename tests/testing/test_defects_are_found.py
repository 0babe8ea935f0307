"""Each check of a suite fails over a class with the defect that the check is about."""

from __future__ import annotations

import importlib
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from torch import Tensor

from tests.data_stores.memory_store import MemoryStore
from tests.envs.odd_envs import Stateful, Walker
from tests.testing.defective_algorithms import Sound, WrongPriorities, with_learner
from zmqrl.acting.heads import Categorical
from zmqrl.algorithms.dqn import DQN
from zmqrl.algorithms.policy_gradient.manual import ManualPPOLearner
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.config.codec import replace
from zmqrl.config.plan import Lineage
from zmqrl.config.sections import EnvSection, NetworkSection
from zmqrl.data_stores.base import Full
from zmqrl.errors import StoreError, ZmqrlError
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer, RecurrentLayer
from zmqrl.networks.kinds.gru import Gru, NumpyGru
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.spec import ReplaySpec
from zmqrl.testing import algorithm, data_store, env, expect, layer, network, sampler
from zmqrl.testing.expect import IDLE_S
from zmqrl.types import Array, ColumnSpec, EnvSpec, Version

FOUND = (AssertionError, ZmqrlError)
"""How a check fails: by its own comparison, or by an error of the package."""
PASSED_THROUGH: Mapping[Callable[..., None], tuple[type[Exception], str]] = {
    data_store.a_foreign_key_is_a_store_error: (FileNotFoundError, "/../secret"),
    data_store.rows_of_a_full_checkpoint_are_among_its_arrays: (KeyError, "replay/obs"),
    env.it_closes_twice: (RuntimeError, "it does not close"),
    algorithm.workers_act_with_version_0: (KeyError, r"\d\.weight"),
    network.version_0_is_a_function_of_the_seed: (KeyError, r"a\.\d\.weight"),
    network.layers_fit_each_other: (RuntimeError, "shapes cannot be multiplied"),
    sampler.valid_items_are_drawn: (ValueError, "is not held, or not a valid row"),
    sampler.released_segments_are_never_drawn: (ValueError, "is not held, or not a valid row"),
}
"""Checks that fail by another error, which the defect causes, and its message: an error in a case is not counted."""


@dataclass
class Thawed:
    """Not frozen."""

    value: int = 0


def found_by(check: Callable[..., None]) -> AbstractContextManager[object]:
    """The check fails, and for its reason."""
    if check not in PASSED_THROUGH:
        return pytest.raises(FOUND)
    kind, message = PASSED_THROUGH[check]
    return pytest.raises(kind, match=message)


def ids(cases: Iterable[tuple[Callable[..., None], Any]]) -> list[str]:
    return [check.__name__ for check, _ in cases]


# --- data stores


class Store(MemoryStore):
    def __init__(self) -> None:
        super().__init__("place", data_store.KEEP)


def store(**methods: Any) -> Callable[[], MemoryStore]:
    held = type("Defect", (Store,), methods)()
    return lambda: held


def slow(_: Any, *__: Any) -> bytes:
    time.sleep(0.4)
    raise data_store.StoreError("v0-7 was not found")


class Torn(Store):
    """For a moment a version has half of its content."""

    def save(self, version: Version, weights: Any, meta: Any) -> Any:
        saved = super().save(version, weights, meta)
        whole = self._versions[version]
        self._versions[version] = whole[: len(whole) // 2]
        time.sleep(0.005)
        self._versions[version] = whole
        return saved


def torn_store() -> Callable[[], MemoryStore]:
    held = Torn()
    return lambda: held


STORES: list[tuple[Callable[..., None], Callable[[], Any]]] = [
    (data_store.config_is_a_frozen_dataclass, store(Config=Thawed)),
    (data_store.an_empty_store_has_nothing, store(newest=lambda self: (Version(0, 0), b""))),
    (data_store.weights_return_bit_for_bit, store(read=lambda self, *a: MemoryStore.read(self, *a)[:-8] + bytes(8))),
    (data_store.a_wrong_digest_is_never_returned, store(read=lambda self, *a: next(iter(self._versions.values())))),
    (data_store.a_read_ends_at_its_deadline, store(read=slow)),
    (data_store.a_foreign_key_is_a_store_error, store(read=lambda self, key, *a: Path(f"/{key}").read_bytes())),
    (
        data_store.newest_is_by_incarnation_then_n,
        store(newest=lambda self: max(self._versions.items(), key=lambda kv: str(kv[0]))),
    ),
    (
        data_store.a_full_checkpoint_returns_with_its_plain_data,
        store(newest_full=lambda self: Full(Version(0, 3), {"n": np.array(3)}, {})),
    ),
    (
        data_store.rows_of_a_full_checkpoint_are_among_its_arrays,
        store(save_full=lambda self, full, durable: MemoryStore.save_full(self, replace(full, rows={}), durable)),
    ),
    (
        data_store.the_best_version_is_one,
        store(save_best=lambda self, *a: MemoryStore.save_best(self, *(self.best() or a))),
    ),
    (data_store.retention_keeps_the_newest, store(retire=lambda self: None)),
    (data_store.kept_versions_stay, store(finish=lambda self: self._kept.clear())),
    (data_store.finish_leaves_what_a_resume_needs, store(finish=lambda self: self._fulls.clear())),
    (data_store.a_reader_never_sees_a_part, torn_store()),
    (data_store.a_token_is_seen_until_it_is_removed, store(leave_token=lambda *a: "token", sees_token=lambda *a: True)),
    (data_store.an_owner_returns_or_is_never_recorded, store(owner=lambda self: Lineage("another"))),
    (data_store.what_is_put_aside_returns, store(put_aside=lambda self, folder: self._fulls.clear())),
]


def test_a_store_that_raises_leaves_no_thread_of_the_check() -> None:
    def save(*_: Any) -> Any:
        raise StoreError("no space")

    before = set(threading.enumerate())
    with pytest.raises(StoreError, match="no space"):
        data_store.a_reader_never_sees_a_part(store(save=save))
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("check", "make"), STORES, ids=ids(STORES))
def test_of_a_store(check: Callable[[Any], None], make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_store, "RETIRED_WITHIN_S", 0.2)
    monkeypatch.setattr(data_store, "READ_S", 0.3)
    monkeypatch.setattr(expect, "processes_s", lambda: IDLE_S)  # the defects wait no longer on a busy machine
    with found_by(check):
        check(make)


# --- envs


class Forgetful(Walker):
    """Draws from another generator."""

    def reset(self, **options: Any) -> Any:
        _, info = super().reset(**options)
        self._x = np.random.default_rng().random(2)
        return self._x.astype(np.float32), info


class Remembering(Walker):
    """An episode depends on the number of episodes before it."""

    episodes = 0

    def reset(self, **options: Any) -> Any:
        _, info = super().reset(**options)
        self.episodes += 1
        self._x = self._x * 0.9**self.episodes
        return self._x.astype(np.float32), info


class Drifting(Walker):
    """A step depends on the age of the process."""

    steps = 0

    def step(self, action: Any) -> Any:
        Drifting.steps += 1
        obs, *rest = super().step(action)
        return obs + np.float32(Drifting.steps * 1e-3), *rest


class Endless(Walker):
    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class Narrow(Walker):
    """Refuses the upper end of its actions."""

    def step(self, action: Any) -> Any:
        if float(np.ravel(action)[0]) == 1.0:
            raise ValueError("too fast")
        return super().step(action)


class Odd(Walker):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Text(2)


class Wide(Walker):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return np.append(obs, obs), *rest


class Partial(Stateful):
    """Its state is incomplete."""

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self._seed = 1


class Fragile(Walker):
    closed = False

    def close(self) -> None:
        raise RuntimeError("it does not close")


class Demanding(Walker):
    """Knows one number alone."""

    def on_progress(self, numbers: dict[str, float]) -> None:
        (self._speed,) = (numbers["speed"],)


class Growing(Walker):
    """Its observations have other bounds after each call."""

    def on_progress(self, numbers: dict[str, float]) -> None:
        high = np.full(self.observation_space.shape or (), 1e3 + numbers["epsilon"], np.float32)
        self.observation_space = gym.spaces.Box(-high, high)


ENVS: list[tuple[Callable[..., None], type[gym.Env[Any, Any]]]] = [
    (env.spaces_are_supported, Odd),
    (env.shapes_and_dtypes_are_those_of_the_spaces, Wide),
    (env.every_action_of_the_space_is_accepted, Narrow),
    (env.the_row_after_an_end_is_a_reset, Endless),
    (env.the_same_seed_gives_the_same_bits, Forgetful),
    (env.a_reset_forgets_the_past, Remembering),
    (env.a_successor_continues_with_the_same_bits, Drifting),
    (env.a_saved_state_continues_with_the_same_bits, Partial),
    (env.numbers_leave_the_spaces_as_they_are, Demanding),
    (env.numbers_leave_the_spaces_as_they_are, Growing),
    (env.it_closes_twice, Fragile),
]


@pytest.mark.parametrize(("check", "kind"), ENVS, ids=ids(ENVS))
def test_of_an_env(
    check: Callable[[Any], None], kind: type[gym.Env[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env, "MOST_STEPS", 100)
    recovery: Any = "state" if kind is Partial else "exact"
    section = EnvSection(id=f"{__name__}:{kind.__name__}", num_envs=2, recovery=recovery)
    with found_by(check):
        check(lambda: section)


# --- algorithms


SPEC = EnvSpec("toy", algorithm.VECTOR, algorithm.DISCRETE)
STEPS, ENVS_EACH = 16, 2


def changed(**members: Any) -> Callable[[], PPO]:
    kind = type("Defect", (PPO,), {"__module__": __name__, **members})
    return lambda: kind(PPOConfig(minibatch_size=32, epochs=1), NetworkSection(hidden=(8,)), SPEC, STEPS, ENVS_EACH)


def learning(**methods: Any) -> Callable[[], PPO]:
    kind = type("DefectLearner", (ManualPPOLearner,), methods)
    return changed(learner=lambda self, context: kind(self, context))


class Counter:
    count = 0

    def next(self) -> int:
        self.count += 1
        return self.count


NUMBERS = Counter()


def noisy(self: Any, batch: Any, progress: Any) -> Any:
    result = ManualPPOLearner.learn(self, batch, progress)
    self._parameters.flat.add_(NUMBERS.next() * 1e-3)
    return result


def with_extra(name: str, shape: tuple[int, ...]) -> Callable[[PPO], Any]:
    return lambda self: replace(PPO.acting(self), extras=(ColumnSpec(name, "float32", shape),))


def other_tower(self: PPO) -> Any:
    return replace(PPO.acting(self), layers=(LayerSpec("linear", "missing.0", 3, 3),))


class Remembers(Categorical):
    """Its memory is an attribute, so it is one for all vector envs of a worker."""

    rows = 0

    def act(self, outputs: Any, t: int, context: Any) -> Any:
        self.rows += 1
        return (super().act(outputs, t, context) + self.rows // 7) % 3


def remembering(self: PPO) -> Any:
    return replace(PPO.acting(self), head=f"{__name__}:Remembers")


def nan_weights(self: PPO) -> Any:
    acting = PPO.acting(self)
    return replace(acting, layers=(*acting.layers[:-1], replace(acting.layers[-1], name=f"{NUMBERS.next()}")))


def wrong_priorities() -> Sound:
    kind = with_learner(WrongPriorities)
    return kind(kind.Config(), NetworkSection(hidden=(8,)), SPEC, STEPS, ENVS_EACH)


def long_sequences() -> DQN:
    kind = type("Defect", (DQN,), {"replay": lambda self: ReplaySpec(length=STEPS + 1)})
    return kind(DQN.Config(), NetworkSection(hidden=(8,)), SPEC, STEPS, ENVS_EACH)


ALGORITHMS: list[tuple[Callable[..., None], Callable[[], Any]]] = [
    (algorithm.config_is_a_frozen_dataclass, changed(Config=Thawed)),
    (algorithm.modes_are_named, changed(modes=frozenset({"sometimes"}))),
    (algorithm.batches_are_announced_by_on_policy_algorithms_only, changed(batch_segments=0)),
    (algorithm.two_instances_agree, changed(statistics=lambda self: {"n": np.array(NUMBERS.next())})),
    (algorithm.acting_is_of_the_network, changed(acting=other_tower)),
    (algorithm.acting_is_of_the_network, changed(acting=with_extra("reward", (STEPS, ENVS_EACH)))),
    (algorithm.acting_is_of_the_network, changed(acting=with_extra("state.h", (STEPS, ENVS_EACH)))),
    (algorithm.extras_have_a_row_of_each_env, changed(acting=with_extra("other", (STEPS, ENVS_EACH + 1)))),
    (algorithm.workers_act_with_version_0, changed(acting=nan_weights)),
    (algorithm.acting_has_no_memory_of_its_own, changed(acting=remembering)),
    (algorithm.replay_fits_a_segment, long_sequences),
    (algorithm.schedules_are_finite, changed(schedule=lambda self, progress: {"epsilon": float("nan")})),
    (
        algorithm.the_learner_publishes_what_it_was_given,
        learning(weights=lambda self: {n: a + 1 for n, a in ManualPPOLearner.weights(self).items()}),
    ),
    (
        algorithm.published_weights_are_copies,
        learning(weights=lambda self: {name: tensor.numpy() for name, tensor in self._parameters.tensors.items()}),
    ),
    (algorithm.an_update_runs, wrong_priorities),
    (algorithm.training_changes_the_network, learning(learn=lambda self, *a: algorithm_result())),
    (algorithm.training_is_deterministic, learning(learn=noisy)),
    (algorithm.a_restored_learner_continues_bit_for_bit, learning(load_state=lambda self, weights, state: None)),
]


def algorithm_result() -> Any:
    from zmqrl.algorithms.base import LearnResult

    return LearnResult(1, {})


@pytest.mark.parametrize(("check", "make"), ALGORITHMS, ids=ids(ALGORITHMS))
def test_of_an_algorithm(check: Callable[[Any], None], make: Any) -> None:
    with found_by(check):
        check(make)


def test_an_off_policy_algorithm_with_a_batch_is_found() -> None:
    kind = type("Defect", (DQN,), {"batch_segments": 4})
    with pytest.raises(AssertionError):
        algorithm.batches_are_announced_by_on_policy_algorithms_only(
            lambda: kind(DQN.Config(), NetworkSection(hidden=(8,)), SPEC, STEPS, ENVS_EACH)
        )


def test_an_on_policy_algorithm_may_leave_the_batch_to_the_run() -> None:
    algorithm.batches_are_announced_by_on_policy_algorithms_only(changed(batch_segments=None))


# --- networks


def linear(name: str, inputs: int, outputs: int) -> LayerSpec:
    return LayerSpec("linear", name, inputs, outputs)


TANH = LayerSpec("tanh")
SEEDS = Counter()


def net(*layers: LayerSpec, free: tuple[Any, ...] = (), twice: bool = False) -> Callable[[], network.Network]:
    towers = (("a", layers),) * (2 if twice else 1)
    return lambda: network.Network(NetworkSpec(towers, free), algorithm.VECTOR)


def unsteady() -> network.Network:
    return network.Network(NetworkSpec((("a", (linear(f"a.{SEEDS.next()}", 3, 2),)),)), algorithm.VECTOR)


NETWORKS: list[tuple[Callable[..., None], Callable[[], network.Network]]] = [
    (network.names_are_unique, net(linear("a.0", 3, 2), twice=True)),
    (network.names_are_unique, net(linear("a.0", 3, 4), linear("a.0", 4, 2))),
    (network.names_are_unique, net(linear("a.0", 3, 2), free=(("a.0.bias", (2,), 0.0),))),
    (network.every_tower_has_a_tensor, net(TANH)),
    (network.version_0_is_a_function_of_the_seed, unsteady),
    (network.layers_fit_each_other, net(linear("a.0", 3, 4), linear("a.1", 5, 2))),
    (network.both_runtimes_agree, net(linear("a.0", 3, 4), LayerSpec(f"{__name__}:OtherNumpy"), linear("a.1", 4, 2))),
    (
        network.the_learner_computes_what_workers_act_with,
        net(replace(linear("a.0", 3, 4), gain=1e4), TANH, replace(linear("a.1", 4, 2), gain=1e-30)),
    ),
]


@pytest.mark.parametrize(("check", "make"), NETWORKS, ids=ids(NETWORKS))
def test_of_a_network(check: Callable[[Any], None], make: Any) -> None:
    with found_by(check):
        check(make)


# --- layers


class Doubled(NumpyLayer):
    """Not what torch computes, into a new array."""

    def forward(self, x: Array) -> Array:
        return x * np.float32(2)


class Own(LayerKind):
    """A layer with one array `a.0.w`, correct as it is."""

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        return {f"{spec.name}.w": (3,)}

    def initial(self, spec: LayerSpec, generator: np.random.Generator) -> dict[str, Array]:
        return {f"{spec.name}.w": np.ones(3, np.float32)}

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer | None:
        return None

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x * tensors[f"{spec.name}.w"]


class OtherNumpy(LayerKind):
    """Without arrays."""

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return Doubled()

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x * 1


class OtherNames(Own):
    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        return {"w": (3,)}


class RandomStart(Own):
    def initial(self, spec: LayerSpec, generator: np.random.Generator) -> dict[str, Array]:
        return {f"{spec.name}.w": np.full(3, NUMBERS.next(), np.float32)}


class Wider(Own):
    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x.repeat(1, 2)


class BatchMean(Own):
    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Detached(Own):
    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x * tensors[f"{spec.name}.w"].detach()


class StatelessCore(NumpyGru):
    """Leaves the state of the caller as it was."""

    def step(self, x: Array, state: Array) -> Array:
        return super().step(x, state.copy())


class StatelessGru(Gru):
    def numpy(self, spec: LayerSpec, rows: int) -> RecurrentLayer:
        return StatelessCore(spec.name, spec.inputs, spec.outputs, rows)


def of(kind: type[LayerKind]) -> Callable[[], layer.Layer]:
    return lambda: layer.Layer(LayerSpec(f"{__name__}:{kind.__name__}", "a.0", 3, 3), (3,))


LAYERS: list[tuple[Callable[..., None], Callable[[], layer.Layer]]] = [
    (layer.arrays_have_the_layers_name, of(OtherNames)),
    (layer.first_values_are_a_function_of_the_generator, of(RandomStart)),
    (layer.outputs_have_the_declared_width, of(Wider)),
    (layer.each_row_depends_on_itself, of(BatchMean)),
    (layer.numpy_and_torch_agree, of(OtherNumpy)),
    (layer.steps_in_numpy_and_torch_agree, of(StatelessGru)),
    (layer.acting_allocates_no_arrays, of(OtherNumpy)),
    (layer.gradients_are_those_of_finite_differences, of(Detached)),
]


@pytest.mark.parametrize(("check", "make"), LAYERS, ids=ids(LAYERS))
def test_of_a_layer(check: Callable[[Any], None], make: Any) -> None:
    with pytest.raises(AssertionError):
        check(make)


@pytest.mark.parametrize("check", layer.LAYER, ids=lambda check: check.__name__)
def test_the_layer_without_a_defect_passes(check: Callable[[Any], None]) -> None:
    check(of(Own))


# --- samplers


def sampling(name: str) -> Callable[[], ReplaySpec]:
    return lambda: ReplaySpec(sampler=f"tests.testing.defective_samplers:{name}")


SAMPLERS: list[tuple[Callable[..., None], Callable[[], ReplaySpec]]] = [
    (sampler.valid_items_are_drawn, sampling("Unfiltered")),
    (sampler.released_segments_are_never_drawn, sampling("Clinging")),
    (sampler.draws_are_deterministic, sampling("Moody")),
    (sampler.a_restored_sampler_continues_bit_for_bit, sampling("Forgetful")),
]


@pytest.mark.parametrize(("check", "make"), SAMPLERS, ids=ids(SAMPLERS))
def test_of_a_sampler(check: Callable[[Any], None], make: Any) -> None:
    with found_by(check):
        check(make)


SUITES: Mapping[str, tuple[Any, list[tuple[Callable[..., None], Any]]]] = {
    "data store": (data_store.DATA_STORE, STORES),
    "env": (env.ENV, ENVS),
    "algorithm": (algorithm.ALGORITHM, ALGORITHMS),
    "network": (network.NETWORK, NETWORKS),
    "layer": (layer.LAYER, LAYERS),
    "sampler": (sampler.SAMPLER, SAMPLERS),
}


@pytest.mark.parametrize("name", SUITES)
def test_every_check_has_a_defect_and_a_promise(name: str) -> None:
    suite, cases = SUITES[name]
    assert set(suite) == {check for check, _ in cases}
    assert all(check.__doc__ for check in suite)
    module = importlib.import_module(suite[0].__module__)
    own = {f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__}
    assert {f for f in own if not f.__name__.startswith("_")} == set(suite), "a check is not in its suite"
