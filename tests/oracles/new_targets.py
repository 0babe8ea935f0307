"""Writes the JSON oracles of the losses and targets beyond PPO and DQN: what the papers define, in float64.

`python -m tests.oracles.new_targets` writes quantile_huber.json, q_lambda.json and choices.json; nothing of zmqrl runs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.oracles.brute_force import segment, write

SEED, HERE = 20261126, "tests/oracles/new_targets.py"
QUANTILES = f"{HERE}: Dabney et al. 2018 (arXiv 1710.10044), equations 9 and 10 with kappa 1, and algorithm 1,"
Q_LAMBDA = f"{HERE}: Gallici et al. 2025 (arXiv 2407.04811) by the forward view, Sutton & Barto 2018, equation 12.3,"
CHOICES = f"{HERE}: Huang & Ontanon 2022 (arXiv 2006.14171), softmax over the allowed actions of each part,"


def quantile_huber(quantiles: list[float], target: list[float]) -> float:
    """Sum over the quantiles of the mean over the targets."""
    total = 0.0
    for i, quantile in enumerate(quantiles):
        level = (2 * i + 1) / (2 * len(quantiles))
        for one in target:
            u = one - quantile
            loss = 0.5 * u**2 if abs(u) <= 1.0 else abs(u) - 0.5
            total += (1.0 - level if u < 0 else level) * loss / len(target)
    return total


def qrdqn(rng: np.random.Generator) -> dict[str, Any]:
    """The loss of each row: the target network's quantiles of the best next action, by either network."""
    rows, actions, count = 5, 3, 4
    shape = (rows, actions, count)
    now, online, following = (rng.normal(size=shape) * 2 for _ in range(3))
    action, returns = rng.integers(0, actions, rows), rng.normal(size=rows)
    discount = np.array([0.9, 0.0, 0.81, 0.9, 0.729])
    losses: dict[str, list[float]] = {"plain": [], "double": []}
    for i in range(rows):
        for name, chooser in (("plain", following), ("double", online)):
            means = [sum(quantiles) / count for quantiles in chooser[i].tolist()]
            best = following[i][means.index(max(means))]
            target = [returns[i] + discount[i] * q for q in best]
            losses[name].append(quantile_huber(now[i][action[i]].tolist(), target))
    return {"quantiles": now, "next_online": online, "next_target": following, "action": action,
            "n_step_return": returns, "discount": discount, "weight": rng.random(rows), "losses": losses}  # fmt: skip


def q_lambda(s: dict[str, Any], gamma: float, lambda_: float) -> np.ndarray:
    """(1 - lambda) sum of lambda^(n - 1) G^(n), and the last n-step return with what is left of the weight."""
    steps, envs = s["reward"].shape
    out = np.zeros((steps, envs))
    for e in range(envs):
        for t in range(steps):
            if not s["valid"][t, e]:
                continue
            returns, rewards = [], 0.0
            for u in range(t, steps):
                rewards += gamma ** (u - t) * s["reward"][u, e]
                bootstrap = 0.0 if s["terminated"][u, e] else gamma ** (u - t + 1) * s["next_best"][u, e]
                returns.append(rewards + bootstrap)
                if s["terminated"][u, e] or s["truncated"][u, e]:
                    break
            mixed = sum((1.0 - lambda_) * lambda_**n * one for n, one in enumerate(returns[:-1]))
            out[t, e] = mixed + lambda_ ** (len(returns) - 1) * returns[-1]
    return out


def choice(logits: list[float], mask: list[int], action: int) -> tuple[float, float]:
    """Log-probability of an allowed action, and the entropy."""
    allowed = [math.exp(logit) for logit, is_allowed in zip(logits, mask, strict=True) if is_allowed]
    p = [weight / sum(allowed) for weight in allowed]
    return math.log(math.exp(logits[action]) / sum(allowed)), -sum(one * math.log(one) for one in p)


def choices(rng: np.random.Generator) -> dict[str, Any]:
    """One choice of all, and one of each part: with masks, of which the last allows everything."""
    rows, sizes = 6, (2, 3)
    logits, mask = rng.normal(size=(rows, sum(sizes))) * 2, np.ones((rows, sum(sizes)), int)
    one, several = np.zeros(rows, int), np.zeros((rows, len(sizes)), int)
    found: dict[str, list[float]] = {f"{n}_{w}": [] for n in ("one", "several") for w in ("log_prob", "entropy")}
    for i in range(rows):
        several[i] = [rng.integers(size) for size in sizes]
        kept = [several[i, 0], sizes[0] + several[i, 1]]
        if i < rows - 1:
            mask[i] = rng.random(sum(sizes)) < 0.5
            mask[i, kept] = 1
        one[i] = kept[i % 2]
        log_prob, entropy = choice(logits[i].tolist(), mask[i].tolist(), int(one[i]))
        found["one_log_prob"].append(log_prob)
        found["one_entropy"].append(entropy)
        parts = [
            choice(logits[i, begin:end].tolist(), mask[i, begin:end].tolist(), int(several[i, part]))
            for part, (begin, end) in enumerate(((0, 2), (2, 5)))
        ]
        found["several_log_prob"].append(sum(log_prob for log_prob, _ in parts))
        found["several_entropy"].append(sum(entropy for _, entropy in parts))
    return {"logits": logits, "mask": mask, "sizes": list(sizes), "one": one, "several": several, **found}


def main() -> None:
    """Write all files."""
    rng = np.random.default_rng(SEED)
    literal = {"quantiles": [-1.0, 3.0], "target": [-3.0, 4.0, 2.0]}  # 1.5833 also by sb3-contrib 2.9.2
    drawn = [{"quantiles": rng.normal(size=5) * 2, "target": rng.normal(size=3) * 2} for _ in range(3)]
    cases = [literal, *drawn]
    losses = [quantile_huber(list(case["quantiles"]), list(case["target"])) for case in cases]
    write("quantile_huber", {"cases": cases, "losses": losses, "qrdqn": qrdqn(rng)}, QUANTILES)
    s = segment(rng, 9, 6)
    s["next_best"] = s.pop("value")[1:]
    write("q_lambda", {**s, "gamma": 0.9, "returns": {str(x): q_lambda(s, 0.9, x) for x in (0.0, 0.65, 1.0)}}, Q_LAMBDA)
    write("choices", choices(rng), CHOICES)


if __name__ == "__main__":
    main()
