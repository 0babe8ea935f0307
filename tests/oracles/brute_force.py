"""Writes the JSON oracles that come from definitions, by the slowest loops, in float64; run it as a script."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
DEFINITION = "tests/oracles/brute_force.py: the definition"
ORIGIN = "{} summed term by term in float64, numpy {}"


def segment(rng: np.random.Generator, steps: int, envs: int) -> dict[str, np.ndarray]:
    """A segment with NEXT_STEP autoreset: the row after a done is invalid."""
    ends = rng.random((steps, envs))
    valid = np.ones((steps, envs), dtype=bool)
    terminated, truncated = ends < 0.15, (ends >= 0.15) & (ends < 0.3)
    for t in range(steps):
        before = (terminated[t - 1] | truncated[t - 1]) if t else rng.random(envs) < 0.2
        valid[t] = ~before
        terminated[t] &= valid[t]
        truncated[t] &= valid[t]
    reward = rng.normal(size=(steps, envs)) * valid
    value = rng.normal(size=(steps + 1, envs))
    return {"reward": reward, "terminated": terminated, "truncated": truncated, "valid": valid, "value": value}


def gae(s: dict[str, np.ndarray], gamma: float, lambda_: float) -> np.ndarray:
    """Sum over k of (gamma lambda)^k delta_{t+k}, to the end of the episode or the segment."""
    steps, envs = s["reward"].shape
    out = np.zeros((steps, envs))
    for e in range(envs):
        for t in range(steps):
            for k in range(steps - t):
                u = t + k
                if not s["valid"][u, e]:
                    break
                bootstrap = 0.0 if s["terminated"][u, e] else s["value"][u + 1, e]
                delta = s["reward"][u, e] + gamma * bootstrap - s["value"][u, e]
                out[t, e] += (gamma * lambda_) ** k * delta
                if s["terminated"][u, e] or s["truncated"][u, e]:
                    break
    return out


def vtrace(
    s: dict[str, np.ndarray], gamma: float, lambda_: float, rho_clip: float, c_clip: float
) -> tuple[np.ndarray, np.ndarray]:
    """Targets v and advantages r + gamma v' - V of Espeholt et al. 2018, equation 1, with lambda of remark 2.

    `s["ratio"]` are the probability ratios. The sum ends with the episode or the segment.
    """
    steps, envs = s["reward"].shape
    target, advantage = np.zeros((steps, envs)), np.zeros((steps, envs))
    for t, e in reversed(list(np.ndindex(steps, envs))):
        if not s["valid"][t, e]:
            continue
        total, traces, later = s["value"][t, e], 1.0, 0.0
        for u in range(t, steps):
            bootstrap = 0.0 if s["terminated"][u, e] else s["value"][u + 1, e]
            delta = s["reward"][u, e] + gamma * bootstrap - s["value"][u, e]
            total += gamma ** (u - t) * traces * min(rho_clip, s["ratio"][u, e]) * delta
            if s["terminated"][u, e] or s["truncated"][u, e]:
                break
            traces *= lambda_ * min(c_clip, s["ratio"][u, e])
        if t + 1 < steps and not (s["terminated"][t, e] or s["truncated"][t, e]):
            later = lambda_ * (target[t + 1, e] - s["value"][t + 1, e])
        following = 0.0 if s["terminated"][t, e] else s["value"][t + 1, e] + later
        target[t, e], advantage[t, e] = total, s["reward"][t, e] + gamma * following - s["value"][t, e]
    return target, advantage


def n_step(s: dict[str, np.ndarray], n: int, gamma: float) -> list[dict[str, float]]:
    """For every valid row: the return, how far on to bootstrap, with which discount."""
    steps, envs = s["reward"].shape
    rows = []
    for t in range(steps):
        for e in range(envs):
            if not s["valid"][t, e]:
                continue
            total, length, ended = 0.0, 0, False
            while length < n and t + length < steps:
                u = t + length
                total += gamma**length * s["reward"][u, e]
                length += 1
                ended = bool(s["terminated"][u, e])
                if ended or s["truncated"][u, e]:
                    break
            discount = 0.0 if ended else gamma**length
            rows.append({"t": t, "env": e, "n_step_return": total, "length": length, "discount": discount})
    return rows


def double_q(rng: np.random.Generator) -> dict[str, object]:
    """Target value of the online network's choice."""
    next_q, selector = rng.normal(size=(6, 3)), rng.normal(size=(6, 3))
    returns, discount = rng.normal(size=6), np.array([0.9, 0.0, 0.81, 0.9, 0.729, 0.0])
    target = [returns[i] + discount[i] * next_q[i][int(np.argmax(selector[i]))] for i in range(6)]
    plain = [returns[i] + discount[i] * max(next_q[i]) for i in range(6)]
    return {"next_q": next_q, "selector_q": selector, "n_step_return": returns, "discount": discount,
            "double": target, "plain": plain}  # fmt: skip


def ppo_loss(rng: np.random.Generator) -> dict[str, object]:
    """Clipped surrogate and clipped value loss row by row."""
    size, clip, value_clip = 16, 0.2, 0.3
    ratio, advantage = np.exp(rng.normal(size=size) * 0.4), rng.normal(size=size)
    value, old, target = rng.normal(size=size), rng.normal(size=size), rng.normal(size=size)
    policy = [-min(r * a, min(max(r, 1 - clip), 1 + clip) * a) for r, a in zip(ratio, advantage, strict=True)]
    clipped = [o + min(max(v - o, -value_clip), value_clip) for v, o in zip(value, old, strict=True)]
    both = [max((v - g) ** 2, (c - g) ** 2) for v, c, g in zip(value, clipped, target, strict=True)]
    return {"clip": clip, "value_clip": value_clip, "ratio": ratio, "advantage": advantage, "value": value,
            "old_value": old, "target": target, "policy": policy, "value_loss": both}  # fmt: skip


def prioritised() -> dict[str, object]:
    """P(i) = p_i^alpha / sum and w_i = (N P(i))^-beta / max over the rows."""
    delta, alpha, beta, epsilon = [0.0, 0.5, 1.0, 2.0, 4.0, 0.1], 0.6, 0.4, 1e-4
    mass = [(abs(d) + epsilon) ** alpha for d in delta]
    probability = [m / sum(mass) for m in mass]
    weight = [(len(delta) * p) ** -beta for p in probability]
    return {"delta": delta, "alpha": alpha, "beta": beta, "epsilon": epsilon, "probability": probability,
            "weight": [w / max(weight) for w in weight]}  # fmt: skip


def plain(value: object) -> object:
    """Arrays as lists."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def write(name: str, data: dict[str, object], source: str = DEFINITION) -> None:
    """One file with its origin first: the formula, and what computed it."""
    content = {"origin": ORIGIN.format(source, np.__version__)} | {k: plain(v) for k, v in data.items()}
    (HERE / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Write all files."""
    rng = np.random.default_rng(20261121)
    s = segment(rng, 12, 5)
    write("gae_truncation", {**s, "gamma": 0.95, "lambda": 0.9, "advantage": gae(s, 0.95, 0.9)})
    write("n_step", {**s, "gamma": 0.9, "targets": {str(n): n_step(s, n, 0.9) for n in (1, 3, 5)}})
    write("double_q", double_q(rng))
    write("ppo_loss", ppo_loss(rng))
    write("prioritised", prioritised())


if __name__ == "__main__":
    main()
