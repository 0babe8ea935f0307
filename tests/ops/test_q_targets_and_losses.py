from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from zmqrl.ops.manual import (
    approximate_kl,
    clipped_surrogate,
    double_q_target,
    half_square,
    huber,
    q_target,
    value_loss,
)

ORACLES = Path(__file__).parents[1] / "oracles"


def tensors(name: str) -> dict[str, torch.Tensor]:
    oracle = json.loads((ORACLES / f"{name}.json").read_text())
    return {k: torch.tensor(v, dtype=torch.float32) for k, v in oracle.items() if k != "origin"}


def test_q_targets() -> None:
    o = tensors("double_q")
    double = double_q_target(o["n_step_return"], o["discount"], o["next_q"], o["selector_q"])
    torch.testing.assert_close(double, o["double"])
    torch.testing.assert_close(q_target(o["n_step_return"], o["discount"], o["next_q"]), o["plain"])
    assert not torch.allclose(o["double"], o["plain"])


def test_ppo_losses() -> None:
    o = tensors("ppo_loss")
    torch.testing.assert_close(clipped_surrogate(o["ratio"], o["advantage"], float(o["clip"])).per_row, o["policy"])
    loss = value_loss(o["value"], o["old_value"], o["target"], float(o["value_clip"]))
    torch.testing.assert_close(loss.per_row, o["value_loss"])


def test_surrogate_gradient_is_autograds() -> None:
    o = tensors("ppo_loss")
    log_ratio = o["ratio"].log().requires_grad_()
    ratio, advantage = log_ratio.exp(), o["advantage"]
    torch.max(-ratio * advantage, -ratio.clamp(0.8, 1.2) * advantage).mean().backward()
    assert log_ratio.grad is not None and 0 < (log_ratio.grad == 0).sum() < len(log_ratio)
    torch.testing.assert_close(clipped_surrogate(o["ratio"], advantage, 0.2).grad, log_ratio.grad)


def test_value_gradient_is_autograds() -> None:
    o = tensors("ppo_loss")
    for clip in (None, 0.3):
        value = o["value"].clone().requires_grad_()
        plain = (value - o["target"]) ** 2
        kept = o["old_value"] + (value - o["old_value"]).clamp(-0.3, 0.3)
        (plain if clip is None else torch.max(plain, (kept - o["target"]) ** 2)).mean().backward()
        assert value.grad is not None
        torch.testing.assert_close(value_loss(o["value"], o["old_value"], o["target"], clip).grad, value.grad)


def test_approximate_kl_of_equal_policies_is_zero() -> None:
    assert float(approximate_kl(torch.zeros(4))) == 0.0
    assert float(approximate_kl(torch.tensor([0.3, -0.2]))) > 0.0


def test_huber_and_square_agree_for_small_errors_only() -> None:
    error = torch.tensor([-3.0, -0.5, 0.0, 0.25, 2.0])
    loss, slope = huber(error)
    torch.testing.assert_close(loss, torch.nn.functional.huber_loss(error, torch.zeros(5), reduction="none"))
    np.testing.assert_allclose(slope, [-1.0, -0.5, 0.0, 0.25, 1.0])
    square, derivative = half_square(error)
    torch.testing.assert_close(square[1:4], loss[1:4])
    torch.testing.assert_close(derivative, error)
