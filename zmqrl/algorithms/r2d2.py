"""Recurrent replay distributed DQN (R2D2, Kapturowski et al. 2019): Q-learning with memory, on stored sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt

from zmqrl.acting.spec import ActingSpec, previous_size
from zmqrl.acting.state import state_of
from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner
from zmqrl.algorithms.dqn import DQN, DQNConfig, DQNLearner
from zmqrl.algorithms.q_learning.base import EpsilonSection, PrioritisedSection
from zmqrl.algorithms.start.defaults import Sections, off_policy_defaults
from zmqrl.config.points import Points
from zmqrl.config.sections import Count, Fraction, Positive, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import Batch
from zmqrl.learning.schedule import Rate
from zmqrl.loading import Tensor, torch
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.ops.targets import n_step_targets, rescaled, unscaled
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.types import ACTING_STATE, MODES, PREVIOUS, EnvSpec, ModeName

CORE = "q.lstm"
"""The layer with state."""
OF_TRANSITIONS = ("noisy", "munchausen", "worker_priorities", "relabel")
"""Options of DQN that need transitions."""


@dataclass(frozen=True)
class SequencePrioritySection(PrioritisedSection):
    """Prioritised replay of sequences (section 2.3 of the paper)."""

    alpha: Fraction = 0.9
    beta: Fraction = 0.6
    beta_end: Fraction = 0.6
    max_share: Fraction = 0.9
    """The priority is this share of the largest |TD error| of a sequence, plus the rest of their mean."""

    @property
    def settings(self) -> Prioritised:
        return replace(super().settings, max_share=self.max_share)


@dataclass(frozen=True)
class R2D2Config(DQNConfig):
    """The fields other than `kind: r2d2`: those of dqn, of which sequences do not have `OF_TRANSITIONS`."""

    learning_rate: Rate = 1e-4
    gamma: Fraction = 0.997
    batch_size: Positive = 64
    """Sequences per update."""
    n_step: Positive = 5
    """Rewards summed before bootstrapping, within a sequence."""
    dueling: bool = True
    prioritised: SequencePrioritySection | None = field(default_factory=SequencePrioritySection)
    loss: Literal["huber", "mse"] = "mse"
    target_update_every: Positive | None = 2_500
    adam_epsilon: Annotated[float, Gt(0)] = 1e-3
    max_grad_norm: Annotated[float, Gt(0)] | None = 40.0
    epsilon: EpsilonSection | Points[Fraction] = field(default_factory=lambda: EpsilonSection(0.4, 0.4))
    ladder: Annotated[float, Ge(0)] = 7.0
    burn_in: Count = 20
    """Rows at the start of a sequence that only bring the state up to date."""
    length: Positive = 20
    """Rows after them, to learn from. `env.segment_steps` is burn_in + length plus a multiple of `stride`."""
    stride: Positive = 10
    """Rows between the starts of two sequences, at most `length`."""
    lstm_size: Positive = 128
    """Outputs of the recurrent layer."""
    rescaling: Annotated[float, Gt(0)] | None = 1e-3
    """The network estimates h(return) = sign(x) (sqrt(|x| + 1) - 1) + rescaling x; null: the return."""


class R2D2(DQN, Algorithm):
    """Discrete actions. The network sees the previous action and reward too."""

    Config: ClassVar[type[Any]] = R2D2Config
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES) - {"offline"}
    config: R2D2Config

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Segments of 80 steps, a batch per 16 env steps: it has 20 times as many rows as one of transitions."""
        sections = off_policy_defaults(env, segment_steps=80)
        sections["replay"]["ratio"] = 0.0625
        sections["algorithm"] = {"learning_rate": 5e-4, "gamma": 0.99, "batch_size": 32, "target_update_every": 250}
        return sections

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` also for options that sequences do not have."""
        super().check(mode, vector_envs, replay)
        for name in OF_TRANSITIONS:
            if value := getattr(self.config, name):
                raise ConfigError("r2d2 does not have this option", key=("algorithm", name), value=str(value))

    def network(self) -> NetworkSpec:
        """One tower `q`: hidden layers, the recurrent layer, then the q values."""
        *hidden, last = super().network().tower("q")
        size, seen = self.config.lstm_size, last.inputs + previous_size(self.env.action)
        joined, core = LayerSpec("concat", inputs=last.inputs, outputs=seen), LayerSpec("lstm", CORE, seen, size)
        return NetworkSpec((("q", (*hidden, joined, core, replace(last, inputs=size))),))

    def acting(self) -> ActingSpec:
        """Acting of DQN; segments have a state where a sequence may start."""
        found, every = super().acting(), math.gcd(self.config.stride, self.segment_steps)
        return replace(found, state=state_of(found.layers), state_every=every, previous=True)

    def replay(self) -> ReplaySpec:
        """Sequences, by priority if configured."""
        config = self.config
        return replace(super().replay(), n_step=1, length=config.length, burn_in=config.burn_in, stride=config.stride)

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return R2D2Learner(self, context)


class R2D2Learner(DQNLearner):
    """Q-learning on the rows after the burn-in, with rescaled targets of n steps. L rows, time first."""

    config: R2D2Config

    def train(self, batch: Batch, moves_target: bool = False) -> Mapping[str, Tensor]:
        """The loss of a sequence is the mean of those of its rows (section 2.3)."""
        q = self.unrolled(batch)
        with torch.no_grad():
            target = self.target_of(batch, q.detach())
        action, mask = (self.learned(batch, name) for name in ("action", "mask"))
        taken = q[:-1].gather(2, action.unsqueeze(2))
        columns = (rows.reshape(-1, 1) for rows in (taken, target))
        losses, error = (rows.reshape(mask.shape) * mask for rows in self.losses(batch, *columns))
        results = self.step(batch, losses.sum(0) / mask.sum(0), error.T, moves_target)
        return {**results, "td_error": error.sum() / mask.sum(), "q_mean": q.mean()}

    def target_of(self, batch: Batch, q: Tensor) -> Tensor:
        """`h(returns of n steps)` `[L, B]`, for the q values `[L + 1, B, n]` of the online network."""
        config, scale = self.config, self.config.rescaling
        next_q = self.unrolled(batch, target=True)[1:]
        best = (q[1:] if config.double else next_q).argmax(2, keepdim=True)
        value = next_q.gather(2, best).squeeze(2)
        value = value if scale is None else unscaled(value, scale)
        reward, *ends = (self.learned(batch, name) for name in ("reward", "terminated", "truncated"))
        target = n_step_targets(reward, ends[0], ends[1], value, config.gamma, config.n_step)
        return target if scale is None else rescaled(target, scale)

    def unrolled(self, batch: Batch, target: bool = False) -> Tensor:
        """Q values `[L + 1, B, n]` of the rows to learn from and of the observation after them."""
        burn_in, state = self.config.burn_in, {CORE: batch[ACTING_STATE + CORE]}
        obs, *more = (batch[name].transpose(0, 1) for name in ("obs", "reset", PREVIOUS))
        with torch.no_grad():
            _, state = self.net.unroll("q", obs[:burn_in], state, *(rows[:burn_in] for rows in more), target=target)
        return self.net.unroll("q", obs[burn_in:], state, *(rows[burn_in:] for rows in more), target=target)[0]

    def learned(self, batch: Batch, name: str) -> Tensor:
        """Column `[L, B]` of the rows to learn from."""
        return batch[name].transpose(0, 1)[self.config.burn_in :]
