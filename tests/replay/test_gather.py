from __future__ import annotations

import numpy as np
import pytest

from zmqrl.replay.base import SegmentMeta, gather
from zmqrl.types import SegmentId, SlotRef, Version


def meta(vector_env: int) -> SegmentMeta:
    return SegmentMeta(SegmentId(vector_env, 0, 0), Version(0, 0), 4)


def test_side_by_side_in_the_order_of_vector_envs_from_strided_views() -> None:
    # As in the arena: a slot's columns are interleaved with other bytes.
    memory = np.zeros((3, 100), dtype=np.float32)
    view = memory[:, 10:16].reshape(3, 3, 2)
    view[:] = np.arange(18).reshape(3, 3, 2)
    assert not view.flags.c_contiguous and view.base is not None
    batch = gather({"reward": view}, [SlotRef(2, 1), SlotRef(0, 1)], [meta(1), meta(0)])
    reward = batch.columns["reward"]
    np.testing.assert_array_equal(reward, [[0, 1, 12, 13], [2, 3, 14, 15], [4, 5, 16, 17]])
    assert reward.flags.c_contiguous and [m.id.vector_env for m in batch.metas] == [0, 1]
    memory[:] = -1
    assert reward.min() == 0


def test_refs_and_metas_must_pair_up() -> None:
    with pytest.raises(ValueError):
        gather({}, [SlotRef(0, 1)], [])
