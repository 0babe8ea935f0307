"""The suite of `zmqrl.testing` over every algorithm of the package, with every action space, as MLP and as CNN."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.contracts.suites import name_of
from tests.stand_ins.sequence_tally import SequenceConfig, SequenceTally
from tests.support.marks import long
from tests.support.running import environment
from tests.support.waiting import WAIT_S
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.c51 import C51
from zmqrl.algorithms.dqn import DQN
from zmqrl.algorithms.iql import IQL
from zmqrl.algorithms.iqn import IQN
from zmqrl.algorithms.policy_gradient.plan import MemorySection
from zmqrl.algorithms.ppo import PPO
from zmqrl.algorithms.ppo_gru import PPOGRU
from zmqrl.algorithms.pqn import PQN
from zmqrl.algorithms.q_learning.base import MunchausenSection, PrioritisedSection
from zmqrl.algorithms.qrdqn import QRDQN
from zmqrl.algorithms.r2d2 import R2D2
from zmqrl.algorithms.reinforce import REINFORCE
from zmqrl.algorithms.sac import SAC
from zmqrl.algorithms.td3 import TD3
from zmqrl.config.codec import replace
from zmqrl.config.sections import NetworkSection, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import IntrinsicSection
from zmqrl.plugins import load, modules
from zmqrl.spaces import SpaceSpec, composite
from zmqrl.testing.algorithm import ALGORITHM, CONTINUOUS, DISCRETE, PIXELS, VECTOR, AlgorithmMaker
from zmqrl.testing.training import TRAINING, a_truncation_bootstraps, recorded_updates_are_the_eager_ones
from zmqrl.types import EnvSpec

STEPS, ENVS = 16, 2
MLP, CNN = NetworkSection(hidden=(8,)), NetworkSection("cnn", (8,), "relu", (4,), (3,), (1,))
LAST = replace(CNN, image_layout="hwc")
CHANNELS_LAST = SpaceSpec("box", (8, 8, 2), "uint8")
NUMBER = SpaceSpec("discrete", (), "int64", n=5)
DICT = composite([("image", PIXELS, ("image",)), ("number", NUMBER, ("number",)), ("vector", VECTOR, ("vector",))])
SEVERAL = SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 3))
SMALL: Mapping[str, Any] = {
    "ppo": {"epochs": 2},
    "ppo_gru": {"epochs": 2, "sequence": 4},
    "impala": {"memory": MemorySection("lstm", 4, 4)},
    **{kind: {"batch_size": 32} for kind in ("dqn", "sac", "td3", "ddpg", "bc", "iql")},
    "tqc": {"batch_size": 32, "quantiles": 5},
    "cql": {"batch_size": 32, "sampled_actions": 3},
    "mpo": {"batch_size": 32, "samples": 3, "target_update_every": 4},
    "vmpo": {"epochs": 2, "memory": MemorySection("lstm", 4, 4)},
    "qrdqn": {"batch_size": 32, "quantiles": 10},
    **{kind: {"batch_size": 32, "atoms": 11} for kind in ("c51", "rainbow")},
    "iqn": {"batch_size": 32, "quantiles": 4, "acting_quantiles": 4, "cosines": 8},
    "r2d2": {"batch_size": 8, "burn_in": 2, "length": 4, "stride": 2, "lstm_size": 8, "target_update_every": 4},
}
"""What is promised does not depend on how much is computed. A graph of sequences grows with their rows."""
RND, ICM = (IntrinsicSection(kind, kwargs={"features": 8}) for kind in ("rnd", "icm"))
APE_X: Mapping[str, Any] = {
    "prioritised": PrioritisedSection(),
    "worker_priorities": True,
    "ladder": 7.0,
    "n_step": 3,
    "dueling": True,
}
KINDS = modules("zmqrl.algorithms", Algorithm)
SOFT = MunchausenSection()
RAINBOW: Mapping[str, Any] = {
    **dict.fromkeys(("double", "dueling", "noisy"), True),
    "prioritised": PrioritisedSection(),
    "munchausen": SOFT,
}


def small(kind: str) -> Any:
    return load(kind, "zmqrl.algorithms", Algorithm).Config(**SMALL.get(kind, {}))


def masked(entries: int) -> SpaceSpec:
    mask = SpaceSpec("box", (entries,), "int8")
    return composite([("action_mask", mask, ("action_mask",)), ("vector", VECTOR, ("vector",))])


def cases() -> list[Algorithm]:
    made = []
    for name in KINDS:
        kind = load(name, "zmqrl.algorithms", Algorithm)
        for action in (DISCRETE, CONTINUOUS):
            for network, observation in ((MLP, VECTOR), (CNN, PIXELS)):
                try:
                    made.append(kind(small(name), network, EnvSpec("toy", observation, action), STEPS, ENVS))
                except ConfigError:
                    continue
    made += [
        PPO(replace(small("ppo"), normalise_obs=True), MLP, EnvSpec("dict", DICT, DISCRETE), STEPS, ENVS),
        PPO(small("ppo"), MLP, EnvSpec("discrete", NUMBER, CONTINUOUS), STEPS, ENVS),
        PPO(small("ppo"), MLP, EnvSpec("several", VECTOR, SEVERAL), STEPS, ENVS),
        PPO(small("ppo"), MLP, EnvSpec("masked", masked(3), DISCRETE), STEPS, ENVS),
        PPO(small("ppo"), MLP, EnvSpec("several, masked", masked(5), SEVERAL), STEPS, ENVS),
        DQN(replace(small("dqn"), noisy=True, dueling=True), MLP, EnvSpec("noisy", VECTOR, DISCRETE), STEPS, ENVS),
        DQN(replace(small("dqn"), noisy=True, dueling=True), CNN, EnvSpec("noisy", PIXELS, DISCRETE), STEPS, ENVS),
        DQN(small("dqn"), MLP, EnvSpec("dict", DICT, DISCRETE), STEPS, ENVS),
        DQN(replace(small("dqn"), **APE_X), MLP, EnvSpec("ape-x", VECTOR, DISCRETE), STEPS, ENVS),
        DQN(replace(small("dqn"), munchausen=SOFT), MLP, EnvSpec("soft", VECTOR, DISCRETE), STEPS, ENVS),
        C51(replace(small("c51"), munchausen=SOFT), MLP, EnvSpec("soft", VECTOR, DISCRETE), STEPS, ENVS),
        QRDQN(replace(small("qrdqn"), **RAINBOW), MLP, EnvSpec("noisy", VECTOR, DISCRETE), STEPS, ENVS),
        IQN(replace(small("iqn"), **RAINBOW), MLP, EnvSpec("noisy", VECTOR, DISCRETE), STEPS, ENVS),
        SAC(small("sac"), MLP, EnvSpec("dict", DICT, CONTINUOUS), STEPS, ENVS),
        PPO(replace(small("ppo"), intrinsic=RND), MLP, EnvSpec("rnd", VECTOR, SEVERAL), STEPS, ENVS),
        DQN(replace(small("dqn"), intrinsic=ICM), MLP, EnvSpec("icm", VECTOR, DISCRETE), STEPS, ENVS),
        SAC(replace(small("sac"), intrinsic=ICM), MLP, EnvSpec("icm", VECTOR, CONTINUOUS), STEPS, ENVS),
        R2D2(replace(small("r2d2"), intrinsic=RND), MLP, EnvSpec("rnd", VECTOR, DISCRETE), STEPS, ENVS),
        TD3(small("td3"), LAST, EnvSpec("channels last", CHANNELS_LAST, CONTINUOUS), STEPS, ENVS),
        IQL(small("iql"), MLP, EnvSpec("several", VECTOR, SEVERAL), STEPS, ENVS),
    ]
    return made


CASES = cases()
TRAINED = {
    *(("PPO", name) for name in ("dict", "masked", "several, masked", "rnd")),
    *(("DQN", name) for name in ("noisy", "soft", "ape-x", "icm")),
}
"""With one of each kind and space of actions, trained over a vector."""
OF_PARTS = ("BC", "CQL", "DDPG", "Rainbow", "TQC")
"""Kinds that are made of parts of the others (IQL, SAC, TD3; C51 and a noisy DQN)."""
SAME_RECORD = ("dict", "masked")
"""Recorded as with a vector."""
LARGE_RECORD = ("A2C", "C51", "IMPALA", "PQN", "QRDQN", "R2D2", "TD3", "VMPO")
"""Kinds whose parts are recorded in others too (PPO, PPOGRU, DQN, SAC, MPO), and whose graphs are large."""


def is_trained(case: Algorithm) -> bool:
    """PQN has no other network than a CNN."""
    if type(case).__name__ in OF_PARTS:
        return False
    if (type(case).__name__, case.env.id) in TRAINED or case.env.id == "toy":
        return case.network_section.kind == "mlp" or isinstance(case, PQN)
    return False


def again(algorithm: Algorithm) -> Algorithm:
    return type(algorithm)(algorithm.config, algorithm.network_section, algorithm.env, STEPS, ENVS)


def id_of(algorithm: Algorithm) -> str:
    return f"{type(algorithm).__name__}-{algorithm.acting().head}-{algorithm.acting().runtime}"


def whole(case: Algorithm) -> Any:
    """Of convolutions those of the algorithms that train with images: their gradients are torch's in each of them.

    `bin/test --quick` has PPO and DQN.
    """
    if case.network_section.kind == "mlp":
        return case if type(case) in (PPO, DQN) else pytest.param(case, marks=pytest.mark.whole)
    return pytest.param(case, marks=pytest.mark.whole) if isinstance(case, (PPO, DQN, PQN)) else long(case)


@pytest.mark.parametrize("algorithm", [whole(case) for case in CASES], ids=id_of)
@pytest.mark.parametrize("check", ALGORITHM, ids=name_of)
def test_contract(check: Callable[[AlgorithmMaker], None], algorithm: Algorithm) -> None:
    check(lambda: again(algorithm))


def trained() -> list[Any]:
    """What is recorded depends on the kind, the space of actions and noise; observations are an input."""
    found = []
    for check, case in itertools.product(TRAINING, CASES):
        if isinstance(case, REINFORCE) and check is a_truncation_bootstraps:
            continue  # without a critic nothing is known of what follows a truncation
        is_other = case.env.id in SAME_RECORD or type(case).__name__ in LARGE_RECORD
        is_here = is_trained(case) and not (check is recorded_updates_are_the_eager_ones and is_other)
        found.append((pytest.param if is_here else long)(check, case, id=f"{name_of(check)}-{id_of(case)}"))
    return found


@pytest.mark.whole
@pytest.mark.parametrize(("check", "algorithm"), trained())
def test_training(check: Callable[[AlgorithmMaker], None], algorithm: Algorithm) -> None:
    check(lambda: again(algorithm))


@pytest.mark.parametrize("config", [SequenceConfig(), SequenceConfig(length=6, first=False)])
@pytest.mark.parametrize("check", ALGORITHM, ids=name_of)
def test_contract_of_an_own_algorithm_with_sequences(
    check: Callable[[AlgorithmMaker], None], config: SequenceConfig
) -> None:
    check(lambda: SequenceTally(config, MLP, EnvSpec("toy", VECTOR, DISCRETE), STEPS, ENVS))


@pytest.mark.parametrize("kind", KINDS)
def test_the_launcher_imports_it_without_torch(kind: str) -> None:
    module = load(kind, "zmqrl.algorithms", Algorithm).__module__
    code = f"import sys; import {module}; print('torch' in sys.modules)"
    output = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=WAIT_S, env=environment()).strip()
    assert output == "False"


def test_every_kind_is_among_them() -> None:
    assert {"ppo", "dqn"} <= set(KINDS)
    assert {type(case) for case in CASES} == {load(name, "zmqrl.algorithms", Algorithm) for name in KINDS}


@pytest.mark.parametrize("algorithm", CASES, ids=id_of)
def test_defaults_are_valid_and_images_are_acted_with_torch(algorithm: Algorithm) -> None:
    default = type(algorithm).Config()
    if isinstance(algorithm, PPOGRU):
        default = replace(default, sequence=algorithm.config.sequence)
    type(algorithm)(default, algorithm.network_section, algorithm.env, STEPS, ENVS).check("sync", 64, ReplaySection())
    assert algorithm.acting().runtime == ("torch" if algorithm.network_section.kind == "cnn" else "numpy")
