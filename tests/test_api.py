"""zmqrl from Python, and the examples that show it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import zmqrl
from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.errors import ConfigError, FolderOfRuns, StoreError
from zmqrl.run_files.run_info import is_live, read_info

pytestmark = pytest.mark.whole
EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    run_dir = tmp_path_factory.mktemp("api") / "run"
    override = {"total_env_steps": 1024}
    summary = zmqrl.train(
        "cartpole-ppo",
        run_dir=run_dir,
        mode="single",
        seed=3,
        run=override,
        algorithm__gamma=0.9,
        **{"env.num_envs": 4},
    )
    return run_dir, summary


def test_train_returns_the_summary(trained: tuple[Path, object]) -> None:
    run_dir, summary = trained
    assert dataclasses.asdict(summary) == json.loads((run_dir / "summary.json").read_text())  # type: ignore[call-overload]
    assert summary.status == "done"  # type: ignore[attr-defined]


def test_a_run_is_over_before_its_process_is(trained: tuple[Path, object]) -> None:
    info = read_info(trained[0])
    assert info is not None
    assert info.pid == os.getpid()
    assert not is_live(trained[0], info)  # `zmqrl stop` would end this very process


def test_every_form_of_override_is_taken(trained: tuple[Path, object]) -> None:
    config = json.loads((trained[0] / "config.json").read_text())["config"]
    assert config["run"]["total_env_steps"] == 1024
    assert config["run"]["seed"] == 3
    assert config["algorithm"]["gamma"] == 0.9
    assert config["env"]["num_envs"] == 4


def test_the_policy_takes_one_observation_or_a_batch(trained: tuple[Path, object]) -> None:
    policy = zmqrl.load_policy(trained[0])
    batch = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    actions = policy(batch)
    assert actions.shape == (7,)
    assert set(actions.tolist()) <= {0, 1}
    assert [int(policy(obs)) for obs in batch] == actions.tolist()
    assert policy(batch[0].tolist()).shape == ()


def test_a_bad_override_is_a_configuration_error(tmp_path: Path) -> None:
    with raises(ConfigError, key=("run", "sead"), what="unknown key (value 2)"):
        zmqrl.train("cartpole-ppo", run_dir=tmp_path / "run", run__sead=2)
    assert not (tmp_path / "run").exists()


def test_no_policy_without_a_run(trained: tuple[Path, object], tmp_path: Path) -> None:
    with raises(ConfigError, value=f"run directory {tmp_path / 'nowhere'}", what="does not exist"):
        zmqrl.load_policy(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text((trained[0] / "config.json").read_text())
    with pytest.raises(StoreError):
        zmqrl.load_policy(tmp_path)


def test_the_folder_of_several_runs_is_refused_with_the_runs(trained: tuple[Path, object], tmp_path: Path) -> None:
    for seed in (*range(2, 12), 1):
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "config.json").write_text((trained[0] / "config.json").read_text())
    with pytest.raises(FolderOfRuns) as caught:
        zmqrl.load_policy(tmp_path)
    assert caught.value.runs == tuple(str(tmp_path / f"seed-{seed}") for seed in range(1, 12))
    assert caught.value.exit_code == 2
    assert "seed-6" not in str(caught.value)
    assert str(caught.value).endswith(f"zmqrl.load_policy({str(tmp_path / 'seed-1')!r})")


def test_the_package_imports_nothing_until_it_is_used() -> None:
    code = "import sys, zmqrl; print(sorted(n for n in ('numpy', 'torch', 'gymnasium') if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="tran"):
        _ = zmqrl.tran


def test_the_env_of_the_examples_trains(tmp_path: Path) -> None:
    settings = (
        "env.id=own_env:Corridor",
        "env.kwargs.length=5",
        "env.max_episode_steps=50",
        "run.total_env_steps=1024",
        "run.schedule_env_steps=512",
        "evaluator.episodes=0",
    )
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "zmqrl", "train", "cartpole-ppo", *options, "--workers", "1"]
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path / "run")],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["env"] == "own_env:Corridor"
    assert "the learning rate is 0 from 512 env steps on" in done.stderr
    assert summary["ledger"]["balanced"]
    assert summary["env_steps"] >= 1024


def test_an_env_next_to_the_script_is_found_from_any_directory(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    shutil.copy(EXAMPLES / "own_env.py", tmp_path / "lab")
    script = tmp_path / "lab" / "study.py"
    script.write_text(
        "import os, zmqrl\n"
        "before = dict(os.environ)\n"
        "options = {'env__id': 'own_env:Corridor', 'env__max_episode_steps': 50}\n"
        "options |= {'run__total_env_steps': 512, 'restart__max': 0, 'workers': 1, 'evaluator__episodes': 0}\n"
        "options |= {'algorithm__kind': 'zmqrl.bench.noop:NoUpdate'}\n"
        "print(zmqrl.train('cartpole-ppo', run_dir='run', **options).status, dict(os.environ) == before)\n"
    )
    done = subprocess.run(
        [sys.executable, "lab/study.py"], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["done True"], done.stderr
