"""Whole commands: the user's code runs in check processes and in the processes of the run, never in the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.running import environment
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.whole

RUDE = "tests.envs.rude_envs"
NOTED = """
import json, os, sys
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps([__name__, os.getpid(), sys.argv[1:]]) + "\\n")
"""
MODULES = {
    "lab": """
from dataclasses import dataclass
from gymnasium import Wrapper
from gymnasium.envs.classic_control import CartPoleEnv
from zmqrl.algorithms.ppo import PPO, PPOConfig

class Env(CartPoleEnv):
    pass

class Same(Wrapper):
    pass

@dataclass(frozen=True)
class OwnConfig(PPOConfig):
    own: float = 0.5

class Algorithm(PPO):
    Config = OwnConfig
""",
    "lab_net": """
import torch

class Net(torch.nn.Module):
    def __init__(self, space):
        super().__init__()
        self.layer = torch.nn.Linear(space.shape[0], 8)

    def forward(self, obs):
        return torch.tanh(self.layer(obs))
""",
}
FILE = {
    "run": {"mode": "single", "total_env_steps": 200},
    "env": {"id": "lab:Env", "wrappers": ["lab:Same"], "max_episode_steps": 50, "num_envs": 2, "segment_steps": 16},
    "algorithm": {"kind": "lab:Algorithm", "own": 0.25, "epochs": 1, "minibatch_size": 64},
    "network": {"kind": "lab_net:Net"},
    "evaluator": {"episodes": 0},
}
PRESET = [
    "cartpole-ppo",
    *("--set", "env.wrappers=[lab:Same]"),
    *("--set", "algorithm.kind=lab:Algorithm"),
    *("--set", "network.kind=lab_net:Net"),
]
PYTHON = "import zmqrl; zmqrl.train('./lab.yaml', run_dir='python', quiet=True)"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's modules, a preset, a hosts file, and the directory of a run: `seeds/seed-1`."""
    folder = tmp_path_factory.mktemp("lab")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(NOTED + text)
    (folder / "lab.yaml").write_text(json.dumps(FILE))
    (folder / "hosts.yaml").write_text(
        json.dumps({"run": {"preset": "./lab.yaml"}, "hosts": {"local": {"workers": 1}}})
    )
    return folder


def noted(lab: Path, *arguments: str) -> tuple[int, list[list[Any]]]:
    """Of a Python process in `lab`: its pid, and module, pid and arguments of each import of the user's modules."""
    notes = lab / "notes"
    notes.write_text("")
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=lab,
        env=environment({"NOTES": str(notes)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = process.communicate(timeout=WAIT_S)[0]
    assert process.returncode == 0, output
    return process.pid, [json.loads(line) for line in notes.read_text().splitlines()]


COMMANDS = {
    "seeds": ["train", "./lab.yaml", "--seeds", "2", "--run-dir", "seeds", "--plain"],
    "resume": ["train", "--resume", "seeds/seed-1", "--for", "100", "--plain"],
    "init-from": ["train", "./lab.yaml", "--init-from", "seeds/seed-1", "--run-dir", "from", "--plain"],
    "preset": ["train", *PRESET, "--dry-run"],
    "env": ["train", "--env", "lab:Env", "--algo", "lab:Algorithm", "--dry-run"],
    "launch": ["launch", "hosts.yaml", "--dry-run", "--mode", "async"],
}


FURTHER = ("init-from", "resume", "seeds")
"""They plan a run as `preset` does."""


@pytest.mark.parametrize("name", [long(name) if name in FURTHER else name for name in (*COMMANDS, "python")])
def test_no_module_of_the_user_is_imported_by_a_command(lab: Path, name: str) -> None:
    arguments = ["-c", PYTHON] if name == "python" else ["-m", "zmqrl", *COMMANDS[name]]
    command, imports = noted(lab, *arguments)
    assert {module for module, _, _ in imports} == ({"lab"} if name == "env" else {"lab", "lab_net"})
    assert command not in {pid for _, pid, _ in imports}
    assert all(given == [] for _, _, given in imports)


@pytest.mark.parametrize(
    ("mode", "env"),
    [long("sync", {"id": f"{RUDE}:Simulator"}), long("single", {"id": f"{RUDE}:Rude", "kwargs": {"how": "chdir"}})],
)
def test_an_env_that_owns_a_process_or_changes_its_directory_is_trained(
    tmp_path: Path, mode: str, env: dict[str, Any]
) -> None:
    """As in test_inputs.py, from a file of the user's."""
    content = {**FILE, "algorithm": {"kind": "ppo", "epochs": 1, "minibatch_size": 32}, "network": {}}
    content["run"] = {"mode": mode, "total_env_steps": 200}
    content["env"] = {**env, "max_episode_steps": 50, "num_envs": 2, "vector_envs": 1, "segment_steps": 16}
    (tmp_path / "preset.yaml").write_text(json.dumps(content))
    command = ["-m", "zmqrl", "train", "./preset.yaml", "--workers", "1", "--run-dir", "run", "--plain"]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"
