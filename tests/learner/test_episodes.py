from __future__ import annotations

import numpy as np
import pytest

from zmqrl.learner.episodes import EpisodeTracker
from zmqrl.replay.base import SegmentBatch, SegmentMeta
from zmqrl.types import STATE_COLUMN, SegmentId, Version

N, V = 3, 2


def stream(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """One vector env's rows with NEXT_STEP resets."""
    done = np.zeros((rows, N), bool)
    valid = np.ones((rows, N), bool)
    for t in range(rows):
        before = done[t - 1] if t else np.zeros(N, bool)
        valid[t] = ~before
        done[t] = (rng.random(N) < 0.2) & ~before
    terminated = done & (rng.random((rows, N)) < 0.5)
    reward = np.where(valid, rng.standard_normal((rows, N)), 0).astype(np.float32)
    action = rng.integers(0, 4, (rows, N))
    truncated = done & ~terminated
    return {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated, "valid": valid}


def truth(rows: dict[str, np.ndarray], env: int) -> tuple[list[tuple[float, int]], int, list[int], bool]:
    """Finished episodes of one env, and where it stands: episode, actions, resetting."""
    finished, episode, actions, total, length, resetting = [], 0, [], 0.0, 0, False
    for t in range(len(rows["action"])):
        if resetting:
            episode, actions, total, length, resetting = episode + 1, [], 0.0, 0, False
            continue
        actions.append(int(rows["action"][t, env]))
        total, length = total + float(rows["reward"][t, env]), length + 1
        if rows["terminated"][t, env] or rows["truncated"][t, env]:
            finished.append((total, length))
            resetting = True
    return finished, episode, actions, resetting


def meta(vector_env: int, index: int, incarnation: int = 0) -> SegmentMeta:
    return SegmentMeta(SegmentId(vector_env, incarnation, index), Version(0, index), 0)


def batch(parts: list[dict[str, np.ndarray]], ids: list[SegmentId]) -> SegmentBatch:
    columns = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    rows = [int(part["valid"].sum()) for part in parts]
    return SegmentBatch(columns, tuple(SegmentMeta(i, Version(0, i.index), r) for i, r in zip(ids, rows, strict=True)))


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_against_a_plain_walk(steps: int) -> None:
    rng = np.random.default_rng(steps)
    rows = [stream(rng, 56) for _ in range(V)]
    tracker = EpisodeTracker(V, N)
    for index in range(56 // steps):
        cut = slice(index * steps, (index + 1) * steps)
        parts = [{name: column[cut] for name, column in rows[v].items()} for v in range(V)]
        for v in reversed(range(V)):
            tracker.advance(meta(v, index), parts[v])
        tracker.observe(batch(parts, [SegmentId(v, 0, index) for v in range(V)]))
        if index == 4:  # a death in between
            stored = {name: np.array(array) for name, array in tracker.arrays().items()}
            tracker = EpisodeTracker(V, N)
            tracker.load_arrays(stored)
        for v in range(V):
            assert tracker.record(v)[0] == index + 1
            so_far = {name: column[: cut.stop] for name, column in rows[v].items()}
            for env, state in enumerate(tracker.record(v)[1]):
                _, episode, actions, resetting = truth(so_far, env)
                known = [] if state.actions is None else state.actions.tolist()
                assert (state.episode, known, state.resetting) == (episode, actions, resetting)
    finished = [item for v in range(V) for env in range(N) for item in truth(rows[v], env)[0]]
    assert tracker.total == len(finished) > 20
    np.testing.assert_allclose(sorted(tracker.returns), sorted(total for total, _ in finished), atol=1e-5)
    assert sorted(tracker.lengths) == sorted(length for _, length in finished)
    assert tracker.mean_return == pytest.approx(np.mean([total for total, _ in finished]), abs=1e-5)


def test_async_begins_afresh_with_a_new_incarnation_and_keeps_no_actions() -> None:
    rng = np.random.default_rng(0)
    quiet = stream(rng, 4)
    quiet.update(terminated=np.zeros((4, N), bool), truncated=np.zeros((4, N), bool), valid=np.ones((4, N), bool))
    quiet["reward"] = np.ones((4, N), np.float32)
    ending = {**quiet, "terminated": np.array([[False]] * 3 + [[True]]) & np.ones((4, N), bool)}
    tracker = EpisodeTracker(1, N, replayable=False)
    for index, (part, incarnation) in enumerate([(quiet, 0), (ending, 1)]):
        tracker.advance(meta(0, index, incarnation), part)
        tracker.observe(batch([part], [SegmentId(0, incarnation, index)]))
    assert list(tracker.returns) == [4.0] * N
    assert all(state.actions is None and state.episode == 2 for state in tracker.record(0)[1])


def test_no_mean_before_the_first_episode() -> None:
    assert EpisodeTracker(1, N).mean_return is None


def test_a_full_that_holds_actions_serves_an_env_that_saves_its_state_now() -> None:
    """Until the first segment with a state the actions are repeated."""
    part = stream(np.random.default_rng(1), 4)
    part.update(terminated=np.zeros((4, N), bool), truncated=np.zeros((4, N), bool), valid=np.ones((4, N), bool))
    before = EpisodeTracker(1, N)
    before.advance(meta(0, 0), part)
    stored = {name: np.array(array) for name, array in before.arrays().items()}
    tracker = EpisodeTracker(1, N, saves_state=True)
    tracker.load_arrays(stored)
    for found, expected in zip(tracker.record(0)[1], before.record(0)[1], strict=True):
        assert found.actions is not None and expected.actions is not None
        assert found.actions.tolist() == expected.actions.tolist() and len(found.actions) == 4
    states = {STATE_COLUMN: np.ones((1, N, 2)), "obs": np.zeros((5, N, 1), np.float32)}
    tracker.advance(meta(0, 1), {**part, **states})
    assert all(state.actions is None and state.state is not None for state in tracker.record(0)[1])
