"""The witness: what its env says is read back from segments, and its files survive as they are."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.support.waiting import WAIT_S
from zmqrl.drill.journal import Journal, journals
from zmqrl.drill.witness import WitnessEnv, episode_steps, next_digest, rows_of, stepped_episodes
from zmqrl.types import SegmentId, SegmentMeta, Version


def test_rows_come_back_from_segments_side_by_side(tmp_path: Path) -> None:
    """Two vector envs with two envs each, stepped as a worker would."""
    steps, seeds = 60, (70_001, 70_000 + 65_536, 12, 13)
    envs = [WitnessEnv(str(tmp_path)) for _ in seeds]
    obs = np.zeros((steps + 1, 4, 4), np.float32)
    action, valid = np.zeros((steps, 4), np.int64), np.ones((steps, 4), bool)
    obs[0] = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    ended = [False] * 4
    dice = np.random.default_rng(0)
    for t in range(steps):
        for i, env in enumerate(envs):
            action[t, i] = dice.integers(4)
            if ended[i]:
                valid[t, i], ended[i] = False, False
                obs[t + 1, i] = env.reset(seed=seeds[i] + 100)[0]
                continue
            obs[t + 1, i], _, terminated, truncated, _ = env.step(action[t, i])
            ended[i] = terminated or truncated
    metas = [SegmentMeta(SegmentId(v, 7, 9), Version(0, 9), 0) for v in (4, 5)]
    rows = rows_of({"obs": obs, "action": action, "valid": valid}, metas)
    assert len(rows) == valid.sum() < steps * 4
    assert set(rows["vector_env"].tolist()) == {4, 5} and set(rows["env"].tolist()) == {0, 1}
    assert set(rows["incarnation"].tolist()) == {7} and set(rows["index"].tolist()) == {9}
    of_first = rows[(rows["vector_env"] == 4) & (rows["env"] == 0)]
    assert of_first["seed"].tolist()[: episode_steps(70_001)] == [70_001] * min(steps, episode_steps(70_001))
    assert of_first["t"].tolist()[:5] == [0, 1, 2, 3, 4]
    digest = 0
    for row in of_first[: min(20, episode_steps(70_001))]:
        assert row["digest"] == digest
        digest = next_digest(digest, int(row["action"]))
    of_second = rows[(rows["vector_env"] == 4) & (rows["env"] == 1)]
    assert of_second["seed"][0] == 70_000 + 65_536


def test_the_env_writes_down_what_it_stepped(tmp_path: Path) -> None:
    env = WitnessEnv(str(tmp_path))
    for seed, steps in ((5, 3), (6, 1), (7, 0)):
        env.reset(seed=seed)
        for _ in range(steps):
            env.step(np.int64(1))
    again = WitnessEnv(str(tmp_path))  # a successor that repeats an episode
    again.reset(seed=5)
    again.step(np.int64(1))
    assert stepped_episodes(tmp_path) == {5: 3, 6: 1, 7: 0}


def test_what_was_appended_is_there_after_a_kill(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from zmqrl.drill.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]), 'rows', 16)\n"
        "[journal.append(bytes([i]) * 6) for i in range(5)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=WAIT_S, check=False)
    assert done.returncode == -signal.SIGKILL
    later = Journal(tmp_path, "rows", 16)
    later.append(b"next")
    later.close()
    assert [w.content for w in journals(tmp_path, "rows")] == [b"".join(bytes([i]) * 6 for i in range(5)), b"next"]
    assert len(list(tmp_path.iterdir())) == 4  # three of the killed process, two records each
