"""What segments say of returns and errors: advantages, n-step and Q(lambda) returns, priorities. Numpy alone."""

from __future__ import annotations

from typing import NamedTuple

from zmqrl.loading import np
from zmqrl.types import Array


def generalised_advantages(
    reward: Array, value: Array, terminated: Array, truncated: Array, valid: Array, gamma: float, lambda_: float
) -> Array:
    """Advantages `[T, E]` (Schulman et al. 2016, equation 16), 0 on invalid rows.

    `reward`, `terminated`, `truncated`, `valid` are `[T, E]`; `value [T + 1, E]` is V of each row's obs. The row
    after a done holds the true final obs, so V(final obs) is simply the next row: truncation bootstraps from it,
    termination does not, and the sum over later steps stops at either.
    """
    steps, envs = reward.shape
    if value.shape != (steps + 1, envs) or not terminated.shape == truncated.shape == valid.shape == reward.shape:
        raise ValueError(f"value {value.shape} must be [T + 1, E] for reward {reward.shape}, flags [T, E]")
    bootstrap = gamma * (valid & ~terminated)
    # float64 and back: the recursion is short, and sums of float32 would depend on T.
    delta = np.where(valid, reward + bootstrap * value[1:].astype(np.float64) - value[:-1], 0.0)
    decay = (gamma * lambda_) * (valid & ~(terminated | truncated))
    advantage, running = np.empty_like(delta), np.zeros(envs)
    for t in range(steps - 1, -1, -1):
        running = delta[t] + decay[t] * running
        advantage[t] = running
    return advantage.astype(np.float32)


def vtrace(
    reward: Array,
    value: Array,
    ratio: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    gamma: float,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Array, Array]:
    """Targets of the critic and advantages of V-trace (Espeholt et al. 2018, section 4), `[T, E]` each, 0 if invalid.

    v_t = V_t + rho_t delta_t + gamma lambda c_t (v_{t+1} - V_{t+1}) (equation 1 and remark 1, with lambda of remark 2),
    and A_t = r_t + gamma (V_{t+1} + lambda (v_{t+1} - V_{t+1})) - V_t, which the loss weights by rho. With ratios of 1
    these are `generalised_advantages`, whose arguments it has too.

    `ratio [T, E]` are the probability ratios of the actions to the policy that acted; rho is min(rho_clip, ratio), and
    c is min(c_clip, ratio).
    """
    if value.shape != (len(reward) + 1, *reward.shape[1:]) or ratio.shape != reward.shape:
        raise ValueError(
            f"value {value.shape} must be [T + 1, E], and ratio {ratio.shape} that of reward {reward.shape}"
        )
    rho, c = np.minimum(ratio, rho_clip).astype(np.float64), np.minimum(ratio, c_clip).astype(np.float64)
    bootstrap, continues = gamma * (valid & ~terminated), valid & ~(terminated | truncated)
    delta = np.where(valid, reward + bootstrap * value[1:].astype(np.float64) - value[:-1], 0.0)
    surplus, advantage = np.zeros(value.shape), np.zeros_like(delta)
    for t in range(len(reward) - 1, -1, -1):
        later = gamma * lambda_ * continues[t] * surplus[t + 1]
        surplus[t] = rho[t] * delta[t] + c[t] * later
        advantage[t] = delta[t] + later
    target = np.where(valid, value[:-1] + surplus[:-1], 0.0)
    return target.astype(np.float32), advantage.astype(np.float32)


def explained_variance(predicted: Array, target: Array) -> float:
    """1 - var(target - predicted) / var(target): 1 is perfect, 0 a constant; NaN for constant targets."""
    assert predicted.shape == target.shape, (predicted.shape, target.shape)
    variance = float(np.var(target, dtype=np.float64))
    return float("nan") if variance == 0.0 else 1.0 - float(np.var(target - predicted, dtype=np.float64)) / variance


def q_lambda_returns(
    reward: Array, next_best: Array, terminated: Array, truncated: Array, valid: Array, gamma: float, lambda_: float
) -> Array:
    """Returns `[T, E]` of Q(lambda) (Gallici et al. 2025, equation 8), 0 on invalid rows.

    R_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda R_{t+1}). Everything is `[T, E]`; `next_best` is max Q
    of the obs after each row, which for a row that ends an episode is its true final obs: a truncation bootstraps from
    it, a termination does not. The last row of a segment bootstraps too.
    """
    steps, envs = reward.shape
    flags = terminated.shape == truncated.shape == valid.shape == reward.shape
    if next_best.shape != reward.shape or not flags:
        raise ValueError(f"next_best {next_best.shape} and the flags must have the shape of reward, {reward.shape}")
    best = next_best.astype(np.float64)
    goes_on = ~(terminated | truncated)
    returns, following = np.zeros((steps, envs)), best[-1]
    for t in range(steps - 1, -1, -1):
        mixed = np.where(goes_on[t], (1.0 - lambda_) * best[t] + lambda_ * following, best[t])
        returns[t] = np.where(valid[t], reward[t] + gamma * ~terminated[t] * mixed, 0.0)
        following = returns[t]
    return returns.astype(np.float32)


class NStep(NamedTuple):
    """`n_step_return [B]` float32, `length [B]` int64 (rewards summed), `discount [B]` float32."""

    n_step_return: Array
    length: Array
    discount: Array


def n_step_targets(reward: Array, terminated: Array, truncated: Array, present: Array, gamma: float) -> NStep:
    """Sum up to n rewards of each window `[B, n]` (Sutton & Barto 2018, equation 7.1).

    `present` is false where the segment has no such row; the first row of each window must be a valid one. The window
    stops after a terminated or truncated row. The value to bootstrap from is that of the obs `length` rows on
    (after a truncation: the true final obs), times `discount` = gamma^length, or 0 after a termination.
    """
    batch, n = reward.shape
    if not terminated.shape == truncated.shape == present.shape == (batch, n):
        raise ValueError(f"flags must be {(batch, n)}, got {terminated.shape}, {truncated.shape}, {present.shape}")
    goes_on = ~(terminated | truncated)[:, :-1]
    counts = present.copy()
    counts[:, 1:] &= np.logical_and.accumulate(goes_on, axis=1)
    powers = gamma ** np.arange(n + 1, dtype=np.float64)
    total = np.where(counts, reward * powers[:n], 0.0).sum(1)
    length = counts.sum(1)
    ends = (terminated & counts).any(1)
    discount = np.where(ends, 0.0, powers[length])
    return NStep(total.astype(np.float32), length, discount.astype(np.float32))


def sequence_priorities(delta: Array, mask: Array, max_share: float = 0.9) -> Array:
    """One priority per sequence: share * max |delta| + (1 - share) * mean |delta| over the rows in `mask`.

    Kapturowski et al. 2019 (R2D2), section 2.3, with their eta as `max_share`. `delta [R, C]`, `mask [R, C]` bool; the
    result `[C]` is float64, and 0 where no row counts.
    """
    if delta.shape != mask.shape:
        raise ValueError(f"delta and mask must have one shape, got {delta.shape} and {mask.shape}")
    size = np.where(mask, np.abs(delta.astype(np.float64)), 0.0)
    mean = size.sum(0) / np.maximum(mask.sum(0), 1)
    mixed: Array = max_share * size.max(0) + (1.0 - max_share) * mean
    return mixed
