"""The head of docs/extending/heads.md fills the first priorities of Ape-X, which replay then draws by."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.running import ROOT
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.sections import EnvSection, NetworkSection
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.networks.build import tower
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.segment_replay import build_replay
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.rollout.collector import Collector
from zmqrl.types import Array, ColumnSpec, SegmentId, SegmentMeta, SlotRef, Version

GAMMA, T, N, SEED = 0.7, 7, 3, 4
BLOCK = re.compile(r"^```python\n# my_priority\.py\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("n_step", [1, 3, 7])
def test_the_example_of_the_page(n_step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = BLOCK.search((ROOT / "docs" / "extending" / "heads.md").read_text())
    assert found is not None
    (tmp_path / "my_priority.py").write_text(found["text"])
    monkeypatch.syspath_prepend(tmp_path)
    section = EnvSection(id="tests.envs.odd_envs:Lottery", num_envs=N, kwargs={"kind": "discrete"})
    env = probe(section)
    layers = tower("q", NetworkSection(hidden=(8,)), env.observation, 3, output_gain=1.0)
    spec = ActingSpec(
        layers,
        "my_priority:FirstPriority",
        env.action,
        env.observation,
        (ColumnSpec("priority", "float32", (T, N)),),
        options={"gamma": GAMMA, "n_step": float(n_step)},
    )
    policy, weights = make_policy(spec), initial_weights(NetworkSpec((("q", layers),)), 1)
    policy.load(weights, {"epsilon": 0.5})
    collector = Collector(make_vector_env(section, env, "sync", SEED, 0), policy, spec, SEED, 0)
    collector.start()
    columns: dict[str, Array] = {
        "obs": np.zeros((4, T + 1, N, 2), np.float32),
        "action": np.zeros((4, T, N), np.int64),
        **{name: np.zeros((4, T, N), np.float32) for name in ("reward", "priority")},
        **{name: np.zeros((4, T, N), bool) for name in ("terminated", "truncated", "valid")},
    }
    prioritised = Prioritised(alpha=1.0, beta=0.0, epsilon=1e-9)
    replay = build_replay(columns, 4 * T * N, 1, ReplaySpec(n_step, prioritised=prioritised, first_priority="priority"))
    mass = np.zeros(4 * T * N)
    for slot in range(4):
        segment = {name: column[slot] for name, column in columns.items()}
        collector.collect(segment, slot, lambda _: None, lambda: False)
        replay.add(SlotRef(slot, 1), SegmentMeta(SegmentId(0, 0, slot), Version(0, slot), T * N))
        flat = segment["obs"].reshape(-1, 2)
        hidden = np.tanh(flat @ weights["q.0.weight"].T + weights["q.0.bias"])
        q = (hidden @ weights["q.1.weight"].T + weights["q.1.bias"]).reshape(T + 1, N, 3)
        for t, e in np.ndindex(T, N):
            if segment["valid"][t, e]:
                expected = abs(_target(segment, q, t, e, n_step) - q[t, e, segment["action"][t, e]])
                assert segment["priority"][t, e] == pytest.approx(expected, abs=1e-5)
                mass[(slot * T + t) * N + e] = expected
    ends = columns["terminated"], columns["truncated"]
    assert all((flags & columns["valid"]).any() for flags in ends), "both ends"
    drawn = np.bincount(replay.sample(40_000, n_step, GAMMA, 1).rows, minlength=mass.size) / 40_000
    assert np.abs(drawn - mass / mass.sum()).max() < 0.01 and not drawn[mass == 0].any()


def _target(segment: dict[str, Array], q: Array, t: int, env: int, n_step: int) -> float:
    """Horgan et al. 2018, equation 2, with rewards up to the end of the episode or the segment."""
    total, power = 0.0, 1.0
    for row in range(t, min(t + n_step, T)):
        total, power = total + power * float(segment["reward"][row, env]), power * GAMMA
        if segment["terminated"][row, env]:
            return total
        if segment["truncated"][row, env]:
            break
    return total + power * float(q[row + 1, env].max())
