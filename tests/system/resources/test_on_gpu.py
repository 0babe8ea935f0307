"""Whole runs on a GPU: who uses it, what is seen of it, what a kill and a resume do, and who may share it."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running import Run, environment
from tests.support.waiting import until
from zmqrl.supervision.gpus import query

pytestmark = pytest.mark.whole

SETTINGS = {
    "env.id": "tests.envs.space_envs:Unmasked",
    "env.max_episode_steps": 30,
    "network.kind": "tests.networks.nets:ImageAndVector",
    "network.kwargs": "{channels: 3}",
    "hosts.local.worker_device": "cuda",
    "learner.device": "cuda",
}
USER = "nobody"
HELD = "import torch, sys; held = torch.ones(1 << 20, device='cuda'); print('held', flush=True); sys.stdin.read()"


def train(run_dir: Path, *words: object, **settings: object) -> Run:
    changed = [f"--set={key.replace('__', '.')}={value}" for key, value in {**SETTINGS, **settings}.items()]
    start = ("train", "cartpole-ppo", "--workers", 2, *changed, "--run-dir", run_dir)
    return Run(Run.start("-m", "zmqrl", *(words or start), "--plain"), run_dir)


def on_the_gpu() -> set[int]:
    return {process.pid for gpu in query() for process in gpu.processes}


@pytest.fixture
def other_user(gpu: str) -> Iterator[str]:
    """A process of theirs that computes on the GPU."""
    if os.getuid() != 0:
        pytest.skip("only root starts a process of another user")
    uid = pwd.getpwnam(USER).pw_uid
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", HELD], stdin=pipe, stdout=pipe, text=True, user=uid, env=environment({"HOME": "/"})
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "held\n"
        until(lambda: process.pid in on_the_gpu(), "nvidia-smi to list the process")
        yield USER
        process.stdin.close()


def test_learner_and_workers_compute_on_it_and_the_status_shows_whose_they_are(tmp_path: Path, gpu: str) -> None:
    run = train(tmp_path / "run", run__mode="sync", run__total_env_steps=10_000_000)
    try:
        run.wait_for(lambda: run.status().get("env_steps", 0) > 0)
        pids = {name: process.pid for name, process in run.processes().items()}
        until(lambda: {pids["learner-0"], pids["worker-0"], pids["worker-1"]} <= on_the_gpu(), "nvidia-smi")
        assert not {pids["agent-0"], pids["broker-0"]} & on_the_gpu()
        run.wait_for(lambda: any(p["own"] for gpu in run.status()["hosts"][0]["gpus"] for p in gpu["processes"]))
        run.process.terminate()
        code, _, err = run.end()
        assert code == 130 and "GPU of the learner: cuda:0" in err, err
        until(lambda: not set(pids.values()) & on_the_gpu(), "the processes to leave the GPU")
    finally:
        run.cut_short()


@pytest.mark.parametrize("executor", ["eager", "compiled"])
def test_sync_runs_have_the_same_bits_also_when_the_learner_was_killed(tmp_path: Path, gpu: str, executor: str) -> None:
    """Workers act on the CPU or on the GPU: on one model of processor and GPU each."""
    settings = {"run__mode": "sync", "learner__executor": executor, "run__total_env_steps": 6_000}
    for acting in ("cpu", "cuda"):
        runs = [tmp_path / f"{acting}-{number}" for number in range(2)]
        undisturbed = train(runs[0], **settings, hosts__local__worker_device=acting).done()
        run = train(runs[1], **settings, hosts__local__worker_device=acting)
        try:
            run.wait_for(lambda run=run: run.status().get("env_steps", 0) > 1_000)
            run.kill("learner-0")
            assert run.done()["weights_sha256"] == undisturbed["weights_sha256"], acting
        finally:
            run.cut_short()


@pytest.mark.parametrize("executor", ["eager", "compiled"])
def test_killed_parts_are_replaced_and_a_stopped_run_is_resumed(tmp_path: Path, gpu: str, executor: str) -> None:
    settings = {"run__mode": "async", "learner__executor": executor, "run__total_env_steps": 100_000}
    run = train(tmp_path / "run", **settings)
    try:
        run.wait_for(lambda: run.status().get("env_steps", 0) > 2_000)
        for place in ("worker-0", "learner-0"):
            before = run.processes()[place]
            run.kill(place)
            run.wait_for_successor(place, before)
        at = run.status()["env_steps"]
        run.wait_for(lambda: run.status()["env_steps"] > at + 2_000)
        run.process.terminate()
        assert run.end()[0] == 130
        run = train(run.run_dir, "train", "--resume", run.run_dir)
        summary = run.done()
    finally:
        run.cut_short()
    assert summary["env_steps"] >= 100_000 and summary["ledger"]["balanced"], summary["ledger"]


def test_a_gpu_of_another_user_is_refused_unless_it_may_be_shared(tmp_path: Path, other_user: str) -> None:
    code, _, err = train(tmp_path / "refused", run__mode="single").end()
    assert code == 2 and f"in use by other users: cuda:0 {query()[0].name}" in err and other_user in err, err
    shared = train(tmp_path / "shared", run__mode="single", run__total_env_steps=2_000, learner__share_gpu="true")
    assert shared.done()["env_steps"] >= 2_000


def test_a_gpu_that_does_not_exist_is_refused(tmp_path: Path, gpu: str) -> None:
    code, _, err = train(tmp_path / "run", learner__device="cuda:99").end()
    assert code == 2 and "learner.device: cuda:99: this GPU does not exist; found: cuda:0" in err, err


def test_a_convolutional_network_takes_the_gpu_without_any_setting(tmp_path: Path, gpu: str) -> None:
    settings = {"learner__device": "auto", "hosts__local__worker_device": "auto", "run__total_env_steps": 2_000}
    run = train(tmp_path / "run", run__mode="sync", **settings)
    code, out, err = run.end()
    assert code == 0 and "GPU of the learner: cuda:0" in err, f"{out}\n{err}"
