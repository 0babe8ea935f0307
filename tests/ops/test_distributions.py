from __future__ import annotations

import torch

from zmqrl.ops.manual import CategoricalGradients, GaussianGradients

GENERATOR = torch.Generator().manual_seed(3)


def test_categorical_is_torchs_with_autograds_gradient() -> None:
    logits = (torch.randn(7, 4, generator=GENERATOR) * 2).requires_grad_()
    action = torch.randint(0, 4, (7,), generator=GENERATOR)
    by_log_prob, by_entropy = torch.randn(7, generator=GENERATOR), -0.3
    reference = torch.distributions.Categorical(logits=logits)
    (reference.log_prob(action) @ by_log_prob + by_entropy * reference.entropy().sum()).backward()
    one_hot = torch.nn.functional.one_hot(action, 4).float()
    ours = CategoricalGradients(logits.detach())
    torch.testing.assert_close(ours.log_prob(one_hot), reference.log_prob(action).detach())
    torch.testing.assert_close(ours.entropy(), reference.entropy().detach())
    assert logits.grad is not None
    torch.testing.assert_close(ours.logits_grad(one_hot, by_log_prob, by_entropy), logits.grad, atol=1e-5, rtol=1e-5)


def test_gaussian_is_torchs_with_autograds_gradient() -> None:
    mean = torch.randn(6, 3, generator=GENERATOR).requires_grad_()
    log_std = torch.tensor([-0.5, 0.0, 0.7]).requires_grad_()
    action, by_log_prob = torch.randn(6, 3, generator=GENERATOR), torch.randn(6, generator=GENERATOR)
    reference = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    (reference.log_prob(action) @ by_log_prob - 0.2 * reference.entropy()[0]).backward()
    ours = GaussianGradients(mean.detach(), log_std.detach())
    torch.testing.assert_close(ours.log_prob(action), reference.log_prob(action).detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.entropy(), reference.entropy()[0].detach())
    by_mean, by_log_std = ours.grads(action, by_log_prob, -0.2)
    assert mean.grad is not None and log_std.grad is not None
    torch.testing.assert_close(by_mean, mean.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(by_log_std, log_std.grad, atol=1e-5, rtol=1e-5)
