"""Episodes cut out of recorded segments."""

from __future__ import annotations

import numpy as np

from tests.data_sets.recorded import assert_equal, episode, frames_of
from zmqrl.data_sets.episodes import episodes_of
from zmqrl.types import EnvSpec, SpaceSpec

ENV = EnvSpec("tests:Any", SpaceSpec("box", (3,), "float32"), SpaceSpec("discrete", (), "int64", n=2))


def test_episodes_are_those_that_the_slots_played_in_the_order_of_their_ends() -> None:
    rng = np.random.default_rng(1)
    lanes = [[episode(ENV, rng, 3), episode(ENV, rng, 9), episode(ENV, rng, 2, ended=False)], [episode(ENV, rng, 7)]]
    found = list(episodes_of(frames_of(ENV, lanes)))
    # Rows of the ends: 2 and 13 of slot 0, 6 of slot 1; a frame has 4 rows, and slots are in order within a frame.
    assert_equal(found, [lanes[0][0], lanes[1][0], lanes[0][1], lanes[0][2]])
    assert [one.is_finished for one in found] == [True, True, True, False]


def test_a_frame_that_does_not_continue_leaves_unfinished_episodes() -> None:
    rng = np.random.default_rng(2)
    whole = episode(ENV, rng, 6)
    frames = frames_of(ENV, [[whole]])
    frames["continues"][1] = False
    cut = [one.reward for one in episodes_of(frames)]
    assert np.array_equal(cut[0], whole.reward[:4]) and np.array_equal(cut[1], whole.reward[4:])


def test_stacks_of_frames_are_those_of_the_episode() -> None:
    rng = np.random.default_rng(3)
    single = [episode(ENV, rng, 5), episode(ENV, rng, 4, ended=False)]
    frames, k = frames_of(ENV, [single]), 3
    stacked_type = [(n, d if n != "obs" else ("<f4", (4 + k, 1, 3))) for n, (d, *_) in frames.dtype.fields.items()]
    stacked = np.zeros(len(frames), np.dtype(stacked_type))
    for name in frames.dtype.names:
        if name != "obs":
            stacked[name] = frames[name]
    every = np.concatenate([np.repeat(frames["obs"][0, :1], k - 1, 0), *frames["obs"][:, :4], frames["obs"][-1, 4:]])
    for number in range(len(frames)):
        stacked["obs"][number] = every[4 * number : 4 * number + 4 + k]
    # What lies in front of a segment is stored with the rule of the episode applied.
    stacked["obs"][1, 0] = stacked["obs"][1, 1] if not frames["valid"][0, 3, 0] else stacked["obs"][1, 0]
    for one, plain in zip(episodes_of(stacked), single, strict=True):
        padded = np.concatenate([np.repeat(plain.obs[:1], k - 1, 0), plain.obs])
        expected = np.stack([padded[t : t + k] for t in range(len(plain.obs))])
        assert np.array_equal(one.obs, expected)
