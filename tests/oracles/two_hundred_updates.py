"""The same 200 updates here and in Stable-Baselines3: weights, batches and noise of both come from named streams.

`python -m tests.oracles.two_hundred_updates` writes the oracle; it needs stable-baselines3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.sac import SAC, SACConfig
from zmqrl.algorithms.td3 import TD3, TD3Config
from zmqrl.config.sections import NetworkSection
from zmqrl.networks.initial import initial_weights
from zmqrl.random_streams import stream
from zmqrl.replay.base import ReplaySample
from zmqrl.types import Array, EnvSpec, SpaceSpec

ORACLE = Path(__file__).with_name("two_hundred_updates.json")
UPDATES, ROWS, SEED, OBS, ACTIONS, BOUND, GAMMA, RATE = 200, 32, 7, 3, 2, 2.0, 0.99, 1e-3
NETWORK = NetworkSection(hidden=(16, 16), activation="relu")
OBSERVATION = SpaceSpec("box", (OBS,), "float32")
CONTINUOUS = SpaceSpec("box", (ACTIONS,), "float32", 0, (-BOUND,) * ACTIONS, (BOUND,) * ACTIONS)
DISCRETE = SpaceSpec("discrete", (), "int64", ACTIONS)
TARGET_EVERY = 10
"""DQN: updates between two copies of the target network."""


def algorithm(kind: str) -> Algorithm:
    """With the settings of Stable-Baselines3's class of that name."""
    settings: dict[str, Any] = {"learning_rate": RATE, "gamma": GAMMA, "batch_size": ROWS}
    if kind == "sac":
        return SAC(SACConfig(**settings), NETWORK, EnvSpec("toy", OBSERVATION, CONTINUOUS), 16, 1)
    if kind == "td3":
        return TD3(TD3Config(**settings), NETWORK, EnvSpec("toy", OBSERVATION, CONTINUOUS), 16, 1)
    config = DQNConfig(**settings, double=False, target_update_every=TARGET_EVERY)
    return DQN(config, NETWORK, EnvSpec("toy", OBSERVATION, DISCRETE), 16, 1)


def weights(kind: str) -> dict[str, Array]:
    """Version 0."""
    return initial_weights(algorithm(kind).network(), SEED)


def sample(kind: str, number: int) -> ReplaySample:
    """Of update `number`: states that the network has an opinion about, and some episode ends."""
    random = stream(SEED, f"oracle/{kind}", index=number)
    discrete = kind == "dqn"
    action = random.integers(0, ACTIONS, ROWS) if discrete else random.uniform(-BOUND, BOUND, (ROWS, ACTIONS))
    return ReplaySample(
        obs=random.standard_normal((ROWS, OBS)).astype(np.float32),
        action=action if discrete else action.astype(np.float32),
        n_step_return=random.standard_normal(ROWS).astype(np.float32),
        next_obs=random.standard_normal((ROWS, OBS)).astype(np.float32),
        discount=np.where(random.random(ROWS) < 0.1, 0.0, GAMMA).astype(np.float32),
        weight=np.ones(ROWS, np.float32),
        rows=np.arange(ROWS),
        generations=np.zeros(ROWS, np.int64),
        extras={},
    )


def noise(number: int, names: int) -> list[Array]:
    """What `ReplayLearner.batch` draws for update `number`."""
    random = stream(SEED, "update", index=number)
    return [random.standard_normal((ROWS, ACTIONS)).astype(np.float32) for _ in range(names)]


def _linears(module: Any) -> list[Any]:
    import torch

    return [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]


def _exchange(model: Any, kind: str, found: dict[str, Array] | None) -> dict[str, Array]:
    """Copy `found` into the model, or read it: our names and theirs."""
    import torch

    if kind == "dqn":
        towers = {"q": _linears(model.q_net)}
    elif kind == "td3":
        towers = {"actor": _linears(model.actor), "q1": _linears(model.critic.qf0), "q2": _linears(model.critic.qf1)}
    else:
        towers = {
            "actor": _linears(model.actor.latent_pi),
            "q1": _linears(model.critic.qf0),
            "q2": _linears(model.critic.qf1),
        }
    result: dict[str, Array] = {}

    def one(name: str, parameters: list[Any]) -> None:
        if found is not None:
            parts = np.split(found[name], len(parameters))
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.data.copy_(torch.tensor(part).reshape(parameter.shape))
        result[name] = np.concatenate([p.detach().numpy() for p in parameters])

    for tower, layers in towers.items():
        for index, layer in enumerate(layers):
            one(f"{tower}.{index}.weight", [layer.weight])
            one(f"{tower}.{index}.bias", [layer.bias])
    if kind == "sac":
        heads = (model.actor.mu, model.actor.log_std)  # one layer with both outputs here
        one("actor.2.weight", [head.weight for head in heads])
        one("actor.2.bias", [head.bias for head in heads])
        result["log_temperature"] = model.log_ent_coef.detach().numpy().reshape(())
    return result


def _theirs(kind: str) -> dict[str, Array]:
    """The weights after the updates in Stable-Baselines3."""
    import gymnasium as gym
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common import logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
    from stable_baselines3.common.utils import polyak_update

    box = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    act: Any = gym.spaces.Box(-BOUND, BOUND, (ACTIONS,), np.float32) if kind != "dqn" else gym.spaces.Discrete(ACTIONS)

    class Toy(gym.Env[Any, Any]):
        observation_space, action_space = box, act

    cls = {"sac": sb3.SAC, "td3": sb3.TD3, "dqn": sb3.DQN}[kind]
    model: Any = cls(
        "MlpPolicy",
        Toy(),
        learning_rate=RATE,
        gamma=GAMMA,
        batch_size=ROWS,
        policy_kwargs={"net_arch": [16, 16], "activation_fn": torch.nn.ReLU},
        device="cpu",
    )
    model.set_logger(logger.configure(None, []))
    _exchange(model, kind, weights(kind))
    targets = [("q_net_target", "q_net")] if kind == "dqn" else [("critic_target", "critic")]
    targets += [("actor_target", "actor")] if kind == "td3" else []
    for target, online in targets:
        getattr(model, target).load_state_dict(getattr(model, online).state_dict())
    waiting: list[Array] = []

    def buffered(_: int, env: object = None) -> ReplayBufferSamples:
        del env
        s = sample(kind, number)
        action = s.action[:, None] if kind == "dqn" else s.action / np.float32(BOUND)
        columns = (s.obs, action, s.next_obs, (s.discount == 0)[:, None].astype(np.float32), s.n_step_return[:, None])
        return ReplayBufferSamples(*map(torch.tensor, columns))

    def drawn(*_: object, **__: object) -> torch.Tensor:
        return torch.tensor(waiting.pop(0))

    def normal(tensor: torch.Tensor, mean: float, deviation: float) -> torch.Tensor:
        return tensor.copy_(mean + deviation * drawn())

    model.replay_buffer.sample = buffered
    for number in range(UPDATES):
        waiting[:] = noise(number, {"sac": 2, "td3": 1, "dqn": 0}[kind])
        with _patched(torch.distributions.normal, "_standard_normal", drawn):
            if kind == "td3":
                with _patched(torch.Tensor, "normal_", normal):
                    model.train(1, ROWS)
            else:
                model.train(1, ROWS)
        if kind == "dqn" and (number + 1) % TARGET_EVERY == 0:
            polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 1.0)
    return _exchange(model, kind, None)


class _patched:
    def __init__(self, owner: object, name: str, value: object) -> None:
        self._owner, self._name, self._value = owner, name, value

    def __enter__(self) -> None:
        self._was = getattr(self._owner, self._name)
        setattr(self._owner, self._name, self._value)

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._was)


def main() -> Iterator[str]:
    """Write the oracle."""
    import stable_baselines3
    import torch

    oracle: dict[str, Any] = {
        "origin": f"tests/oracles/two_hundred_updates.py: stable-baselines3 {stable_baselines3.__version__} (MIT), "
        f"torch {torch.__version__}: weights after {UPDATES} updates"
    }
    for kind in ("sac", "td3", "dqn"):
        oracle[kind] = {name: array.ravel().tolist() for name, array in sorted(_theirs(kind).items())}
        yield kind
    ORACLE.write_text(json.dumps(oracle) + "\n")


if __name__ == "__main__":
    print(*main())
