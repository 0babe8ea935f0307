"""R2D2 (Kapturowski et al. 2019, section 2.3): stored states, burn-in, rescaled values, the previous step as input."""

from dataclasses import dataclass

from zmqrl.acting.spec import ActingSpec, previous_size
from zmqrl.acting.state import state_of
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import PRIORITY, Group, ReplayLearner
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.ops.targets import n_step_targets
from zmqrl.replay.spec import Prioritised, ReplaySpec

CORE = "q.lstm"


@dataclass(frozen=True)
class R2D2Config:
    learning_rate: float = 1e-3
    gamma: float = 0.997
    batch_size: int = 32
    tau: float = 0.02
    n_step: int = 3
    size: int = 32
    burn_in: int = 4
    length: int = 8
    ladder_base: float = 0.4
    ladder_alpha: float = 7.0


class R2D2(Algorithm):
    Config = R2D2Config
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions = frozenset({"discrete"})

    def network(self):
        section, obs, size = self.network_section, self.env.observation, self.config.size
        *hidden, last = tower("q", section, obs, self.env.action.n, output_gain=1.0)
        seen = last.inputs + previous_size(self.env.action)
        joined = LayerSpec("concat", inputs=last.inputs, outputs=seen)
        core = LayerSpec("lstm", CORE, seen, size, gain=1.0)
        last = LayerSpec("dueling", last.name, size, last.outputs, gain=1.0)
        return NetworkSpec((("q", (*hidden, joined, core, last)),))

    def acting(self):
        layers, config, space = self.network().tower("q"), self.config, self.env.action
        memory = {"state": state_of(layers), "state_every": config.burn_in, "previous": True}
        options = {"ladder": config.ladder_alpha}
        return ActingSpec(
            layers, "epsilon_greedy", space, self.env.observation, input=self.input, options=options, **memory
        )

    def schedule(self, progress):
        return {"epsilon": self.config.ladder_base}

    def replay(self):
        config, prioritised = self.config, Prioritised(alpha=0.9, beta=0.6)
        return ReplaySpec(length=config.length, burn_in=config.burn_in, stride=config.burn_in, prioritised=prioritised)

    def learner(self, context):
        return R2D2Learner(self, context, (Group("q", target=True, max_grad_norm=40.0),))


class R2D2Learner(ReplayLearner):
    def train(self, batch):
        net, burn_in = self.net, self.config.burn_in
        obs, reset, previous = (batch[name].transpose(0, 1) for name in ("obs", "reset", "previous"))
        first = obs[:burn_in], {CORE: batch[f"state.{CORE}"]}, reset[:burn_in], previous[:burn_in]
        rest = reset[burn_in:], previous[burn_in:]
        with torch.no_grad():
            (_, state), (_, lagging) = net.unroll("q", *first), net.unroll("q", *first, target=True)
            next_q, _ = net.unroll("q", obs[burn_in:], lagging, *rest, target=True)
        q, _ = net.unroll("q", obs[burn_in:], state, *rest)
        names = ("action", "reward", "terminated", "truncated", "mask")
        action, *flags, mask = (batch[name].transpose(0, 1)[burn_in:] for name in names)
        with torch.no_grad():
            best = q[1:].argmax(2, keepdim=True)
            value = unscaled(next_q[1:].gather(2, best).squeeze(2))
            target = rescaled(n_step_targets(*flags, value, self.config.gamma, self.config.n_step))
        delta = (q[:-1].gather(2, action.unsqueeze(2)).squeeze(2) - target) * mask
        loss = (batch["weight"] * delta.square().sum(0) / mask.sum(0)).mean()
        net.step("q", loss)
        net.update_targets(self.config.tau)
        return {"loss/q": loss, PRIORITY: delta.detach().abs().T}


def rescaled(x, epsilon=1e-3):
    """`h(x)` of Pohlen et al. 2018 (arXiv 1805.11593, section 3.2)."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + epsilon * x


def unscaled(x, epsilon=1e-3):
    """The inverse of `rescaled` (proposition A.2)."""
    root = ((1 + 4 * epsilon * (x.abs() + 1 + epsilon)).sqrt() - 1) / (2 * epsilon)
    return x.sign() * (root.square() - 1)
