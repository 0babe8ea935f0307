"""Envs of ten packages, trained in async and sync: `python -m benchmarks.envs [NAME...]`.

Each run lasts `--for` seconds (60). It prints the env steps that were stored and the mean return of the last 100
episodes, or the message of the run. Finished runs are lines of `--out FILE` and are not repeated. The packages:
`pip install flappy-bird-gymnasium minigrid highway-env gym-anytrading gymnasium-robotics`, and the extras atari, box2d,
minatar and mujoco (gymnasium-robotics 1.4 needs `mujoco<3.3`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scores import finished
from zmqrl.bench.report import machine

ROOT = Path(__file__).parents[1]
MODES = ("async", "sync")
ENVS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "FlappyBird": ("cartpole-ppo", ("env.id=flappy_bird_gymnasium:FlappyBird-v0", "env.kwargs={use_lidar: false}")),
    "MiniGrid": (
        "cartpole-ppo",
        (
            "env.id=minigrid:MiniGrid-Empty-5x5-v0",
            "env.wrappers=[minigrid.wrappers:ImgObsWrapper]",
            "network.scale_images=false",
        ),
    ),
    "highway-env": (
        "cartpole-ppo",
        ("env.id=highway_env:highway-fast-v0", "env.num_envs=2", "env.segment_steps=16", "algorithm.minibatch_size=32"),
    ),
    "gym-anytrading": ("cartpole-ppo", ("env.id=gym_anytrading:stocks-v0",)),
    "Pong": ("pong-ppo", ()),
    "HalfCheetah": ("halfcheetah-sac", ("replay.learning_starts=1000",)),
    "BipedalWalker": ("pendulum-sac", ("env.id=BipedalWalker-v3",)),
    "FrozenLake": ("cartpole-ppo", ("env.id=FrozenLake-v1",)),
    "FetchReach": ("pendulum-sac", ("env.id=gymnasium_robotics:FetchReach-v4",)),
    "MinAtar Breakout": ("minatar-breakout-ppo", ()),
}
"""Name to preset and settings."""
COMMON = ("run.stop_at_return=null", "run.total_env_steps=100000000", "env.max_episode_steps=1000")


def train(name: str, mode: str, seconds: float) -> dict[str, Any]:
    """One run, with what it shows."""
    preset, settings = ENVS[name]
    with tempfile.TemporaryDirectory() as folder:
        words = [word for setting in (*COMMON, f"run.max_wall_s={seconds}", *settings) for word in ("--set", setting)]
        argv = [sys.executable, "-m", "zmqrl", "train", preset, "--mode", mode, "--workers", "2", "--plain", *words]
        done = subprocess.run([*argv, "--run-dir", f"{folder}/run"], cwd=ROOT, capture_output=True, text=True)
        path = Path(folder, "run", "summary.json")
        summary = json.loads(path.read_text()) if path.exists() else {}
    kept = ("status", "env_steps", "updates", "episodes", "train_return_mean_100", "env_steps_per_s")
    message = "" if done.returncode == 0 else "".join(done.stderr.strip().splitlines()[-1:])
    figures = {key: summary.get(key) for key in kept}
    return {"env": name, "mode": mode, "exit_code": done.returncode, "message": message, **figures}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--for", dest="seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=ROOT / "envs.jsonl")
    options = parser.parse_args(arguments)
    had = {(result["env"], result["mode"]) for result in finished(options.out)}
    for name in options.names or ENVS:
        for mode in MODES:
            if (name, mode) not in had:
                line = json.dumps({**train(name, mode, options.seconds), "commit": machine()["commit"]})
                print(line, flush=True)
                with options.out.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
