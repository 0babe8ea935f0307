"""Writes ppo_gru.json: the loss of PPO with a gated recurrent unit over one segment, and its gradient, in float64.

`python -m tests.oracles.ppo_gru` writes the file; nothing of zmqrl runs. The gradient is that of central differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.oracles.brute_force import gae, write

SOURCE = (
    "tests/oracles/ppo_gru.py: Schulman et al. 2017 (arXiv 1707.06347), equations 7 and 9; Cho et al. 2014 with the "
    "gates of torch.nn.GRUCell; GAE of Schulman et al. 2016, equation 16; approximate KL of Schulman 2020 (k3),"
)
STEPS, ENVS, SEQUENCE, OBS, SIZE, ACTIONS = 10, 2, 5, 3, 4, 3
SETTINGS = {"gamma": 0.9, "gae_lambda": 0.8, "clip": 0.2, "vf_coef": 0.5, "ent_coef": 0.01}
SHAPES = {
    "torso.gru.weight_ih": (3 * SIZE, OBS),
    "torso.gru.weight_hh": (3 * SIZE, SIZE),
    "torso.gru.bias_ih": (3 * SIZE,),
    "torso.gru.bias_hh": (3 * SIZE,),
    "actor.0.weight": (ACTIONS, SIZE),
    "actor.0.bias": (ACTIONS,),
    "critic.0.weight": (1, SIZE),
    "critic.0.bias": (1,),
}
STEP = 1e-6
"""Of the central differences."""
Weights = Mapping[str, Any]


def segment(rng: np.random.Generator) -> dict[str, Any]:
    """The row after the end of an episode is invalid: the last of a sequence, the first of one, or one in between."""
    terminated, truncated, valid = (np.zeros((STEPS, ENVS), bool) for _ in range(3))
    terminated[3, 0] = terminated[4, 1] = truncated[5, 0] = truncated[8, 1] = True
    valid[:] = True
    valid[1:] = ~(terminated | truncated)[:-1]
    state = rng.normal(size=(STEPS // SEQUENCE, ENVS, SIZE)) * 0.5
    state[1, 0] = 0.0  # an episode begins
    return {
        "obs": rng.normal(size=(STEPS + 1, ENVS, OBS)),
        "action": rng.integers(0, ACTIONS, (STEPS, ENVS)),
        "reward": rng.normal(size=(STEPS, ENVS)) * valid,
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
        "log_prob": np.log(rng.uniform(0.2, 0.6, (STEPS, ENVS))),
        "state": state,
    }


def after(w: Weights, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """The state of one unit after one row."""
    of_x = np.split(w["torso.gru.weight_ih"] @ x + w["torso.gru.bias_ih"], 3)
    of_h = np.split(w["torso.gru.weight_hh"] @ h + w["torso.gru.bias_hh"], 3)
    r, z = (1.0 / (1.0 + np.exp(-(of_x[i] + of_h[i]))) for i in (0, 1))
    n = np.tanh(of_x[2] + r * of_h[2])
    return np.asarray((1.0 - z) * n + z * h)


def states(w: Weights, s: dict[str, Any], env: int, rows: int, stored_every: int) -> list[np.ndarray]:
    """After each row; the stored state before every `stored_every`-th row, zero after an invalid one."""
    found: list[np.ndarray] = []
    for t in range(rows):
        if t % stored_every == 0:
            h = s["state"][t // SEQUENCE, env]
        elif not s["valid"][t - 1, env]:
            h = np.zeros(SIZE)
        h = after(w, s["obs"][t, env], h)
        found.append(h)
    return found


def targets(w: Weights, s: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and value targets, by the values from the state at the start of the segment."""
    value = np.array([states(w, s, e, STEPS + 1, STEPS + 1) for e in range(ENVS)]) @ w["critic.0.weight"][0]
    value = value.T + w["critic.0.bias"][0]
    advantage = gae({**s, "value": value}, SETTINGS["gamma"], SETTINGS["gae_lambda"])
    return advantage, advantage + value[:-1]


def losses(w: Weights, s: dict[str, Any], advantage: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Means over the valid rows of both envs, row by row."""
    kept = [advantage[t, e] for t, e in np.ndindex(STEPS, ENVS) if s["valid"][t, e]]
    mean, deviation, clip = np.mean(kept), np.std(kept), SETTINGS["clip"]
    sums = dict.fromkeys(("loss/policy", "loss/value", "entropy", "approx_kl", "clip_fraction"), 0.0)
    for e in range(ENVS):
        for t, h in enumerate(states(w, s, e, STEPS, SEQUENCE)):
            if not s["valid"][t, e]:
                continue
            logits = w["actor.0.weight"] @ h + w["actor.0.bias"]
            p = np.exp(logits) / np.exp(logits).sum()
            value = w["critic.0.weight"][0] @ h + w["critic.0.bias"][0]
            ratio = p[s["action"][t, e]] / np.exp(s["log_prob"][t, e])
            scaled = (advantage[t, e] - mean) / deviation
            sums["loss/policy"] -= min(ratio * scaled, min(max(ratio, 1.0 - clip), 1.0 + clip) * scaled)
            sums["loss/value"] += (value - target[t, e]) ** 2
            sums["entropy"] -= float(p @ np.log(p))
            sums["approx_kl"] += ratio - 1.0 - np.log(ratio)
            sums["clip_fraction"] += abs(ratio - 1.0) > clip
    return {name: float(total / len(kept)) for name, total in sums.items()}


def gradient(w: dict[str, np.ndarray], s: dict[str, Any]) -> dict[str, np.ndarray]:
    """Of the whole loss; advantages and targets are constants."""
    fixed = targets(w, s)

    def loss(name: str, index: tuple[int, ...], by: float) -> float:
        changed = w[name].copy()
        changed[index] += by
        found = losses({**w, name: changed}, s, *fixed)
        bonus = SETTINGS["ent_coef"] * found["entropy"]
        return found["loss/policy"] + SETTINGS["vf_coef"] * found["loss/value"] - bonus

    def slope(name: str, index: tuple[int, ...]) -> float:
        return (loss(name, index, STEP) - loss(name, index, -STEP)) / (2.0 * STEP)

    return {name: np.array([slope(name, i) for i in np.ndindex(a.shape)]).reshape(a.shape) for name, a in w.items()}


def main() -> None:
    """Write the file."""
    rng = np.random.default_rng(20261126)
    w = {name: rng.normal(size=shape) * 0.6 for name, shape in SHAPES.items()}
    s = segment(rng)
    metrics, slopes = losses(w, s, *targets(w, s)), gradient(w, s)
    metrics["grad_norm/policy"] = float(np.sqrt(sum((slope**2).sum() for slope in slopes.values())))
    data = {"settings": SETTINGS, "weights": w, "columns": s, "metrics": metrics, "gradient": slopes}
    write("ppo_gru", data, SOURCE)


if __name__ == "__main__":
    main()
