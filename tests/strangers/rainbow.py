"""Rainbow: C51 that is noisy, dueling, double, prioritised, with n steps (Hessel et al. 2018, arXiv 1710.02298)."""

from dataclasses import dataclass, replace

from tests.strangers.c51 import C51, C51Learner, of_action, project
from zmqrl.acting.state import noise_of
from zmqrl.learning import PRIORITY, Group, Schedule, Scheduled, value_at
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.spec import Prioritised, ReplaySpec

BETA = Schedule(0.4, 1.0, 1.0)
USES = ("online", "selection", "value")
"""The three forward passes of an update, each with noise of its own."""


@dataclass(frozen=True)
class RainbowConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 64
    tau: float = 0.01
    atoms: int = 51
    low: float = -10.0
    high: float = 10.0
    n_step: int = 3
    alpha: float = 0.5
    beta: Scheduled = BETA


class Rainbow(C51):
    Config = RainbowConfig

    def network(self):
        outputs, parts = self.env.action.n * self.config.atoms, {"dueling": True, "noisy": True}
        section, obs = self.network_section, self.env.observation
        return NetworkSpec(
            (("q", tower("q", section, obs, outputs, output_gain=1.0, atoms=self.config.atoms, **parts)),)
        )

    def acting(self):
        return replace(super().acting(), noise=noise_of(self.network().tower("q")))

    def schedule(self, progress):
        return {"epsilon": 0.0}

    def replay(self):
        return ReplaySpec(n_step=self.config.n_step, prioritised=Prioritised(alpha=self.config.alpha))

    def learner(self, context):
        return RainbowLearner(self, context, (Group("q", target=True, max_grad_norm=10.0),))


class RainbowLearner(C51Learner):
    def anneal(self, replay, progress):
        replay.anneal(value_at(self.config.beta, progress))

    def noise(self):
        specs = noise_of(self.algorithm.network().tower("q"))
        return {f"{use}.{spec.name}": (spec.size,) for use in USES for spec in specs}

    def train(self, batch):
        with torch.no_grad():
            best = (self.drawn("selection", batch, "next_obs").softmax(2) @ self.support).argmax(1)
            p = of_action(self.drawn("value", batch, "next_obs", target=True).softmax(2), best)
            target = project(p, batch["n_step_return"], batch["discount"], self.support)
        log_p = of_action(self.drawn("online", batch, "obs"), batch["action"]).log_softmax(1)
        divergence = (target * (target.clamp(min=1e-8).log() - log_p)).sum(1)
        loss = (batch["weight"] * divergence).mean()
        self.net.step("q", loss)
        self.net.update_targets(self.config.tau)
        return {"loss/q": loss, PRIORITY: divergence.detach().abs()}

    def drawn(self, use, batch, name, **options):
        """Logits `[B, n, atoms]` with the noise of this use."""
        noise = {key.removeprefix(f"{use}."): value for key, value in batch.items() if key.startswith(f"{use}.")}
        return self.logits(batch[name], noise=noise, **options)
