"""Microseconds of one update, by each executor and by torch modules with torch.optim, alternating in one process.

usage: python -m benchmarks.update_time [--rounds N] [--device cuda] [--case NAME ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.policy_gradient.manual import BatchRows, Coefficients, ManualPPOLearner
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.algorithms.sac import SAC, SACConfig
from zmqrl.config.sections import NetworkSection
from zmqrl.learning.base import LearnerContext
from zmqrl.networks.initial import initial_weights
from zmqrl.ops.policies import tanh_gaussian
from zmqrl.replay.base import ReplaySample
from zmqrl.types import EnvSpec, SpaceSpec

OBS, ACTIONS, RATE = 4, 2, 1e-4
OBSERVATION = SpaceSpec("box", (OBS,), "float32")
DISCRETE = EnvSpec("toy", OBSERVATION, SpaceSpec("discrete", (), "int64", ACTIONS))
PIXELS = EnvSpec("pixels", SpaceSpec("box", (4, 84, 84), "uint8"), DISCRETE.action)
NATURE = NetworkSection("cnn", (512,), "relu", (32, 64, 64), (8, 4, 3), (4, 2, 1))
CONTINUOUS = EnvSpec("toy", OBSERVATION, SpaceSpec("box", (ACTIONS,), "float32", 0, (-1.0,) * 2, (1.0,) * 2))
Call = Callable[[], object]
EXECUTORS = ("eager", "compiled")


def mlp(*sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers with activations in between."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def ppo_rows(rows: int) -> dict[str, Tensor]:
    """A minibatch."""
    g = torch.Generator().manual_seed(1)
    numbers = {name: torch.randn(rows, generator=g) for name in ("advantage", "target", "old_value")}
    action = torch.randint(0, ACTIONS, (rows,), generator=g)
    return {
        "obs": torch.randn(rows, OBS, generator=g),
        "action": action,
        "log_prob": torch.full((rows,), -0.7),
        **numbers,
    }


def ppo(rows: int, device: str) -> dict[str, Call]:
    """PPO with two layers of 64, actor and critic apart."""
    config, section = PPOConfig(minibatch_size=rows), NetworkSection(hidden=(64, 64))
    algorithm = PPO(config, section, DISCRETE, 128, 8)
    batch, calls = {name: tensor.to(device) for name, tensor in ppo_rows(rows).items()}, {}
    weights = initial_weights(algorithm.network(), 1)
    manual = algorithm.learner(LearnerContext(weights, device, executor="manual"))
    assert isinstance(manual, ManualPPOLearner)
    order = ("obs", "action", "log_prob", "advantage", "target", "old_value")
    columns = BatchRows(*(batch[name] for name in order))
    columns = columns._replace(action=torch.nn.functional.one_hot(batch["action"], ACTIONS).float())

    def by_hand() -> object:
        with torch.inference_mode():
            return manual._update(manual._normalise_advantage(columns), Coefficients(RATE, 0.2))

    calls["manual"] = by_hand
    for executor in EXECUTORS:
        learner: Any = algorithm.learner(LearnerContext(weights, device, executor=executor))
        whole = {**batch, "clip": torch.tensor(0.2, device=device)}
        calls[executor] = lambda learner=learner, whole=whole: learner.run(whole, {"policy": RATE})
    calls["torch.optim"] = ppo_with_modules(batch, config)
    return calls


def ppo_with_modules(batch: dict[str, Tensor], config: PPOConfig) -> Call:
    """As a script would write it."""
    actor, critic = (mlp(OBS, 64, 64, outputs).to(batch["obs"].device) for outputs in (ACTIONS, 1))
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=RATE, eps=config.adam_epsilon)

    def update() -> None:
        distribution = torch.distributions.Categorical(logits=actor(batch["obs"]), validate_args=False)
        ratio = (distribution.log_prob(batch["action"]) - batch["log_prob"]).exp()
        advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value_loss = (critic(batch["obs"]).squeeze(1) - batch["target"]).square().mean()
        loss = config.vf_coef * value_loss - surrogate
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        adam.step()

    return update


def sample(rows: int, env: EnvSpec) -> ReplaySample:
    """A minibatch of replay."""
    rng = np.random.default_rng(1)
    discrete = env.action.kind == "discrete"
    action = rng.integers(0, ACTIONS, rows) if discrete else rng.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32)
    obs, reward, next_obs = (rng.standard_normal(s).astype(np.float32) for s in ((rows, OBS), (rows,), (rows, OBS)))
    if env is PIXELS:
        obs, next_obs = (rng.integers(0, 256, (rows, *env.observation.shape), np.uint8) for _ in range(2))
    ones = np.ones(rows, np.float32)
    return ReplaySample(obs, action, reward, next_obs, ones, ones, np.arange(rows), np.arange(rows), {})


def dqn(rows: int, device: str) -> dict[str, Call]:
    """Double DQN with two layers of 256."""
    section = NetworkSection(hidden=(256, 256), activation="relu")
    algorithm = DQN(DQNConfig(batch_size=rows), section, DISCRETE, 128, 8)
    weights, calls, drawn = initial_weights(algorithm.network(), 1), {}, sample(rows, DISCRETE)
    manual: Any = algorithm.learner(LearnerContext(weights, device, executor="manual"))

    def by_hand() -> object:
        with torch.inference_mode():
            return manual._update(None, drawn, RATE, measure=False)

    calls["manual"] = by_hand
    for executor in EXECUTORS:
        calls[executor] = replayed(algorithm.learner(LearnerContext(weights, device, executor=executor)), drawn, ("q",))
    online, target = (mlp(OBS, 256, 256, ACTIONS, activation=nn.ReLU).to(device) for _ in range(2))
    adam, batch = torch.optim.Adam(online.parameters(), lr=RATE), tensors(drawn, device)

    def update() -> None:
        with torch.no_grad():
            best = online(batch["next_obs"]).argmax(1, keepdim=True)
            y = batch["n_step_return"] + batch["discount"] * target(batch["next_obs"]).gather(1, best).squeeze(1)
        q = online(batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, y)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        adam.step()

    calls["torch.optim"] = update
    return calls


def pixels(rows: int, device: str) -> dict[str, Call]:
    """Double DQN with the convolutions of Mnih et al. 2015."""
    algorithm, drawn = DQN(DQNConfig(batch_size=rows), NATURE, PIXELS, 128, 8), sample(rows, PIXELS)
    return {
        name: replayed(learner, drawn, ("q",)) for name, learner in by_precision(algorithm, device, EXECUTORS).items()
    }


def ppo_pixels(rows: int, device: str) -> dict[str, Call]:
    """PPO with the same convolutions as the torso of actor and critic."""
    algorithm, drawn = PPO(PPOConfig(minibatch_size=rows, shared=True), NATURE, PIXELS, 128, 8), ppo_rows(rows)
    drawn |= {"obs": torch.from_numpy(sample(rows, PIXELS).obs), "clip": torch.tensor(0.1)}
    batch = {name: tensor.to(device) for name, tensor in drawn.items()}
    learners = by_precision(algorithm, device, ("eager",))
    return {name: lambda learner=learner: learner.run(batch, {"policy": RATE}) for name, learner in learners.items()}


def by_precision(algorithm: DQN | PPO, device: str, executors: tuple[str, ...]) -> dict[str, Any]:
    """A learner for each executor and `learner.precision`."""
    weights = initial_weights(algorithm.network(), 1)
    return {
        f"{executor}{name}": algorithm.learner(LearnerContext(weights, device, executor=executor, precision=precision))
        for executor in executors
        for name, precision in (("", "float32"), (" bfloat16", "bfloat16"))
    }


def sac(rows: int, device: str) -> dict[str, Call]:
    """SAC with two layers of 256."""
    section = NetworkSection(hidden=(256, 256), activation="relu")
    algorithm = SAC(SACConfig(batch_size=rows), section, CONTINUOUS, 128, 8)
    weights, drawn, calls = initial_weights(algorithm.network(), 1), sample(rows, CONTINUOUS), {}
    for executor in EXECUTORS:
        learner = algorithm.learner(LearnerContext(weights, device, executor=executor))
        calls[executor] = replayed(learner, drawn, ("actor", "critics", "log_temperature"))
    calls["torch.optim"] = sac_with_modules(tensors(drawn, device), algorithm.config)
    return calls


def sac_with_modules(batch: dict[str, Tensor], config: SACConfig) -> Call:
    """As a script would write it; the noise is drawn before, as for the executors."""
    obs, next_obs = batch["obs"], batch["next_obs"]
    actor = mlp(OBS, 256, 256, 2 * ACTIONS, activation=nn.ReLU).to(obs.device)
    critics, targets = (
        nn.ModuleList(mlp(OBS + ACTIONS, 256, 256, 1, activation=nn.ReLU) for _ in range(2)).to(obs.device)
        for _ in range(2)
    )
    targets.load_state_dict(critics.state_dict())
    log_temperature = torch.zeros((), device=obs.device, requires_grad=True)
    groups: tuple[Any, ...] = (actor.parameters(), critics.parameters(), [log_temperature])
    by_actor, by_critics, by_temperature = (torch.optim.Adam(group, lr=RATE) for group in groups)
    noise, next_noise = (torch.randn(len(obs), ACTIONS, device=obs.device) for _ in range(2))

    def step(adam: torch.optim.Adam, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()

    def least(of: nn.ModuleList, seen: Tensor, action: Tensor) -> Tensor:
        values = torch.cat([critic(torch.cat((seen, action), 1)) for critic in of], 1)
        return values.min(1).values

    def update() -> None:
        action, log_prob = tanh_gaussian(actor(obs), noise)
        temperature = log_temperature.detach().exp()
        step(by_temperature, -(log_temperature * (log_prob.detach() - ACTIONS)).mean())
        with torch.no_grad():
            next_action, next_log_prob = tanh_gaussian(actor(next_obs), next_noise)
            next_value = least(targets, next_obs, next_action) - temperature * next_log_prob
            target = batch["n_step_return"] + batch["discount"] * next_value
        taken = torch.cat((obs, batch["action"]), 1)
        errors = [(critic(taken).squeeze(1) - target).square().mean() for critic in critics]
        step(by_critics, 0.5 * (errors[0] + errors[1]))
        step(by_actor, (temperature * log_prob - least(critics, obs, action)).mean())
        with torch.no_grad():
            for follower, parameter in zip(targets.parameters(), critics.parameters(), strict=True):
                follower.lerp_(parameter, config.target_tau)

    return update


def replayed(learner: Any, drawn: ReplaySample, groups: tuple[str, ...]) -> Call:
    """One update of a `ReplayLearner`, its batch made before."""
    device = learner.context.device
    batch = tensors(drawn, device)
    batch |= learner.draw_noise(0, len(drawn.rows))
    return lambda: learner.run(batch, dict.fromkeys(groups, RATE), **learner.variant(0))


def tensors(drawn: ReplaySample, device: str) -> dict[str, Tensor]:
    """The columns that an update reads."""
    names = ("obs", "action", "n_step_return", "next_obs", "discount", "weight")
    return {name: torch.from_numpy(getattr(drawn, name)).to(device) for name in names}


def measure(calls: dict[str, Call], rounds: int, done: Call) -> dict[str, tuple[float, float]]:
    """Minimum and median microseconds of each, one after the other in every round."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            done()
            took[name].append((time.perf_counter() - begun) * 1e6)
    return {name: (min(times), statistics.median(times)) for name, times in took.items()}


CASES: dict[str, tuple[Callable[[int, str], dict[str, Call]], int]] = {
    "PPO 2x64 b256": (ppo, 256),
    "PPO 2x64 b1024": (ppo, 1024),
    "DQN 2x256 b256": (dqn, 256),
    "SAC 2x256 b256": (sac, 256),
    "DQN CNN b32": (pixels, 32),
    "DQN CNN b256": (pixels, 256),
    "PPO CNN b256": (ppo_pixels, 256),
}


def main() -> None:
    """Print a table, and the figures as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    made = {case: CASES[case][0](CASES[case][1], options.device) for case in options.case}
    found = {case: measure(calls, options.rounds, done) for case, calls in made.items()}
    for case, times in found.items():
        base = times.get("manual", times["eager"])[0]
        line = "  ".join(f"{name} {low:.0f} ({low / base:.2f}, median {mid:.0f})" for name, (low, mid) in times.items())
        print(f"{case:15} {line}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
