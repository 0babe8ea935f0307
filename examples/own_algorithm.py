"""Your own algorithm in one file: REINFORCE with rewards to go. Here: `zmqrl train own_algorithm.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnResult, OnPolicyLearner, Progress
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.networks.build import tower
from zmqrl.networks.initial import parameter_shapes
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, EnvSpec


@dataclass(frozen=True)
class ReinforceConfig:
    """The keys of the section `algorithm`, in addition to `kind`."""

    learning_rate: Annotated[float, Gt(0)] = 3e-3
    gamma: Annotated[float, Ge(0), Le(1)] = 0.99


class Reinforce(Algorithm):
    """Discrete actions. The launcher creates it too, so torch is imported in the learner alone."""

    Config = ReinforceConfig
    modes = frozenset({"single", "sync"})
    on_policy = True

    def __init__(
        self, config: ReinforceConfig, network: NetworkSection, env: EnvSpec, segment_steps: int, num_envs: int
    ) -> None:
        super().__init__(config, network, env, segment_steps, num_envs)
        if env.action.kind != "discrete":
            raise ConfigError(f"env.id: {env.id!r} has continuous actions, and REINFORCE here needs discrete ones")

    def network(self) -> NetworkSpec:
        layers = tower("policy", self.network_section, self.env.observation, self.env.action.n, output_gain=0.01)
        return NetworkSpec((("policy", layers),))

    def acting(self) -> ActingSpec:
        return ActingSpec(
            layers=self.network().tower("policy"),
            head="categorical",
            action=self.env.action,
            observation=self.env.observation,
            runtime="torch" if self.network_section.kind == "cnn" else "numpy",
        )

    def learner(self, weights: Mapping[str, Array], device: str) -> OnPolicyLearner:
        return ReinforceLearner(self, weights, device)


class ReinforceLearner(OnPolicyLearner):
    """One step of Adam per batch."""

    def __init__(self, algorithm: Reinforce, weights: Mapping[str, Array], device: str) -> None:
        from zmqrl.networks.module import FlatParameters, Tower
        from zmqrl.ops.adam import FlatAdam

        spec, self._config, self._device = algorithm.network(), algorithm.config, device
        self._parameters = FlatParameters(parameter_shapes(spec), device)
        self._parameters.load(weights)
        self._policy = Tower(spec.tower("policy"), self._parameters)
        self._adam = FlatAdam(self._parameters.flat, epsilon=1e-8)

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        import torch

        columns, valid = batch.columns, batch.columns["valid"]
        obs, action, returns = (
            torch.tensor(array[valid], device=self._device)
            for array in (columns["obs"][:-1], columns["action"], rewards_to_go(columns, self._config.gamma))
        )
        advantage = (returns - returns.mean()) / (returns.std() + 1e-8)
        logits = self._policy.forward(obs.float())
        chosen = torch.nn.functional.one_hot(action, logits.shape[1])
        loss = -(advantage * (torch.log_softmax(logits, 1) * chosen).sum(1)).mean()
        # The gradient of the loss by the logits; the tower computes those of its tensors.
        self._policy.backward((torch.softmax(logits, 1) - chosen) * advantage[:, None] / len(advantage))
        self._adam.step(self._parameters.flat_grad, self._config.learning_rate)
        return LearnResult(1, {"loss/policy": float(loss)})

    def weights(self) -> dict[str, Array]:
        return self._parameters.arrays()

    def network_names(self) -> tuple[str, ...]:
        return tuple(self._parameters.tensors)

    def state(self) -> dict[str, Array]:
        return self._adam.state()

    def load_state(self, weights: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        self._parameters.load(weights)
        self._adam.load_state(state)


def rewards_to_go(columns: Mapping[str, Array], gamma: float) -> Array:
    """Discounted rewards `[T, E]` until the end of the episode or of the segment."""
    over = columns["terminated"] | columns["truncated"]
    returns, running = np.zeros_like(columns["reward"]), np.zeros(over.shape[1], np.float32)
    for t in range(len(over) - 1, -1, -1):
        running = columns["reward"][t] + gamma * running * ~over[t]
        returns[t] = running
    return returns
