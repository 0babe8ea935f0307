"""The model card: what it says, and that its code runs. In a process that cannot import zmqrl."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import zmqrl
from tests.support.stored_runs import store_run
from tests.support.waiting import WAIT_S
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.export.card import Form
from zmqrl.export.write import export
from zmqrl.planning.exported import exported_of
from zmqrl.types import Version

ALONE = (
    "import sys; sys.modules['zmqrl'] = sys.modules['torch'] = None; import numpy as np; obs = np.full({shape}, 0.1)\n"
)


@pytest.mark.parametrize("preset", ["pendulum-sac", "cartpole-memory-ppo_gru"])
@pytest.mark.parametrize("form", ["onnx", "numpy"])
def test_the_code_of_the_card_acts_without_zmqrl(preset: str, form: Form, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _, env, _ = store_run(preset, run)
    export(tmp_path / "to", form, *exported_of(run, "best"))
    card = (tmp_path / "to" / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert code is not None
    script = ALONE.format(shape=env.observation.shape) + code[1] + "print(np.asarray(action).reshape(-1).tolist())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "to", capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = zmqrl.load_policy(run)(np.full(env.observation.shape, 0.1))
    np.testing.assert_allclose(np.fromstring(done.stdout.strip()[1:-1], sep=","), np.ravel(expected), rtol=1e-4)


def test_facts(tmp_path: Path) -> None:
    _, _, weights = store_run("cartpole-ppo", tmp_path, 3, 5, env__frame_stack=2)
    store = DirectoryStore(str(tmp_path / "checkpoints"), 8)
    assert "| score | not scored |" in _card(tmp_path, "best")
    newest = store.newest()
    assert newest is not None
    store.save_best(Version(0, 5), newest[1], 123.456)
    card = _card(tmp_path, "best")
    for line in ("env | CartPole-v1", "algorithm | ppo", "seed | 1", "version of the policy | 0-5", "env steps | 500"):
        assert f"| {line} |" in card
    assert "| score | 123.46 (mean of greedy episodes) |" in card
    assert "stacks of the last 2 frames" in card and "- `obs`: float32 [2, 4] as the env gives it" in card
    assert "| score | not scored; best scored version 0-5: 123.46 |" in _card(tmp_path, "0-3")
    scored = ((100, 7.0), (200, None), (200, 9.5))
    rows = [{"wall_s": 1, "env_steps": env_steps, "eval_return_mean": mean} for env_steps, mean in scored]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    last = "last scored version, at 200 env steps: 9.50"
    assert f"| score | not scored; best scored version 0-5: 123.46; {last} |" in _card(tmp_path, "0-3")
    rows.append({"wall_s": 2, "env_steps": 300, "eval_return_mean": 8.25})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "| score | 8.25 (mean of greedy episodes) |" in _card(tmp_path, "0-3"), "recorded for its env steps"
    assert weights and "best by" not in card


def test_the_card_names_the_number_that_made_a_version_the_best(tmp_path: Path) -> None:
    report = {"env__report": {"comfort": "mean"}, "evaluator__best_by": "comfort"}
    store_run("cartpole-ppo", tmp_path, 3, 5, **report)
    store = DirectoryStore(str(tmp_path / "checkpoints"), 8)
    newest = store.newest()
    assert newest is not None
    store.save_best(Version(0, 5), newest[1], -0.6123)
    row = {"wall_s": 1, "env_steps": 500, "eval_return_mean": 8.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert "| score | 8.00 (mean of greedy episodes) |\n| best by | comfort -0.6123 |" in _card(tmp_path, "best")
    assert "not scored; best scored version 0-5: comfort -0.6123; last scored version" in _card(tmp_path, "0-3")


def _card(run: Path, checkpoint: str) -> str:
    folder = run / f"to-{len(list(run.iterdir()))}"
    export(folder, "numpy", *exported_of(run, checkpoint))
    return (folder / "README.md").read_text()
