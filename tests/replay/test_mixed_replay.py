"""Batches of the rows of the run and a share of loaded rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data_sets.recorded import episode
from zmqrl.data_sets.rows import LoadedReplay, columns_of
from zmqrl.replay.mixed import MixedReplay
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.types import EnvSpec, SpaceSpec

ENV = EnvSpec("tests:Any", SpaceSpec("box", (3,), "float32"), SpaceSpec("discrete", (), "int64", n=2))
PRIORITISED = ReplaySpec(prioritised=Prioritised(alpha=1.0, epsilon=1e-6))


def _replay(spec: ReplaySpec, reward: float) -> SegmentReplay:
    """Rows that their rewards tell apart."""
    rng = np.random.default_rng(1)
    episodes = [episode(ENV, rng, 9) for _ in range(4)]
    for one in episodes:
        one.reward[:] = reward
    return LoadedReplay(columns_of(episodes, 8, 2), 1, spec)


@pytest.mark.parametrize(("share", "loaded"), [(0.0, 0), (0.25, 4), (0.5, 8), (1.0, 16)])
def test_each_batch_has_the_share(share: float, loaded: int) -> None:
    mixed = MixedReplay(_replay(ReplaySpec(), 1.0), _replay(ReplaySpec(), 2.0), share)
    for key in range(3):
        sample = mixed.sample(16, 1, 0.9, key)
        assert sample.n_step_return.tolist() == [1.0] * (16 - loaded) + [2.0] * loaded
        assert ((sample.rows < 0) == (sample.n_step_return == 2.0)).all()
        assert {len(column) for column in sample.columns.values()} == {16}


def test_sequences_are_side_by_side_in_the_axis_of_the_batch() -> None:
    spec = ReplaySpec(length=4)
    sample = MixedReplay(_replay(spec, 1.0), _replay(spec, 2.0), 0.5).sample_sequences(6, 0)
    assert sample.obs.shape == (5, 6, 3) and sample.mask.shape == (4, 6) and sample.weight.shape == (6,)
    rewards = np.where(sample.valid, sample.reward, np.nan)
    assert np.nanmax(rewards[:, :3]) == 1.0 and np.nanmin(rewards[:, 3:]) == 2.0


def test_priorities_reach_the_replay_of_each_row() -> None:
    own, loaded = _replay(PRIORITISED, 1.0), _replay(PRIORITISED, 2.0)
    mixed = MixedReplay(own, loaded, 0.5)
    first = mixed.sample(64, 1, 0.9, 0).rows[[0, -1]]
    for key in range(20):  # all other rows become improbable
        sample = mixed.sample(64, 1, 0.9, key)
        mixed.set_priorities(sample, np.where(np.isin(sample.rows, first), 1.0, 0.0))
    drawn = mixed.sample(64, 1, 0.9, 99).rows
    assert set(drawn.tolist()) == set(first.tolist())
    assert (own.size, loaded.size, mixed.size) == (36, 36, 36)
