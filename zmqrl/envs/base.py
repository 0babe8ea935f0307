"""The env seam: N envs stepped together, with NEXT_STEP autoreset and seeds that a successor can repeat."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct, structs

from zmqrl.envs.env_index import release
from zmqrl.errors import ConfigError, EnvFault, user_exceptions
from zmqrl.loading import np
from zmqrl.spaces import LARGEST_FLOAT32, nth_allowed, ranges, view
from zmqrl.types import BYTES, Array, EnvSpec, SpaceSpec, StateSpec

if TYPE_CHECKING:
    from zmqrl.envs.returned import InfoReader

STATE_PAIR = ("get_state", "set_state")
ALTERNATIVES = "or set env.recovery: exact, which repeats actions, or restart_episode"
Floats: TypeAlias = Sequence[tuple[str, Array]]
"""Parts of observations that may hold any float: name (empty: the whole observation) and rows `[N, ...]`."""
Numbers: TypeAlias = Mapping[str, float]
"""Numbers of a version, by name."""
AT_RESET = -1
"""The step of numbers that an env receives before its reset."""


def close_env(env: Any) -> None:
    """Nothing depends on what `close` of the user's env does, nor on whether it has one."""
    try:
        env.close()
    except user_exceptions():
        pass
    with contextlib.suppress(Exception):  # of a property of the user's
        release(env)


def has_state_pair(env: Any) -> bool:
    """Whether `env` has both methods, which may be another author's, with a meaning of their own."""
    return all(callable(getattr(env, name, None)) for name in STATE_PAIR)


def state_spec(env: Any) -> StateSpec:
    """The form of the states that `env.recovery: state` requests, from one after a reset. ConfigError when unusable."""
    if not has_state_pair(env):
        what = f"{type(env).__name__} does not have both get_state and set_state"
        fix = f"add them (those of a wrapper include its env), {ALTERNATIVES}"
        raise ConfigError(what, key=("env", "recovery"), value="'state'", fix=fix)
    env.reset(seed=0)
    state = env.get_state()
    if isinstance(state, (bytes, bytearray, memoryview)):
        return StateSpec(BYTES, (len(bytes(state)),))
    if isinstance(state, np.ndarray) and state.dtype.kind in "fiub":
        return StateSpec(state.dtype.str, state.shape)
    raise ConfigError(
        f"get_state of {type(env).__name__} returned {type(state).__name__}",
        key=("env", "recovery"),
        value="'state'",
        fix=(
            "return bytes or an array of numbers, always of the same size, with all state of the env, "
            f"random number generators included, {ALTERNATIVES}"
        ),
    )


def packed(state: Any, spec: StateSpec) -> Array:
    """uint8 `[bytes]`. ValueError when it is not of the spec."""
    if spec.dtype == BYTES:
        found: Array = np.frombuffer(bytes(state), np.uint8)
        like = found.shape == spec.shape
    else:
        array = np.ascontiguousarray(state)
        like = array.shape == spec.shape and array.dtype.str == spec.dtype
        found = np.frombuffer(array.tobytes(), np.uint8)
    if not like:
        raise ValueError(f"get_state returned another size or type than after the first reset ({spec})")
    return found


def unpacked(state: Array, spec: StateSpec) -> Any:
    """What `get_state` returned."""
    if spec.dtype == BYTES:
        return state.tobytes()
    return np.frombuffer(state.tobytes(), spec.dtype).reshape(spec.shape).copy()


class Where(Struct, frozen=True):
    """The place of a fault: enough to run it again alone.

    `step` is the call of `step` that raised or returned a bad value, 1 for the first of the episode; 0: `reset`.
    Those of a native vector env are counted from its start.
    """

    env: str
    vector_env: int
    slot: int
    seed: int
    episode: int
    step: int

    def fault(self, what: str, place: str = "") -> EnvFault:
        """The error to raise; `place`: file and line of the user's code."""
        of = "evaluation" if self.vector_env < 0 else f"vector env {self.vector_env}"
        at = f"env slot {self.slot}, seed {self.seed}, episode {self.episode}, step {self.step}"
        return EnvFault(what, structs.asdict(self), subject=f"env {self.env} ({of}, {at})", place=place)


def first_bad_slot(floats: Floats, reward: Array | None = None) -> tuple[int, str] | None:
    """The first slot with an observation or reward that is not finite as float32, and what it is; None if all is well.

    They are trained on as float32. One such number makes every gradient NaN.
    """
    for name, obs in floats:
        slot = _first_not_finite(obs)
        if slot is not None:
            what = f"part {name!r} of the observation" if name else "the observation"
            number = "NaN" if np.isnan(obs[slot]).any() else "a number that is not finite in float32"
            return slot, f"{what} has {number}: {_short(obs[slot])}"
    if reward is None or (slot := _first_not_finite(reward)) is None:
        return None
    return slot, f"the reward is {reward[slot]}, not finite in float32"


def _first_not_finite(rows: Array) -> int | None:
    flat = rows.reshape(-1)
    if float(flat.dot(flat)) <= LARGEST_FLOAT32**2:  # squares do not cancel, and no comparison with NaN holds
        return None
    with np.errstate(over="ignore"):
        numbers = rows.reshape(len(rows), -1).astype(np.float32)
    bad = ~np.isfinite(numbers).all(axis=1)  # the squares of finite numbers may overflow
    return int(bad.argmax()) if bad.any() else None


def _short(row: Array) -> str:
    return np.array2string(row, threshold=8, precision=4).replace("\n", "")


def random_actions(spec: EnvSpec, count: int, generator: np.random.Generator, obs: Array | None = None) -> Array:
    """Drawn uniformly; of a `Box` as its `sample` draws them.

    `obs`: observations `[count, ...]` of the spec; where they have an `action_mask`, only allowed actions are drawn.

    Returns:
        Discrete: int64 `[count]`; multi_discrete: int64 `[count, k]`; else the dtype of the space, `[count, *shape]`.
    """
    action, mask = spec.action, spec.observation.action_mask
    if action.choices:
        if obs is not None and mask is not None:
            return _allowed_actions(action, view(obs, spec.observation, mask), generator)
        if action.kind == "multi_discrete":
            return generator.integers(0, action.nvec, (count, len(action.nvec)))
        return generator.integers(0, action.n, count)
    return _random_box(action, count, generator).reshape(count, *action.shape).astype(action.dtype)


def _random_box(action: SpaceSpec, count: int, generator: np.random.Generator) -> Array:
    """float64 `[count, size]`: uniform between two bounds, exponential from one, standard normal without."""
    size = math.prod(action.shape)
    low, high = np.array(action.low or (-math.inf,) * size), np.array(action.high or (math.inf,) * size)
    with np.errstate(over="ignore", invalid="ignore"):
        endless = ~np.isfinite(high - low)  # a width beyond the largest float is that of no bound
    below, above = np.isfinite(low), np.isfinite(high)
    only_low, only_high, both = below & ~above, ~below & above, below & above & ~endless
    free = ~(only_low | only_high | both)

    def rows(entries: Array) -> tuple[int, int]:
        return count, int(entries.sum())

    drawn: Array = np.empty((count, size))
    drawn[:, free] = generator.normal(size=rows(free))
    drawn[:, only_low] = low[only_low] + generator.exponential(size=rows(only_low))
    drawn[:, only_high] = high[only_high] - generator.exponential(size=rows(only_high))
    drawn[:, both] = generator.uniform(low[both], high[both], rows(both))
    return drawn


def _allowed_actions(action: SpaceSpec, mask: Array, generator: np.random.Generator) -> Array:
    entries = ranges(action.choices)
    uniform = generator.random((len(entries), len(mask)))
    columns = [nth_allowed(mask[:, begin:end], row) for (begin, end), row in zip(entries, uniform, strict=True)]
    return columns[0] if action.kind == "discrete" else np.stack(columns, axis=1)


class EnvSlotState(Struct, frozen=True):
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
    """Last observation, stored with `state`."""
    elapsed: int = 0
    """Steps since the reset, stored with `state`."""
    acting_state: Array | None = None
    """float32 `[S]`: the recurrent state with which the next row is acted (`zmqrl.acting.state`); None: zero."""
    numbers: tuple[tuple[int, Numbers], ...] = ()
    """What `on_progress` received, each before this step of the episode (from 0 on), the first ones at `AT_RESET`."""


class StepResult(NamedTuple):
    """One step of all N envs. Arrays may be reused by the next call: copy what must stay."""

    obs: Array
    """`[N, ...]`, the observation after the step; on the row that ends an episode the true final one."""
    reward: Array
    """`[N]` float64."""
    terminated: Array
    """`[N]` bool; of an agent that has left a multi-agent env as they were when it left, until that env resets."""
    truncated: Array
    """`[N]` bool; likewise."""


class VectorEnv(ABC):
    """N envs of one kind. One thread; no method blocks longer than the user's env.

    NEXT_STEP autoreset: the step after one that ended an episode ignores its action, resets, and
    returns the first observation of the next episode with reward 0 and both flags false. The caller
    marks that row invalid.
    The agents of a multi-agent env are `spec.slots_per_env` slots side by side, which reset together: in the step after
    the one that ended the last agent's episode. Until then an agent that has ended keeps its flags and its last
    observation, with reward 0; these rows are invalid too.
    Every method raises `EnvFault` (env id, slot, seed, episode, step, cause) when the user's code raises
    or returns what the spaces do not allow (wrong shape, NaN, an infinite number).
    """

    spec: EnvSpec
    num_envs: int
    on_replay: Callable[[], None] | None = None
    """Called with each step that `start` repeats: a long episode takes its time."""
    reports: Array | None = None
    """float64 `[N, names]`, of the newest step: what `report_on` names; NaN where `info` does not have it."""
    reader: InfoReader
    """What reads `reports`, where there are any."""

    @abstractmethod
    def start(self, states: tuple[EnvSlotState, ...] | None = None) -> Array:
        """Reset every slot, or bring it to `states` by reset and replayed actions; return `obs [N, ...]`."""

    def ended(self) -> Array:
        """Bool `[N]`: slots whose next row is invalid. Read after `start`: some agents of an env may have ended."""
        return np.zeros(self.num_envs, bool)

    @abstractmethod
    def on_progress(self, numbers: Numbers) -> None:
        """Pass the numbers of a version to every env and wrapper with `on_progress`, before the first step with it."""

    @abstractmethod
    def step(self, actions: Array) -> StepResult:
        """Step every env with `actions [N, ...]`, already clipped to the action space."""

    @abstractmethod
    def report_on(self, names: Sequence[str]) -> None:
        """Read these names of `info` into `reports` in each step. Called once, before `start`."""

    def states(self) -> Array:
        """uint8 `[N, bytes]`: the state of each env, zeros where the next step resets; of envs that have one."""
        raise NotImplementedError(f"{type(self).__name__} does not save states")

    @abstractmethod
    def close(self) -> None:
        """Close the envs; safe to call twice."""
