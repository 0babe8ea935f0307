"""GPUs in a whole run, by an nvidia-smi of the test: one of another user, and a free one that torch cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import Run, environment
from tests.support.waiting import WAIT_S
from zmqrl.supervision.host_lock import HostLock

pytestmark = pytest.mark.whole

NVIDIA_SMI = """\
#!/bin/sh
case "$1" in
  --query-gpu*)
    echo "0, GPU-0000, NVIDIA A100-SXM4-80GB, 70000, 81920, Disabled"
    echo "1, GPU-1111, NVIDIA A100-SXM4-80GB, 4, 81920, Disabled" ;;
  --query-compute-apps*) echo "GPU-0000, 4194400, 69990" ;;
esac
"""
"""No process has a pid above 4194304: it is not visible, as one of another container."""
SETTINGS = {
    "run.mode": "sync",
    "run.total_env_steps": "1000000",
    "env.id": "tests.envs.space_envs:Unmasked",
    "env.max_episode_steps": "30",
    "network.kind": "tests.networks.nets:ImageAndVector",
    "network.kwargs": "{channels: 3}",
    "hosts.local.worker_device": "auto",
}


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Its environment."""
    command = tmp_path / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text(NVIDIA_SMI)
    command.chmod(0o755)
    changed = environment({"PATH": f"{command.parent}:{os.environ['PATH']}"})
    changed.pop("CUDA_VISIBLE_DEVICES", None)
    return changed


def train(machine: dict[str, str], run_dir: Path, *settings: str) -> subprocess.Popen[str]:
    words = ["train", "cartpole-ppo", "--workers", "1", "--plain", "--run-dir", str(run_dir)]
    words += [word for setting in settings for word in ("--set", setting)]
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "zmqrl", *words], stdout=pipe, stderr=pipe, text=True, env=machine)


def gpus_of(pid: int) -> str | None:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry).get("CUDA_VISIBLE_DEVICES")


@pytest.mark.long
def test_auto_takes_the_processor_where_torch_cannot_use_the_gpu_and_says_so(
    tmp_path: Path, machine: dict[str, str]
) -> None:
    settings = [f"{key}={value}" for key, value in SETTINGS.items()]
    run = Run(train(machine, tmp_path / "run", *settings), tmp_path / "run")
    try:
        run.wait_for(lambda: run.status().get("env_steps", 0) > 0 and bool(run.status()["hosts"][0]["gpus"]))
        seen = {name.rpartition("-")[0]: gpus_of(process.pid) for name, process in run.processes().items()}
        assert {"learner": None, "worker": "", "broker": ""}.items() <= seen.items()
        assert [entry.gpus for entry in HostLock().entries() if entry.pid == run.processes()["agent-0"].pid] == [""]
        (problem,) = run.status()["problems"]
        assert "torch cannot use cuda:1 NVIDIA A100-SXM4-80GB" in problem
        used, free = run.status()["hosts"][0]["gpus"]
        assert (used["used_mib"], used["processes"][0]["own"], free["processes"]) == (70000, False, [])
        run.process.terminate()
        code, _, err = run.end()
        assert code == 130 and "GPU of the learner" not in err, err
    finally:
        run.cut_short()


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (
            "cuda:7",
            "learner.device: cuda:7: this GPU does not exist; found: cuda:0 NVIDIA A100-SXM4-80GB, 68.4 of 80.0",
        ),
        ("cuda:0", "learner.device: cuda:0: in use by other users: cuda:0 NVIDIA A100-SXM4-80GB"),
        ("cuda:1", "learner.device: 'cuda:1': torch cannot use this device"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused_before_anything_starts(
    tmp_path: Path, machine: dict[str, str], device: str, says: str
) -> None:
    _, err = (process := train(machine, tmp_path / "run", f"learner.device={device}")).communicate(timeout=WAIT_S)
    assert process.returncode == 2 and says in err, err
    assert not (tmp_path / "run").exists()
