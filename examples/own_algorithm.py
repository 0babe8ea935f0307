"""Your own algorithm in one file: REINFORCE with rewards to go. From this directory:

    zmqrl train cartpole-ppo --set algorithm.kind=own_algorithm:Reinforce --set algorithm.learning_rate=3e-3

It borrows PPO's network and acting; an algorithm of its own would say them as plain data in the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zmqrl.algorithms.base import LearnResult, OnPolicyLearner, Progress
from zmqrl.algorithms.ppo import PPO
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, Weights


class Reinforce(PPO):
    """Discrete actions; the launcher makes it too, so torch is imported by the learner alone."""

    def learner(self, weights: Weights, device: str) -> OnPolicyLearner:
        return ReinforceLearner(weights, device, self.config.learning_rate, self.config.gamma)


class ReinforceLearner(OnPolicyLearner):
    """One step of Adam per round."""

    def __init__(self, weights: Weights, device: str, learning_rate: float, gamma: float) -> None:
        import torch

        self._torch: Any = torch
        self._gamma = gamma
        # Sorted: the optimiser knows parameters by number, and weights from a file come in another order.
        named = sorted(weights.items())
        self._tensors = {n: torch.tensor(np.array(w), device=device, requires_grad=True) for n, w in named}
        self._adam = torch.optim.Adam(list(self._tensors.values()), lr=learning_rate)

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        columns, torch = batch.columns, self._torch
        done = columns["terminated"] | columns["truncated"]
        to_go, running = np.zeros_like(columns["reward"]), np.zeros(done.shape[1], np.float32)
        for t in range(len(done) - 1, -1, -1):
            running = columns["reward"][t] + self._gamma * running * ~done[t]
            to_go[t] = running
        valid = torch.tensor(columns["valid"])
        advantage = torch.tensor(to_go)[valid]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_prob = torch.log_softmax(self._logits(torch.tensor(columns["obs"][:-1])[valid]), dim=-1)
        chosen = log_prob.gather(1, torch.tensor(columns["action"])[valid].unsqueeze(1)).squeeze(1)
        loss = -(chosen * advantage).mean()
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()
        return LearnResult(1, {"loss/policy": float(loss)})

    def _logits(self, x: Any) -> Any:
        layers = [name for name in self._tensors if name.startswith("actor") and name.endswith("weight")]
        for i, name in enumerate(layers):
            x = self._torch.nn.functional.linear(x, self._tensors[name], self._tensors[name.replace("weight", "bias")])
            x = x.tanh() if i < len(layers) - 1 else x
        return x

    def weights(self) -> dict[str, Array]:
        return {name: tensor.detach().numpy().copy() for name, tensor in self._tensors.items()}

    def network_names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def state(self) -> dict[str, Array]:
        moments = self._adam.state_dict()["state"]
        return {f"{i}/{key}": value.numpy().copy() for i, entry in moments.items() for key, value in entry.items()}

    def load_state(self, weights: Weights, state: Weights) -> None:
        with self._torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(self._torch.tensor(np.array(weights[name])))
        moments: dict[int, dict[str, Any]] = {}
        for name, value in state.items():
            index, key = name.split("/")
            moments.setdefault(int(index), {})[key] = self._torch.tensor(np.array(value))
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})
