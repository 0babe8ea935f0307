# ruff: noqa: E501  # a case a line: the input and its message
"""The plan's numbers, and every fault that is found only when env, algorithm and machine are looked at."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.extras import missing_extra
from tests.support.raising import fields, raises
from zmqrl.acting.spec import ActingState
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.dqn import DQN
from zmqrl.algorithms.ppo import PPO
from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.config.plan import RunPlan
from zmqrl.config.presets import PRESETS
from zmqrl.config.sections import HostSection
from zmqrl.errors import ArenaTooLarge, ConfigError
from zmqrl.learning.package_cache import cache_folder
from zmqrl.networks.spec import LayerSpec
from zmqrl.planning import checks
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.types import ModeName


def planned(
    tmp_path: Path, preset: str, mode: ModeName | None = None, workers: int | None = 2, **values: Any
) -> RunPlan:
    flags = [f"{key.replace('__', '.')}={value}" for key, value in values.items()]
    loaded = load(preset, overrides=flags, mode=mode, workers=workers)
    return checked_plan(loaded.config, tmp_path / "run", time.time(), sources=loaded.sources)


@pytest.mark.parametrize(
    ("preset", "mode", "slots", "streams", "workers", "batch"),
    [
        ("cartpole-ppo", "single", 4 + 2, 4, 0, 4),
        ("cartpole-ppo", "sync", 4 + 4, 4, 2, 4),
        ("cartpole-ppo", "async", 4 + 2, 2 + 64, 2, 1),
        ("cartpole-dqn", "single", 313 + 4 + 2, 4, 0, 4),
        ("cartpole-dqn", "sync", 313 + 4 + 4, 4, 2, 4),
        ("cartpole-dqn", "async", 313 + 8 + 2, 2 + 64, 2, 0),
    ],
)
def test_sizes(tmp_path: Path, preset: str, mode: ModeName, slots: int, streams: int, workers: int, batch: int) -> None:
    plan = planned(tmp_path, preset, mode)
    assert (plan.slots, plan.streams, dict(plan.workers)) == (slots, streams, {"local": workers})
    assert plan.batch_segments == batch
    assert plan.on_policy == (preset == "cartpole-ppo")
    assert from_json(RunPlan, to_json(plan)) == plan


class OwnBatch(PPO):
    """On-policy, with its default for batches in async."""

    batch_segments = None


class NoBatch(PPO):
    """A batch of nothing."""

    batch_segments = 0


class HeldReplay(DQN):
    held_batches = 1


class HalfBatch(PPO):
    held_batches = 0.5  # type: ignore[assignment]


class LessThanNone(PPO):
    held_batches = -1


class ReplayBatch(DQN):
    """Off-policy, with a batch of segments."""

    batch_segments = 4


def test_a_first_compilation_without_a_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZMQRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with raises(
        ConfigError,
        key=("learner", "executor"),
        value="'compiled'",
        what="needs a C++ compiler, and 'no-such-compiler' is missing",
    ):
        planned(tmp_path, "cartpole-ppo", "sync", learner__executor="compiled")
    planned(tmp_path, "cartpole-ppo", "sync")
    elsewhere = {"hosts__far__ssh": "10.0.0.7", "hosts__far__workers": 1, "learner__host": "far"}
    planned(tmp_path, "cartpole-ppo", "sync", None, learner__executor="compiled", **elsewhere)
    cache_folder().mkdir(parents=True)
    (cache_folder() / "a.pt2").touch()
    planned(tmp_path, "cartpole-ppo", "sync", learner__executor="compiled")


@pytest.mark.parametrize(("mode", "slots", "held"), [("single", 6 + 3 + 2, 6), ("async", 4 + 4 + 2 * 2, 4)])
def test_held_batches_have_slots_in_addition(tmp_path: Path, mode: ModeName, slots: int, held: int) -> None:
    """Two batches, of 3 vector envs or in async of 2 segments; and two leases of each worker."""
    kind = "tests.stand_ins.held_tally:HeldTally"
    algorithm = {"kind": kind, "phase": 2, "batch_segments": 2, "minibatch_size": 8}
    plan = planned(tmp_path, "cartpole-ppo", mode, algorithm=algorithm, env__vector_envs=3)
    assert (plan.held_segments, plan.slots) == (held, slots)


def test_held_batches_are_checked_as_replay(tmp_path: Path) -> None:
    algorithm = {"kind": "tests.stand_ins.held_tally:HeldTally", "phase": 2, "minibatch_size": 8}
    with raises(ConfigError, key=("env", "segment_steps"), value="6"):
        planned(tmp_path, "cartpole-ppo", "sync", algorithm=algorithm, env__segment_steps=6)
    planned(tmp_path, "cartpole-ppo", "sync", algorithm={**algorithm, "phase": 0}, env__segment_steps=64)


def test_without_batch_segments_a_batch_in_async_is_that_of_sync(tmp_path: Path) -> None:
    plan = planned(tmp_path, "cartpole-ppo", "async", algorithm__kind=f"{__name__}:OwnBatch", env__vector_envs=3)
    assert plan.batch_segments == 3


@pytest.mark.parametrize(
    ("kind", "preset", "fault"),
    [
        (NoBatch, "cartpole-ppo", fields("NoBatch.batch_segments", "0", what="must be at least 1, or None")),
        (
            ReplayBatch,
            "cartpole-dqn",
            fields("ReplayBatch.batch_segments", "4", what="must be None, since on_policy is False"),
        ),
        (
            HeldReplay,
            "cartpole-dqn",
            fields("HeldReplay.held_batches", "1", what="must be 0, since on_policy is False"),
        ),
        (
            HalfBatch,
            "cartpole-ppo",
            fields("HalfBatch.held_batches", "0.5", what="must be a whole number of at least 0"),
        ),
        (LessThanNone, "cartpole-ppo", fields("LessThanNone.held_batches", "-1")),
    ],
)
def test_a_batch_that_is_refused(tmp_path: Path, kind: type[Algorithm], preset: str, fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        planned(tmp_path, preset, "async", algorithm__kind=f"{__name__}:{kind.__name__}")


def test_columns_paths_and_names(tmp_path: Path) -> None:
    plan = planned(tmp_path, "cartpole-ppo")
    columns = [(column.name, column.dtype, column.shape) for column in plan.columns]
    assert columns == [
        ("obs", "float32", (33, 2, 4)),
        ("action", "int64", (32, 2)),
        ("reward", "float32", (32, 2)),
        ("terminated", "bool", (32, 2)),
        ("truncated", "bool", (32, 2)),
        ("valid", "bool", (32, 2)),
        ("log_prob", "float32", (32, 2)),
    ]
    assert (plan.run_dir, plan.store_path) == (str(tmp_path / "run"), str(tmp_path / "run" / "checkpoints"))
    assert plan.run_id.startswith("cartpole-ppo-") and plan.run_id != planned(tmp_path, "cartpole-ppo").run_id
    shared = planned(tmp_path, "cartpole-ppo", store__path=tmp_path / "far")
    assert shared.store_path == str(tmp_path / "far" / shared.lineage.id)
    assert shared.lineage.id.startswith("cartpole-ppo-") and shared.lineage.attempt == 1
    assert shared.lineage.id != planned(tmp_path, "cartpole-ppo", store__path=tmp_path / "far").lineage.id
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("preset", "mode", "values", "message"),
    [
        ("cartpole-ppo", "sync", {"env__id": "CartPol-v1"}, "--set: env.id: no env is registered as 'CartPol-v1'; did you mean 'CartPole-v1'"),
        ("cartpole-ppo", "sync", {"env__id": "tests.envs.space_envs:Of", "env__kwargs": "{observation: text}"}, "--set: env.id: 'tests.envs.space_envs:Of': observations are Text"),
        ("cartpole-dqn", "sync", {"env__id": "Pendulum-v1"}, "algorithm.kind: dqn needs discrete actions"),
        ("cartpole-ppo", "sync", {"network__activation": "norm"}, "network.activation: layer kind 'norm' is not an activation; known: gelu, "),
        ("cartpole-ppo", "sync", {"network__activation": "linear"}, "network.activation: layer kind 'linear' is not an activation; known: gelu, "),
        ("cartpole-ppo", "sync", {"network__kind": "tests.networks.nets:Backbone"}, "--set: network.kind: 'tests.networks.nets:Backbone': these parameters have no gradient: classifier.weight, classifier.bias; every parameter is trained"),
        ("cartpole-dqn", "sync", {"network__kind": "tests.networks.nets:Backbone"}, "--set: network.kind: 'tests.networks.nets:Backbone': these parameters have no gradient"),
        ("cartpole-ppo", "sync", {"algorithm__kind": "tests.planning.odd_networks:UnknownLayer"}, "layer kind 'norm' is unknown; known: concat, conv, "),
        ("cartpole-ppo", "sync", {"algorithm__kind": "tests.planning.odd_networks:TorchOnly"}, "layer 'actor.0' of kind 'conv' needs runtime torch"),
        ("cartpole-ppo", "sync", {"workers": 5}, "--workers: hosts.local.workers: the 5 workers of all hosts exceed env.vector_envs 4"),
        ("cartpole-ppo", "sync", {"workers": 0}, "--workers: hosts.local.workers: 0: mode sync needs at least 1 worker"),
        ("cartpole-ppo", "sync", {"min_workers": 3}, "--set: min_workers: 3: all hosts together have 2 workers"),
        ("cartpole-ppo", "sync", {"limits__heartbeat_s": 30.0}, "limits.lost_after_s (default): 20: must be at least 60, which is 2 x"),
        ("cartpole-ppo", "sync", {"limits__stalled_after_s": 0.5}, "limits.stalled_after_s: 0.5: must be at least 1, which is 2 x"),
        ("cartpole-ppo", "sync", {"limits__host_lease_s": 0.9}, "--set: limits.host_lease_s: 0.9: must be at least 1, which is 2 x"),
        ("cartpole-ppo", "sync", {"algorithm__minibatch_size": 512}, "--set: algorithm.minibatch_size: 512 is larger than the batch of 256 rows"),
        ("cartpole-dqn", "async", {"algorithm__batch_size": 20000}, "--set: algorithm.batch_size: 20000 is larger than replay.capacity"),
        ("cartpole-dqn", "async", {"replay__learning_starts": 20000}, "--set: replay.learning_starts: 20000 exceeds replay.capacity"),
        ("cartpole-dqn", "sync", {"replay__capacity": 100, "replay__learning_starts": 0, "algorithm__batch_size": 8}, "--set: replay.capacity: 100: must be at least 128 env steps"),
        ("cartpole-dqn", "async", {"replay__slack": 100}, "--set: replay.slack: 100: must be at least 128"),
        ("cartpole-dqn", "async", {"replay__slack": 130, "replay__ratio": 0.01}, "--set: replay.slack: 130: must be at least 132"),
        ("cartpole-dqn", "sync", {"algorithm__n_step": 8}, "env.segment_steps: 16 is too short for n_step 8 in single, sync and pipelined"),
        ("pendulum-sac", "sync", {"algorithm__n_step": 2}, "env.segment_steps: 4 is too short for n_step 2 in single, sync and pipelined"),
        ("pendulum-td3", "async", {"algorithm__n_step": 5, "env__segment_steps": 4}, "env.segment_steps: 4 is too short for n_step 5 in async"),
        ("cartpole-dqn", "sync", {"algorithm__kind": "tests.stand_ins.sequence_tally:SequenceTally", "algorithm__length": 15}, "env.segment_steps: 16 is too short for sequences of 17 rows"),
        ("cartpole-ppo", "sync", {"network__kind": "cnn"}, "--set: network.kind: 'cnn' requires image observations"),
        ("cartpole-ppo", "sync", {"env__id": "tests.envs.space_envs:Mixed", "learner__executor": "manual"}, "learner.executor: 'manual': algorithm.kind ppo supports only eager, compiled"),
        ("cartpole-ppo", "sync", {"learner__precision": "bfloat16", "learner__executor": "manual"}, "--set: learner.executor: 'manual': learner.precision bfloat16 needs eager, compiled"),
        ("cartpole-ppo", "sync", {"learner__precision": "float16"}, "--set: learner.precision: 'float16'"),
        ("cartpole-dqn", "sync", {"env__id": "tests.envs.space_envs:Mixed"}, "algorithm.kind: dqn does not train with masks, and tests.envs.space_envs:Mixed has an action_mask"),
        ("cartpole-ppo", "sync", {"env__id": "tests.envs.space_envs:Pair", "learner__executor": "manual"}, "learner.executor: 'manual': algorithm.kind ppo supports only eager, compiled"),
        ("cartpole-dqn", "sync", {"env__id": "tests.envs.space_envs:Pair"}, "algorithm.kind: dqn needs discrete actions, tests.envs.space_envs:Pair has multi_discrete actions"),
        ("pendulum-sac", "sync", {"env__id": "tests.envs.space_envs:HalfBounded"}, "algorithm.kind: sac needs discrete or continuous actions within bounds, tests.envs.space_envs:HalfBounded has partly unbounded actions"),
        ("cartpole-ppo", "sync", {"env__id": "tests.envs.space_envs:Bits", "algorithm__normalise_obs": "true"}, "--set: algorithm.normalise_obs: true: tests.envs.space_envs:Bits has no float observations"),
        ("cartpole-ppo", "sync", {"env__id": "tests.envs.space_envs:Bits", "algorithm__normalise_obs": "true"}, 'set false, or add {"gymnasium.wrappers:DtypeObservation": {dtype: float32}} to env.wrappers'),
        ("pendulum-sac", "sync", {"env__id": "tests.envs.value_envs:Acts", "env__kwargs": "{bounds: largest}"}, "algorithm.kind: sac scales actions to their bounds, and in tests.envs.value_envs:Acts entry 0 of 2 has the bounds [-3.40282e+38, 3.40282e+38], and their distance must be above 0 and at most 1.7e+38 in float32; correct the bounds, "),
        ("pendulum-td3", "async", {"env__id": "tests.envs.value_envs:Acts", "env__kwargs": "{bounds: largest float64}"}, "algorithm.kind: td3 scales actions to their bounds, and in tests.envs.value_envs:Acts entry 0 of 2 has the bounds [-1.79769e+308, 1.79769e+308]"),
        ("pendulum-sac", "sync", {"env__id": "tests.envs.value_envs:Acts", "env__kwargs": "{bounds: one side}"}, "entry 1 of 2 has the bounds [0, 3.40282e+38]"),
        ("pendulum-sac", "sync", {"env__id": "tests.envs.value_envs:Acts", "env__kwargs": "{bounds: equal}"}, "entry 1 of 2 has the bounds [1, 1], and their distance must be above 0"),
        ("pendulum-td3", "sync", {"env__id": "tests.envs.value_envs:Acts", "env__kwargs": "{bounds: equal in float32}"}, "entry 1 of 2 has the bounds [1e+09, 1e+09], and their distance must be above 0 and at most 1.7e+38 in float32; correct the bounds, or change the action space by a wrapper in env.wrappers; algorithms for this env: a2c, bc, impala, iql, ppo, "),
        ("cartpole-ppo", "sync", {"env__id": "tests.envs.space_envs:Bits", "network__kind": "cnn"}, "--set: network.kind: 'cnn' requires image observations"),
        ("cartpole-ppo", "sync", {"env__id": "tests.envs.space_envs:Mixed", "network__kind": "cnn"}, "has observations of parts action_mask [4], image [3, 5, 5]"),
        ("cartpole-ppo", "sync", {"learner__device": "gpu"}, "--set: learner.device: 'gpu': write auto, cpu, cuda"),
        ("cartpole-ppo", "sync", {"learner__device": "cuda:1"}, "--set: learner.device: 'cuda:1': this machine has no NVIDIA device"),
        ("cartpole-ppo", "sync", {"store__path": "/proc/x"}, "--set: store.path: '/proc/x' cannot be written"),
        ("cartpole-ppo", "sync", {"store__path": "/etc/hostname/x"}, "--set: store.path: '/etc/hostname/x' cannot be created"),
        ("cartpole-ppo", "sync", {"store__kind": "directry"}, "--set: store.kind: unknown data store 'directry'"),
        ("cartpole-ppo", "sync", {"memory_backend__kind": "inproc"}, "--set: memory_backend.kind: unknown memory backend 'inproc'"),
    ],
)  # fmt: skip
def test_faults(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    preset: str,
    mode: ModeName,
    values: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setattr(checks, "NVIDIA", tmp_path / "nvidia0")
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, preset, mode, **values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_arena_that_does_not_fit_names_need_and_setting(tmp_path: Path) -> None:
    with raises(ArenaTooLarge, fix="lower replay.capacity, env.num_envs or env.segment_steps"):
        planned(tmp_path, "cartpole-dqn", "async", replay__capacity=10**12)


@pytest.mark.parametrize("steps", [10**20, 2**32])
def test_numbers_beyond_64_bits_do_not_wrap(tmp_path: Path, steps: int) -> None:
    """2**32 steps of 2**32 envs are 0 in int64: the arena would fit."""
    with pytest.raises(ConfigError, match=r"the arena needs \d{13,} MB of memory"):
        planned(tmp_path, "cartpole-ppo", env__segment_steps=steps, env__num_envs=2**32, workers=1)


def test_an_algorithm_in_a_mode_that_it_does_not_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPO, "modes", frozenset({"single", "sync"}))
    with raises(
        ConfigError, key=("run", "mode"), value="'async'", what="algorithm.kind ppo supports only single, sync"
    ):
        planned(tmp_path, "cartpole-ppo", "async")


def test_a_head_that_does_not_apply_masks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zmqrl.acting.heads import Categorical

    assert planned(tmp_path, "cartpole-ppo", env__id="tests.envs.space_envs:Mixed", env__max_episode_steps=30)
    monkeypatch.setattr(Categorical, "masks", False)
    with raises(ConfigError, key=(), what="head 'categorical' does not apply the action_mask of the observations"):
        planned(tmp_path, "cartpole-ppo", env__id="tests.envs.space_envs:Mixed", env__max_episode_steps=30)


@pytest.mark.parametrize(
    ("acting", "fault"),
    [
        (
            {"state": (ActingState("core", 8),), "state_every": 5},
            fields("env.segment_steps", "32", fix="0 stores the first only"),
        ),
        ({"options": {"temperature": 2.0}}, fields(what="head 'categorical' has no options ['temperature'], only []")),
        (
            {"head": "no_such:Head"},
            fields(what="head 'no_such:Head' is unknown and cannot be loaded: No module named 'no_such'"),
        ),
        (
            {"layers": (LayerSpec("gru", "core", 4, 8),)},
            fields("acting", fix="in acting(): state=state_of(layers), which has ActingState(name='core', size=8)"),
        ),
    ],
)
def test_acting_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acting: dict[str, Any], fault: dict[str, Any]
) -> None:
    spec = PPO.acting
    monkeypatch.setattr(PPO, "acting", lambda self: replace(spec(self), **acting))
    with raises(ConfigError, **fault):
        planned(tmp_path, "cartpole-ppo")


def test_state_has_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, state = PPO.acting, (ActingState("core", 8),)
    monkeypatch.setattr(PPO, "acting", lambda self: replace(spec(self), state=state, state_every=16))
    plan = planned(tmp_path, "cartpole-ppo", env__segment_steps=64, env__num_envs=3)
    shapes = {column.name: column.shape for column in plan.columns}
    assert (shapes["state.core"], shapes["state_end.core"]) == ((4, 3, 8), (1, 3, 8))


def test_hosts_whose_cores_are_not_known_yet_count_as_one_worker(tmp_path: Path) -> None:
    values: dict[str, Any] = {"hosts__a": "{}", "hosts__b": "{workers: 3}", "env__vector_envs": 6}
    plan = planned(tmp_path, "cartpole-ppo", workers=None, hosts__local__workers=1, min_workers=9, **values)
    assert dict(plan.workers) == {"local": 1, "a": 1, "b": 3}
    assert plan.slots == 6 + 5 * 2
    with raises(ConfigError, key=("hosts", "local", "workers"), fix="raise env.vector_envs or set fewer workers"):
        planned(tmp_path, "cartpole-ppo", workers=None, hosts__local__workers=2, **values | {"env__vector_envs": 4})


def test_a_learner_elsewhere_is_not_checked_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NVIDIA", tmp_path / "none")
    (tmp_path / "file").touch()
    values: dict[str, Any] = {"learner__device": "cuda", "store__path": tmp_path / "file" / "far"}
    values |= {"hosts__gpu": "{workers: 2}", "hosts__local__workers": 0}
    plan = planned(tmp_path, "cartpole-ppo", workers=None, learner__host="gpu", **values)
    assert dict(plan.workers) == {"local": 0, "gpu": 2}
    single = planned(tmp_path, "cartpole-ppo", "single", None, learner__host="gpu", **values)
    assert dict(single.workers) == {"gpu": 0}
    with raises(ConfigError, key=("learner", "device"), value="'cuda'", what="this machine has no NVIDIA device"):
        planned(tmp_path, "cartpole-ppo", workers=None, **values)
    with raises(ConfigError, key=("learner", "device"), value="'tpu'", what="write auto, cpu, cuda or cuda:0"):
        planned(tmp_path, "cartpole-ppo", workers=None, learner__host="gpu", **values | {"learner__device": "tpu"})


def test_torch_has_the_time_of_the_start_to_find_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold import of it may take half a minute."""
    monkeypatch.setattr(checks, "NVIDIA", tmp_path)
    values: dict[str, Any] = {"learner__device": "cuda:0", "limits__start_s": 0.01}
    what = "torch cannot use this device: torch did not respond within limits.start_s (0.01 s); check the GPU with nvidia-smi"
    with raises(ConfigError, key=("learner", "device"), value="'cuda:0'", what=what):
        planned(tmp_path, "cartpole-ppo", **values)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_processor_that_may_reorder_stores_trains_in_single_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ModeName
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with raises(ConfigError, key=("run", "mode"), value=repr(mode), fix="write single"):
        planned(tmp_path, "cartpole-ppo", mode)
    planned(tmp_path, "cartpole-ppo", "single")
    far = {"hosts": "{local: {workers: 0}, far: {workers: 2}}", "learner__host": "far"}
    assert planned(tmp_path, "cartpole-ppo", mode, None, **far).workers["far"] == 2


def test_an_env_is_stepped_where_workers_of_this_machine_step_it(tmp_path: Path) -> None:
    faulty: dict[str, Any] = {"env__id": "tests.stand_ins.faulty_envs:Faulty", "env__max_episode_steps": 25}
    faulty["env__kwargs"] = "{fault: raise, after: 40}"
    for mode in ("single", "async"):
        with raises(ConfigError, key=("env", "id"), source="--set") as caught:
            planned(tmp_path, "cartpole-ppo", mode, **faulty)
        assert caught.value.what.splitlines()[0] == "step raised RuntimeError: the wheel came off"
    far = {"hosts": "{local: {workers: 0}, far: {workers: 2}}"}
    assert planned(tmp_path, "cartpole-ppo", "async", None, **far, **faulty).workers["far"] == 2


def test_a_column_above_the_frame_limit_is_refused_where_another_host_would_send_it(tmp_path: Path) -> None:
    def with_hosts(steps: int, envs: int, *hosts: str) -> RunPlan:
        flags = [f"env.segment_steps={steps}", f"env.num_envs={envs}", "limits.leases_per_worker=1"]
        flags += [f"hosts.{host}.workers=1" for host in hosts]
        loaded = load("pendulum-ppo", overrides=[*flags, "env.vector_envs=2", "algorithm.minibatch_size=64"])
        return checked_plan(loaded.config, tmp_path / "run", time.time(), sources=loaded.sources)

    with_hosts(100_000, 64, "local")
    with raises(ConfigError, key=("env", "segment_steps"), value="100000") as refused:
        with_hosts(100_000, 64, "local", "far")
    steps = int(re.findall(r"env.segment_steps: (\d+) or", str(refused.value))[0])
    envs = int(re.findall(r"or env.num_envs: (\d+) would fit", str(refused.value))[0])
    with_hosts(steps, 64, "local", "far")
    with_hosts(100_000, envs, "local", "far")
    with raises(
        ConfigError,
        key=("env", "segment_steps"),
        value="87381",
        fix="env.segment_steps: 87380 or env.num_envs: 63 would fit",
    ):
        with_hosts(steps + 1, 64, "local", "far")


@pytest.mark.parametrize(
    ("preset", "values", "warned"),
    [
        ("cartpole-ppo", {"run__schedule_env_steps": 1000, "run__total_env_steps": 2000}, True),
        ("cartpole-ppo", {"run__schedule_env_steps": 2000, "run__total_env_steps": 2000}, False),
        ("acrobot-ppo", {"run__schedule_env_steps": 1000, "run__total_env_steps": 2000}, False),
        ("lunarlander-dqn", {}, False),
    ],
)
def test_a_run_that_would_train_with_a_learning_rate_of_zero_is_warned_of(
    tmp_path: Path, preset: str, values: dict[str, Any], warned: bool
) -> None:
    warnings = planned(tmp_path, preset, **values).warnings
    assert len(warnings) == warned
    for warning in warnings:
        assert "0 from 1,000 env steps on" in warning and "run.schedule_env_steps=2000" in warning
        assert "\n" not in warning


@pytest.mark.parametrize("mode", ["single", "sync", "async"])
@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
@pytest.mark.whole
def test_no_preset_trains_with_a_learning_rate_of_zero(tmp_path: Path, preset: str, mode: ModeName) -> None:
    extra = missing_extra(preset)
    if extra is not None:
        pytest.skip(f"zmqrl[{extra}] is not installed")
    assert planned(tmp_path, preset, mode).warnings == ()


def test_hosts_with_open_numbers_of_workers_share_the_vector_envs_that_are_left(tmp_path: Path) -> None:
    hosts = {"local": HostSection(workers=2), **{name: HostSection(workers="auto") for name in ("a", "b", "c")}}
    config = load("cartpole-ppo", overrides=["env.vector_envs=4"]).config
    plan = checked_plan(replace(config, hosts=hosts), tmp_path, time.time())
    assert plan.workers == {"local": 2, "a": 1, "b": 1, "c": 0}
