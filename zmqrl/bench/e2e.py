"""`zmqrl bench e2e`: training as a user sees it, on CartPole, alongside Stable-Baselines3 in turn.

async   PPO with a 2x64 network, env steps per second while training
sync    PPO with the rl-zoo preset, env steps per second, alongside Stable-Baselines3 with the same preset
to_475  the whole command until the mean return of 100 episodes is 475, five seeds, in both modes
Stable-Baselines3 comes with the extra `bench`; without it, that row is omitted with a note.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from zmqrl.bench.report import RUN_LIMIT_S, BenchResult, Figure, run_preset
from zmqrl.errors import ConfigError

ASYNC_STEPS, SYNC_STEPS = 1_500_000, 100_000
_SB3 = """
import time, torch
torch.set_num_threads(1)
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
STEPS = 60_000
class Clock(BaseCallback):
    begun = None
    def _on_step(self):
        if self.begun is None and self.num_timesteps >= STEPS // 4:
            self.begun, self.first = time.perf_counter(), self.num_timesteps
        return True
linear = lambda first: lambda remaining: first * remaining
clock = Clock()
env = make_vec_env("CartPole-v1", n_envs=8, seed=1)
model = PPO("MlpPolicy", env, n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20,
            ent_coef=0.0, learning_rate=linear(1e-3), clip_range=linear(0.2), device="cpu", seed=1)
model.learn(STEPS, callback=clock)
print((clock.num_timesteps - clock.first) / (time.perf_counter() - clock.begun))
"""


def run(repeats: int = 3, seeds: int = 5, sb3_python: str | None = None) -> BenchResult:
    """`sb3_python`: an interpreter that has Stable-Baselines3; default: this one, when it has."""
    fast, zoo, sb3 = [], [], []
    python = sb3_python or (sys.executable if importlib.util.find_spec("stable_baselines3") else None)
    if sb3_python is not None:
        _check(sb3_python)
    for _ in range(repeats):
        endless = {"run.stop_at_return": None, "evaluator.episodes": 0}
        summary = run_preset("cartpole-ppo", {**endless, "run.total_env_steps": ASYNC_STEPS}, mode="async")
        fast.append(summary["env_steps_per_s"])
        summary = run_preset("cartpole-ppo", {**endless, "run.total_env_steps": SYNC_STEPS}, mode="sync")
        zoo.append(summary["env_steps_per_s"])
        if python:
            sb3.append(_stable_baselines3(python))
    to_475 = {
        mode: [run_preset("cartpole-ppo", {}, mode=mode, seed=seed)["command_s"] for seed in range(1, seeds + 1)]
        for mode in ("sync", "async")
    }
    figures = [
        Figure("async PPO", "env steps/s", tuple(fast)),
        Figure("sync PPO, zoo preset", "env steps/s", tuple(zoo)),
        *(Figure(f"command to 475, {mode}", "s", tuple(values)) for mode, values in to_475.items()),
    ]
    ratios = []
    if sb3:
        figures.append(Figure("yardstick: Stable-Baselines3, zoo preset", "env steps/s", tuple(sb3)))
        ratios.append(Figure("sync PPO / Stable-Baselines3", "", tuple(a / b for a, b in zip(zoo, sb3, strict=True))))
    steps = {"async_env_steps": ASYNC_STEPS, "sync_env_steps": SYNC_STEPS}
    settings = {"workers": 2, **steps, "stable_baselines3": bool(sb3)}
    return BenchResult("e2e", figures, settings, ratios)


def _check(python: str) -> None:
    """ConfigError unless `python` is an interpreter that has Stable-Baselines3."""
    command = [python, "-c", "import stable_baselines3"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    except OSError as error:
        raise ConfigError(f"cannot be executed: {error.strerror}", key=("--sb3-python",), value=str(python)) from error
    if done.returncode != 0:
        cause = (done.stderr.strip().splitlines() or ["no output"])[-1]
        what = f"importing stable_baselines3 failed: {cause}"
        fix = "write the path of a Python interpreter that has Stable-Baselines3"
        raise ConfigError(what, key=("--sb3-python",), value=str(python), fix=fix)


def _stable_baselines3(python: str) -> float:
    """Env steps per second of Stable-Baselines3's PPO on the zoo preset, one torch thread, after the first quarter."""
    done = subprocess.run([python, "-c", _SB3], capture_output=True, text=True, timeout=RUN_LIMIT_S, check=True)
    return float(done.stdout.split()[-1])
