"""Every kind, and the parts that several have, pass all checks of an author; compiled updates are the eager ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.policy_gradient.plan import MemorySection
from zmqrl.algorithms.q_learning.base import MunchausenSection, PrioritisedSection
from zmqrl.algorithms.start.make import kind_of
from zmqrl.config.codec import replace
from zmqrl.config.sections import NetworkSection
from zmqrl.learning import IntrinsicSection
from zmqrl.plugins import modules
from zmqrl.testing import check_algorithm
from zmqrl.testing.algorithm import CONTINUOUS, DISCRETE, VECTOR
from zmqrl.testing.experience import context_of, train
from zmqrl.types import EnvSpec

FAST: Mapping[str, Any] = {"learning_rate": 3e-3}
QUICK: Mapping[str, Any] = {"learning_rate": 1e-3, "batch_size": 64, "target_tau": 0.01}
ACTOR: Mapping[str, Any] = {**QUICK, "warmup_env_steps": 500}
SEQUENCES: Mapping[str, Any] = {"batch_size": 16, "burn_in": 2, "length": 6, "stride": 4, "lstm_size": 16}
APE_X: Mapping[str, Any] = {"prioritised": PrioritisedSection(), "worker_priorities": True, "ladder": 7.0, "n_step": 3}
RND, ICM = ({"intrinsic": IntrinsicSection(kind, kwargs={"features": 8})} for kind in ("rnd", "icm"))
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "a2c": ("a2c", FAST),
    "reinforce": ("reinforce", {"learning_rate": 1e-2}),
    "impala": ("impala", FAST),
    "appo-lstm": ("impala", {**FAST, "clip": 0.2, "epochs": 2, "memory": MemorySection("lstm", 16, 8)}),
    "ppo": ("ppo", FAST),
    "ppo-rnd": ("ppo", {**FAST, **RND}),
    "ppo_gru": ("ppo_gru", {**FAST, "gru_size": 16, "sequence": 8}),
    "pqn": ("pqn", {"learning_rate": 1e-3, "minibatch_size": 64}),
    "vmpo": ("vmpo", FAST),
    "dqn": ("dqn", QUICK),
    "dqn-ape_x": ("dqn", {**QUICK, **APE_X}),
    "dqn-icm": ("dqn", {**QUICK, **ICM}),
    "dqn-munchausen": ("dqn", {**QUICK, "munchausen": MunchausenSection()}),
    "qrdqn": ("qrdqn", {**QUICK, "quantiles": 10}),
    "c51": ("c51", QUICK),
    "rainbow": ("rainbow", QUICK),
    "iqn": ("iqn", {**QUICK, "quantiles": 8}),
    "r2d2": ("r2d2", {**QUICK, **SEQUENCES}),
    "sac": ("sac", ACTOR),
    "td3": ("td3", ACTOR),
    "ddpg": ("ddpg", ACTOR),
    "tqc": ("tqc", {**ACTOR, "quantiles": 10}),
    "mpo": ("mpo", {"batch_size": 64, "learning_rate": 1e-3, "samples": 5, "target_update_every": 20}),
    "bc": ("bc", {"batch_size": 64}),
    "iql": ("iql", {"batch_size": 64, "learning_rate": 1e-3}),
    "cql": ("cql", {**ACTOR, "sampled_actions": 3, "conservative_weight": 0.1}),
}
"""Fields with which a kind learns the probe envs in few env steps."""
UNLEARNED: Mapping[str, tuple[str, ...]] = {"reinforce": ("InfiniteHorizon", "a_truncation_bootstraps")}
"""What does not apply: without a critic nothing is known of what follows a truncation."""
EACH = pytest.mark.parametrize("name", KINDS)
ROUNDS = 4


def test_every_kind_is_among_them() -> None:
    assert {kind for kind, _ in KINDS.values()} == {*modules("zmqrl.algorithms", Algorithm)}


@pytest.mark.long
@EACH
def test_it_passes_all_checks(name: str) -> None:
    kind, fields = KINDS[name]
    made = kind_of(kind)
    report = check_algorithm(made, made.Config(**fields), skip=UNLEARNED.get(name, ()))
    assert kind == "bc" or any("learned within" in passed for passed in report.passed)


@pytest.mark.long
@pytest.mark.timeout(1200)
@EACH
def test_a_compiled_update_is_the_eager_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of actions that the kind accepts. Whole runs: `tests/system/results/test_compiled_runs.py`."""
    monkeypatch.setenv("ZMQRL_CACHE", str(tmp_path))
    kind, fields = KINDS[name]
    made = kind_of(kind)
    action = CONTINUOUS if made.misfit(EnvSpec("toy", VECTOR, DISCRETE)) else DISCRETE
    algorithm = made(made.Config(**fields), NetworkSection(hidden=(8,)), EnvSpec("toy", VECTOR, action), 16, 2)
    found = []
    for executor in ("eager", "compiled"):
        learner = algorithm.learner(replace(context_of(algorithm), executor=executor))
        train(algorithm, learner, range(ROUNDS))
        found.append(learner.weights())
    assert list(tmp_path.rglob("*.pt2")), "it was compiled"
    for tensor, array in found[0].items():
        np.testing.assert_allclose(found[1][tensor], array, rtol=1e-3, atol=1e-4, err_msg=tensor)
