"""Mode offline: the updates of a data set, with the same bits after any restart, and messages for what it needs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.marks import long
from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import (
    Config,
    EnvSection,
    EvaluatorSection,
    HostSection,
    NetworkSection,
    ReplaySection,
    RunSection,
)
from zmqrl.data_sets.episodes import Episode
from zmqrl.data_sets.minari_files import write_data_set
from zmqrl.data_stores import tensors
from zmqrl.data_stores.make import make_store
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError
from zmqrl.learner.process import main
from zmqrl.learning import ReplayLearner
from zmqrl.planning.plan_run import plan_run
from zmqrl.replay.mixed import MixedReplay
from zmqrl.types import Array

DQN = {
    "kind": "dqn",
    "batch_size": 8,
    "target_update_every": 30,
    "prioritised": {},
    "learning_rate": {"start": 1e-3, "end": 1e-4},
}

BC = {"kind": "bc", "batch_size": 8, "learning_rate": [[0, 1e-3], [300, 1e-4]]}
IQL = {"kind": "iql", "batch_size": 8, "target_tau": 0.1}
CQL = {"kind": "cql", "batch_size": 8, "target_entropy": 0.3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random episodes of CartPole."""
    env, episodes, folder = gymnasium.make("CartPole-v1"), [], tmp_path_factory.mktemp("data")
    env.action_space.seed(1)
    for seed in range(6):
        obs, rows = [env.reset(seed=seed)[0]], []
        while not rows or not rows[-1][2]:
            action = env.action_space.sample()
            after, reward, terminated, _, _ = env.step(action)
            obs.append(after)
            rows.append((action, reward, terminated))
        action, reward, terminated = (np.array(column) for column in zip(*rows, strict=True))
        flags = terminated.astype(bool), np.zeros(len(rows), bool)
        episodes.append(Episode(np.stack(obs), action.astype(np.int64), reward.astype(np.float32), *flags))
    env.close()
    write_data_set(folder, probe(EnvSection()), "random", episodes)
    return folder


def _config(data: Path | None, **changes: Any) -> Config:
    run = RunSection(mode="offline", stop_at_updates=450, checkpoint_every_s=0.001)
    config = Config(
        run=run,
        env=EnvSection(num_envs=2, segment_steps=8),
        network=NetworkSection(hidden=(8,)),
        algorithm=DQN,
        replay=ReplaySection(load=None if data is None else str(data)),
        evaluator=EvaluatorSection(episodes=0),
        hosts={"local": HostSection(workers=0)},
    )
    return replace(config, **changes)


def _plan(tmp_path: Path, config: Config, resume: bool = False) -> RunPlan:
    return plan_run(config, tmp_path / "run", time.time(), resume)


def _train(plan: RunPlan, spawn: int = 0) -> dict[str, Array]:
    """What the learner has at its end, in mode offline."""
    arrays, counts = _last(plan, spawn)
    assert counts == ("0", str(plan.config.run.stop_at_updates))
    return arrays


def _last(plan: RunPlan, spawn: int = 0) -> tuple[dict[str, Array], tuple[str, str]]:
    """The last version, its env steps and updates."""
    assert main(Boot("learner", 0, spawn, "local", plan)) == 0
    newest = make_store(plan).newest()
    assert newest is not None
    arrays, metadata = tensors.parse(newest[1])
    return {**arrays}, (metadata["env_steps"], metadata["updates"])


def _die(monkeypatch: pytest.MonkeyPatch, plan: RunPlan, calls: int = 2) -> None:
    """The first learner ends after so many versions, without its last full checkpoint."""
    from zmqrl.algorithms.q_learning.manual import ManualDQNLearner

    learner = ManualDQNLearner if plan.config.algorithm["kind"] == "dqn" else ReplayLearner
    update, left = learner.update, [calls]

    def mortal(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return update(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(learner, "update", mortal)
        with pytest.raises(KeyboardInterrupt):
            main(Boot("learner", 0, 0, "local", plan))


@pytest.mark.parametrize("algorithm", [DQN, BC, long(IQL), long(CQL)], ids=lambda section: section["kind"])
@pytest.mark.whole
def test_a_killed_and_a_resumed_run_have_the_same_bits(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, algorithm: Mapping[str, Any]
) -> None:
    config = _config(data, algorithm=algorithm)
    straight = _train(_plan(tmp_path / "straight", config))
    for name, resume in (("killed", False), ("resumed", True)):
        plan = _plan(tmp_path / name, config)
        _die(monkeypatch, plan)
        plan = replace(plan, resume=resume)
        again = _train(plan, spawn=int(not resume))
        assert again.keys() == straight.keys()
        assert all(np.array_equal(again[key], straight[key]) for key in straight), name


@pytest.mark.whole
def test_loaded_rows_are_a_share_of_each_batch_and_pay_for_no_update(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode single, killed and continued: same bits; updates as without the data set."""
    run = RunSection(mode="single", total_env_steps=512, checkpoint_every_s=0.001)
    section = ReplaySection(load=str(data), load_share=0.25, capacity=500, learning_starts=128, ratio=0.5)
    config = _config(data, run=run, replay=section)
    config = replace(config, env=replace(config.env, vector_envs=2), hosts={"local": HostSection(workers=0)})
    shares: list[tuple[int, int]] = []

    def counted(*arguments: Any) -> Any:
        found = sample(*arguments)
        shares.append((int((found.rows >= 0).sum()), int((found.rows < 0).sum())))
        return found

    sample = MixedReplay.sample
    monkeypatch.setattr(MixedReplay, "sample", counted)
    straight = _last(_plan(tmp_path / "straight", config))
    env_steps, updates = map(int, straight[1])
    assert 512 <= env_steps < 512 + 32 and updates == (env_steps - 128) // 2
    assert set(shares) == {(6, 2)}
    plan = _plan(tmp_path / "killed", config)
    _die(monkeypatch, plan, calls=5)
    killed = _last(plan, spawn=1)
    assert killed[1] == straight[1]
    assert all(np.array_equal(killed[0][key], straight[0][key]) for key in straight[0])


def test_another_data_set_is_refused_by_its_digest(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(tmp_path, _config(data))
    _die(monkeypatch, plan)
    env = probe(EnvSection())
    rows = np.zeros(3, np.float32), np.zeros(3, bool), np.zeros(3, bool)
    write_data_set(tmp_path / "other", env, "x", [Episode(np.zeros((4, 4), np.float32), np.zeros(3, np.int64), *rows)])
    section = replace(plan.config.replay, load=str(tmp_path / "other"))
    other = replace(plan, config=replace(plan.config, replay=section), resume=True)
    fix = "restore it, or start a new run with --init-from"
    with raises(ConfigError, key=("replay", "load"), value=repr(str(tmp_path / "other")), fix=fix):
        main(Boot("learner", 0, 0, "local", other))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"replay": ReplaySection()}, ("run", "mode")),
        ({"run": RunSection(mode="offline")}, ("run", "mode")),
        ({"run": RunSection(mode="offline", stop_at_updates=5, record="x")}, ("run", "mode")),
        ({"algorithm": {"kind": "ppo"}}, ("run", "mode")),
        ({"algorithm": {"kind": "tests.stand_ins.sequence_tally:SequenceTally"}}, ("replay", "load")),
        ({"run": RunSection(mode="single"), "algorithm": {"kind": "ppo"}}, ("replay", "load")),
    ],
)
def test_what_does_not_fit_is_refused_before_the_start(
    tmp_path: Path, changes: dict[str, Any], key: tuple[str, ...]
) -> None:
    with raises(ConfigError, key=key):
        _plan(tmp_path, _config(tmp_path, **changes))
