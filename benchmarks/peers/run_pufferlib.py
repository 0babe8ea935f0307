"""PufferLib: `run_pufferlib.py CASE SEED FOLDER`. PPO with two workers and the settings of `pufferlib.yaml`.

One worker, since a second one halves the speed on two cores: workers poll. With two, for the figure of memory, one
steps its envs while those of the other are in the policy. A batch has 1,024 env steps.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pufferlib.emulation
import pufferlib.vector
import torch
import yaml
from pufferlib.pufferl import PuffeRL
from pufferlib.pytorch import layer_init
from torch import Tensor, nn

from benchmarks.peers.logged import cartpole

ENVS, BATCH, HORIZON, ENDLESS = 32, 1024, 500_000, 1_000_000_000
"""Envs of a worker, env steps of a batch, env steps of a run to the target, and of others."""
SETTINGS = Path(__file__).with_name("pufferlib.yaml")


class Policy(nn.Module):
    """Two networks of 64-64 with tanh, as the preset."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = self._network(2, 0.01)
        self.critic = self._network(1, 1.0)

    @staticmethod
    def _network(outputs: int, std: float) -> nn.Sequential:
        hidden = [layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh()]
        return nn.Sequential(*hidden, layer_init(nn.Linear(64, outputs), std=std))

    def forward(self, observations: Tensor, state: Any = None) -> tuple[Tensor, Tensor]:
        """Logits and values."""
        return self.actor(observations), self.critic(observations)

    forward_eval = forward


def env(buf: Any = None, seed: int = 0) -> pufferlib.emulation.GymnasiumPufferEnv:
    """In the form that PufferLib's workers step."""
    return pufferlib.emulation.GymnasiumPufferEnv(cartpole(), buf=buf, seed=seed)


def main(case: str, seed: int, folder: str) -> None:
    """Train until the horizon, or until the harness ends this process."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    workers = 2 if case == "memory" else 1
    envs = pufferlib.vector.make(
        env,
        backend=pufferlib.vector.Multiprocessing,
        num_envs=ENVS * workers,
        num_workers=workers,
        batch_size=ENVS,
        overwork=True,
        seed=seed,
    )
    steps = HORIZON if case == "475-async" else ENDLESS
    settings = yaml.safe_load(SETTINGS.read_text())
    settings |= {"seed": seed, "total_timesteps": steps, "bptt_horizon": BATCH // (ENVS * workers)}
    settings |= {"data_dir": str(Path(folder, "run"))}
    trainer = PuffeRL(settings, envs, Policy())
    while trainer.global_step < steps:
        trainer.evaluate()
        trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
