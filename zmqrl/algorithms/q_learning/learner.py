"""What the learners of deep Q-learning share: the steps of an update, with a double, noisy or Munchausen target."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from zmqrl.acting.state import noise_of
from zmqrl.algorithms.base import LearnerContext, LearnResult, Progress
from zmqrl.algorithms.q_learning.base import MunchausenSection, QLearningAlgorithm
from zmqrl.learning import PRIORITY, Adam, AdamW, Batch, Group, Noise, ReplayLearner
from zmqrl.learning.schedule import value_at
from zmqrl.loading import Tensor, torch
from zmqrl.replay.base import Replay

USES = TRAINED, CHOICE, VALUE = ("noise", "choice_noise", "value_noise")
"""Noise of layers in a batch, `<use>.<layer>`: of what is trained, of the next action, and of its value."""


class QLearner(ReplayLearner):
    """One sampled minibatch per update. K is the number of outputs of an action in a call of the network."""

    algorithm: QLearningAlgorithm

    def __init__(self, algorithm: QLearningAlgorithm, context: LearnerContext) -> None:
        config = algorithm.config
        optimiser = Adam(epsilon=config.adam_epsilon)
        if config.decay:
            optimiser = AdamW(epsilon=config.adam_epsilon, weight_decay=config.decay)
        super().__init__(algorithm, context, (Group("q", (), config.max_grad_norm, optimiser, target=True),))

    def anneal(self, replay: Replay, progress: Progress) -> None:
        """The exponent of the importance weights."""
        section = self.config.prioritised
        if section is not None:
            replay.anneal(section.beta + progress.fraction * (section.beta_end - section.beta))

    def noise(self) -> Mapping[str, tuple[int, ...] | Noise]:
        """Noise of noisy layers: for the q values, for the choice of the next action, and for its value."""
        layers = noise_of(self.algorithm.network().tower("q"))
        return {f"{use}.{layer.name}": (layer.size,) for use in USES for layer in layers}

    def noise_of_use(self, batch: Batch, use: str) -> dict[str, Tensor]:
        """What `noise` drew for one of `USES`, by layer."""
        return {name.removeprefix(f"{use}."): drawn for name, drawn in batch.items() if name.startswith(f"{use}.")}

    def variant(self, number: int) -> Mapping[str, bool]:
        """Whether the target network follows after update `number`."""
        return {"moves_target": (number + 1) % self.config.target_update_every == 0}

    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        """Do `updates` updates; the metrics include the settings that change over the run."""
        result = super().update(replay, updates, progress)
        now = {"learning_rate": value_at(self.config.learning_rate, progress), **self.algorithm.schedule(progress)}
        return replace(result, metrics={**result.metrics, **now})

    def train(self, batch: Batch, moves_target: bool = False) -> Mapping[str, Tensor]:
        """One step of the optimiser towards the target."""
        with torch.no_grad():
            target = self.target(batch)
        outputs = self.outputs(batch, "obs", TRAINED)
        results = self.step(batch, *self.losses(batch, of_action(outputs, batch["action"]), target), moves_target)
        return {**results, "q_mean": self.q(self.returns(outputs.detach())).mean()}

    def step(self, batch: Batch, losses: Tensor, error: Tensor, moves_target: bool) -> dict[str, Tensor]:
        """One step for the loss `[B]` of each row or sequence; `error` becomes its priority. Returns metrics."""
        net, config = self.net, self.config
        loss = (batch["weight"] * losses).mean()
        net.step("q", loss)
        if moves_target:
            net.update_targets(1.0 if config.target_tau is None else config.target_tau)
        results = {"loss/q": loss, "td_error": error.mean()}
        return results if config.prioritised is None else {**results, PRIORITY: error}

    def target(self, batch: Batch) -> Tensor:
        """What the outputs `[B, K]` of the actions are trained towards, by equation 2 of Mnih et al. 2015.

        With `double` by equation 4 of van Hasselt et al. 2016, with `munchausen` by equation 2 of Vieillard et al.
        2020.
        """
        config, reward, discount = self.config, batch["n_step_return"], batch["discount"]
        following = self.returns(self.outputs(batch, "next_obs", VALUE, target=True))
        chooser = self.returns(self.outputs(batch, "next_obs", CHOICE)) if config.double else following
        if config.munchausen is None:
            return self.moved(of_action(following, self.q(chooser).argmax(1)), reward, discount)
        q = self.q(self.returns(self.outputs(batch, "obs", VALUE, target=True)))
        bonus, policy, entropy = munchausen(config.munchausen, q, batch["action"], self.q(chooser))
        return self.moved((policy.unsqueeze(2) * following).sum(1), reward + bonus + discount * entropy, discount)

    def outputs(self, batch: Batch, name: str, use: str, target: bool = False) -> Tensor:
        """Outputs `[B, n, K]` of the network for the observations `batch[name]`, with the noise of `use`."""
        found = self.net("q", batch[name], target=target, noise=self.noise_of_use(batch, use))
        return found.reshape(found.shape[0], self.algorithm.env.action.n, -1)

    def returns(self, outputs: Tensor) -> Tensor:
        """Estimates of returns `[B, n, K]` from outputs `[B, n, K]`; default: the outputs."""
        return outputs

    @abstractmethod
    def q(self, returns: Tensor) -> Tensor:
        """The q values `[B, n]` of estimates `[B, n, K]`."""

    def moved(self, returns: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Estimates `[B, K]` of `reward + discount * return`; default: where estimates are returns themselves."""
        return reward.unsqueeze(1) + discount.unsqueeze(1) * returns

    @abstractmethod
    def losses(self, batch: Batch, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each row `[B]` of outputs `[B, K]` for their target, and the error `[B]` for its priority."""


def of_action(values: Tensor, action: Tensor) -> Tensor:
    """`[B, K]` of `action [B]`, out of `values [B, n, K]`."""
    index = action.reshape(-1, 1, 1).expand(-1, 1, values.shape[2])
    return values.gather(1, index).squeeze(1)


def munchausen(section: MunchausenSection, q: Tensor, action: Tensor, next_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The terms of equation 2 of Vieillard et al. 2020 that other targets of Q-learning lack.

    Args:
        section: Its numbers.
        q: The q values `[B, n]` of the observations.
        action: Those taken, `[B]`.
        next_q: The q values `[B, n]` of the next observations.

    Returns:
        The bonus `[B]` of the reward, the policy `[B, n]` at the next observation, and its entropy `[B]` times the
        temperature, which the next value has.
    """
    log_taken = (q / section.temperature).log_softmax(1).gather(1, action.unsqueeze(1)).squeeze(1)
    bonus = section.alpha * (section.temperature * log_taken).clamp(min=-section.clip)
    log_policy = (next_q / section.temperature).log_softmax(1)
    policy = log_policy.exp()
    return bonus, policy, -section.temperature * (policy * log_policy).sum(1)
