from __future__ import annotations

import pytest
import torch

from zmqrl.ops.manual import FlatAdam, clip_by_norm


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_torch(decay: float) -> None:
    generator = torch.Generator().manual_seed(1)
    reference = torch.randn(20, generator=generator)
    ours = reference.clone()
    theirs = torch.optim.AdamW([reference], lr=0.01, eps=1e-5, weight_decay=decay, foreach=False)
    adam = FlatAdam(ours, epsilon=1e-5, weight_decay=decay)
    for _ in range(30):
        reference.grad = torch.randn(20, generator=generator)
        adam.step(reference.grad, 0.01)
        theirs.step()
    torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


def test_state_goes_on_bit_for_bit() -> None:
    grads = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
    straight, stopped = torch.zeros(8), torch.zeros(8)
    one, two = FlatAdam(straight, epsilon=1e-8), FlatAdam(stopped, epsilon=1e-8)
    for grad in grads[:3]:
        one.step(grad, 0.1)
        two.step(grad, 0.1)
    resumed = FlatAdam(stopped, epsilon=1e-8)
    resumed.load_state(two.state())
    for grad in grads[3:]:
        one.step(grad, 0.1)
        resumed.step(grad, 0.1)
    assert torch.equal(straight, stopped)


def test_clipping_scales_only_what_is_too_long() -> None:
    grad = torch.tensor([3.0, 4.0])
    assert clip_by_norm(grad, 10.0) == 5.0 and grad.tolist() == [3.0, 4.0]
    assert clip_by_norm(grad, 1.0) == 5.0
    torch.testing.assert_close(grad, torch.tensor([0.6, 0.8]))
