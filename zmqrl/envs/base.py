"""The env seam: N envs stepped together, with NEXT_STEP autoreset and seeds that a successor can repeat."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from zmqrl.types import Array, EnvSpec


@dataclass(frozen=True)
class EnvSlotState:
    """The position of one env of a vector env: enough to rebuild it when the env is deterministic.

    `actions` are those given since the reset of episode `episode`, in order, `[steps, ...]`;
    None is none. `resetting` is true when the last step ended episode `episode`, so that the next step
    resets into `episode + 1`.
    """

    episode: int = 0
    actions: Array | None = None
    resetting: bool = False
    state: Array | None = None
    """uint8 `[bytes]`: what the env's `get_state` returned; then no actions are stored."""
    obs: Array | None = None
    """With `state`: the last observation."""
    elapsed: int = 0
    """With `state`: steps since the reset."""


class StepResult(NamedTuple):
    """One step of all N envs. Arrays may be reused by the next call: copy what must stay."""

    obs: Array
    """`[N, ...]`, the observation after the step; on the row that ends an episode the true final one."""
    reward: Array
    """`[N]` float64."""
    terminated: Array
    """`[N]` bool."""
    truncated: Array
    """`[N]` bool."""


class VectorEnv(ABC):
    """N envs of one kind. One thread; no method blocks longer than the user's env.

    NEXT_STEP autoreset: the step after one that ended an episode ignores its action, resets, and
    returns the first observation of the next episode with reward 0 and both flags false. The caller
    marks that row invalid.
    Every method raises `EnvFault` (env id, slot, seed, episode, step, cause) when the user's code raises
    or returns what the spaces do not allow (wrong shape, NaN).
    """

    spec: EnvSpec
    num_envs: int
    on_replay: Callable[[], None] | None = None
    """Called with each step that `start` repeats: a long episode takes its time."""

    @abstractmethod
    def start(self, states: tuple[EnvSlotState, ...] | None = None) -> Array:
        """Reset every slot, or bring it to `states` by reset and replayed actions; return `obs [N, ...]`."""

    @abstractmethod
    def step(self, actions: Array) -> StepResult:
        """Step every env with `actions [N, ...]`, already clipped to the action space."""

    def states(self) -> Array:
        """uint8 `[N, bytes]`: the state of each env, zeros where the next step resets; of envs that have one."""
        raise NotImplementedError(f"{type(self).__name__} does not save states")

    @abstractmethod
    def close(self) -> None:
        """Close the envs; safe to call twice."""
