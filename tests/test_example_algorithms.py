"""The algorithms of examples/ are short, pass the checks of an author, and compute what their papers define."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.marks import long
from tests.support.running import ROOT
from zmqrl.acting.base import ActingContext, Place, noise_for
from zmqrl.acting.make_head import make_head
from zmqrl.config.sections import NetworkSection
from zmqrl.loading import torch
from zmqrl.networks.kinds.base import training_mode
from zmqrl.networks.spec import LayerSpec
from zmqrl.replay.base import SegmentBatch, SegmentMeta, gather
from zmqrl.testing import LAYER, Layer, check_algorithm
from zmqrl.testing.algorithm import CONTINUOUS, DISCRETE, VECTOR
from zmqrl.testing.experience import SEGMENTS, acted, context_of, learn, progress_at
from zmqrl.testing.probes import PROBES
from zmqrl.types import Array, EnvSpec, SegmentId, SlotRef, Version

EXAMPLES = ROOT / "examples"
MOST_LINES = 115
PRIVATE = re.compile(r"import .*\b_|(?<!\bself)\._[a-z]")
PROBE_NAMES = {env.__name__ for env in PROBES}


class Example(NamedTuple):
    kind: str
    config: Mapping[str, Any]
    """For the checks: a phase in each round, few updates until a schedule has an effect."""
    does_not_apply: frozenset[str] = frozenset()


KINDS = {
    "ppg": Example("PPG", {"learning_rate": 1e-3, "phase_batches": 2, "phase_epochs": 2, "epochs": 2}),
    "bootstrapped_dqn": Example("BootstrappedDQN", {}),
    "crossq": Example(
        "CrossQ",
        {"batch_size": 64, "warmup": 2000.0},
        # The statistics of a batch contain each of its observations.
        frozenset({"a_termination_has_no_value_after_it"}),
    ),
}
EACH = pytest.mark.parametrize("module", [long(kind) if kind == "crossq" else kind for kind in KINDS])


@pytest.fixture(autouse=True)
def in_the_folder_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def made(module: str, **config: Any) -> Any:
    """The algorithm with small networks."""
    kind = getattr(importlib.import_module(module), KINDS[module].kind)
    action = CONTINUOUS if "box" in kind.actions else DISCRETE
    return kind(
        kind.Config(**{**KINDS[module].config, **config}),
        NetworkSection(hidden=(8,)),
        EnvSpec("toy", VECTOR, action),
        16,
        2,
    )


@pytest.mark.parametrize("module", [*KINDS, "batch_renorm"])
def test_it_is_short_and_uses_public_names(module: str) -> None:
    text = (EXAMPLES / f"{module}.py").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert not PRIVATE.search(text)


@pytest.mark.whole
@EACH
def test_it_passes_the_checks_without_the_probes(module: str) -> None:
    algorithm, skip = made(module), PROBE_NAMES | KINDS[module].does_not_apply
    report = check_algorithm(type(algorithm), algorithm.config, skip=skip)
    assert len(report.passed) > 20 and report.imports_torch is False


@pytest.mark.long
@EACH
def test_it_passes_all_checks(module: str) -> None:
    algorithm = made(module)
    report = check_algorithm(type(algorithm), algorithm.config, skip=KINDS[module].does_not_apply)
    assert any("learned within" in name for name in report.passed)


class Held:
    """A replay with two batches."""

    def __init__(self, one: SegmentBatch, other: SegmentBatch) -> None:
        columns = {name: np.concatenate((array, other.columns[name]), 1) for name, array in one.columns.items()}
        self.both = SegmentBatch(columns, (*one.metas, *other.metas))
        self.segments = len(self.both.metas)

    def batches(self, segments: int) -> Iterator[SegmentBatch]:
        assert segments == self.segments
        yield self.both


def test_the_auxiliary_phase_of_ppg_trains_on_all_batches_that_are_held() -> None:
    """In every second round. A batch is one minibatch, and two are two."""
    algorithm = made("ppg", epochs=1, phase_epochs=3, minibatch_size=16 * 2 * SEGMENTS)
    learner, batches = algorithm.learner(context_of(algorithm)), []
    for number in range(2):
        slots, refs = acted(algorithm, number), [SlotRef(slot, 1) for slot in range(SEGMENTS)]
        rows = slots["valid"].sum(axis=(1, 2))
        metas = [SegmentMeta(SegmentId(n, 0, number), Version(0, number), int(rows[n])) for n in range(SEGMENTS)]
        batches.append(gather(slots, refs, metas))
    learner.replay = Held(*batches)
    first, second = (learner.learn(batch, progress_at(number)) for number, batch in enumerate(batches))
    assert (first.updates, second.updates) == (1, 1 + 3 * 2)
    assert "loss/aux" not in first.metrics and second.metrics["loss/aux"] > 0


def test_the_losses_of_the_auxiliary_phase() -> None:
    """Half the squared error, and the weighted divergence from the policy of before: the joint loss of the paper."""
    algorithm, random = made("ppg", clone=2.0), np.random.default_rng(1)
    learner = algorithm.learner(context_of(algorithm))
    obs, logits = random.normal(size=(9, 3)), random.normal(size=(9, 3))
    target, before = random.normal(size=9), logits - np.log(np.exp(logits).sum(1, keepdims=True))
    rows = {name: learner.tensor(array) for name, array in {"obs": obs, "target": target, "before": before}.items()}
    with torch.no_grad():
        (now, aux, value) = (learner.net(name, rows["obs"]).double().numpy() for name in ("actor", "aux", "critic"))
    rates = dict.fromkeys(learner.net.groups, 0.0)
    found = {name: float(number) for name, number in learner.run(rows, rates, is_phase=True).items()}
    log_p = now - np.log(np.exp(now).sum(1, keepdims=True))
    divergence = np.mean([sum(np.exp(b) * (b - n)) for b, n in zip(before, log_p, strict=True)])
    assert found["divergence"] == pytest.approx(divergence, rel=1e-4)
    assert found["loss/aux"] == pytest.approx(0.5 * np.mean((aux[:, 0] - target) ** 2), rel=1e-4)
    assert found["loss/critic"] == pytest.approx(0.5 * np.mean((value[:, 0] - target) ** 2), rel=1e-4)
    policy = torch.distributions.Categorical(logits=learner.net("actor", rows["obs"]))
    divergences = torch.distributions.kl_divergence(torch.distributions.Categorical(logits=rows["before"]), policy)
    error = (learner.net("aux", rows["obs"])[:, 0] - rows["target"]).square().mean()
    shared = [learner.net.parameter(name) for name in learner.net.network_names]
    slopes = torch.autograd.grad(0.5 * error + 2.0 * divergences.mean(), shared)
    norm = sum(float(slope.square().sum()) for slope in slopes) ** 0.5
    assert found["grad_norm/actor"] == pytest.approx(norm, rel=1e-4)


def test_an_episode_follows_one_member_until_it_ends() -> None:
    algorithm = made("bootstrapped_dqn", members=3, share=0.3)
    spec, rows, steps = algorithm.acting(), 64, 16
    head, extras = make_head(spec, rows), {"mask": np.full((steps, rows, 3), -1.0, np.float32)}
    state = {"member": np.zeros((rows, 1), np.float32)}
    context = ActingContext(
        noise_for(np.random.default_rng(1), steps, rows, 0, spec.noise), extras, Place.of(0, 1, rows), state
    )
    outputs = np.random.default_rng(2).normal(size=(rows, 9)).astype(np.float32)
    followed = []
    for t in range(steps):
        if t == steps // 2:
            state["member"][:] = 0.0
        actions = head.act(outputs, t, context)
        followed.append(state["member"][:, 0].astype(int))
        values = outputs.reshape(rows, 3, 3)
        assert actions.tolist() == [int(values[row, followed[t][row] - 1].argmax()) for row in range(rows)]
    assert all((found == followed[0]).all() for found in followed[: steps // 2])
    assert (followed[0] != followed[-1]).any() and set(followed[0]) == {1, 2, 3}
    assert set(np.unique(extras["mask"])) == {0.0, 1.0} and abs(extras["mask"].mean() - 0.3) < 0.02


def test_the_greedy_action_of_the_members_is_that_with_most_votes() -> None:
    head = make_head(made("bootstrapped_dqn", members=3).acting(), 1)
    one, two = [0.0, 1.0, 0.0], [0.0, 0.0, 9.0]
    assert head.act_greedily(np.array([one + two + one], np.float32)).tolist() == [1]


def test_a_member_learns_from_the_rows_of_its_mask_alone() -> None:
    """Double Q-learning with its own target (section 4 and appendix D of the paper)."""
    algorithm, random = made("bootstrapped_dqn", members=2, tau=0.0), np.random.default_rng(3)
    learner = algorithm.learner(context_of(algorithm))
    given: dict[str, Array] = {name: random.normal(size=(7, 3)) for name in ("obs", "next_obs")}
    given |= {"action": random.integers(0, 3, 7), "n_step_return": random.normal(size=7), "discount": np.full(7, 0.9)}
    given["mask"] = (random.random((7, 2)) < 0.5).astype(np.float32)
    batch = {name: learner.tensor(array) for name, array in given.items()}
    with torch.no_grad():
        q, following, lagging = (
            learner.net("q", batch[name], target=target).double().numpy().reshape(7, 2, 3)
            for name, target in (("obs", False), ("next_obs", False), ("next_obs", True))
        )
    total = 0.0
    for row in range(7):
        for member in range(2):
            value = lagging[row, member, following[row, member].argmax()]
            target = given["n_step_return"][row] + 0.9 * value
            total += given["mask"][row, member] * (q[row, member, given["action"][row]] - target) ** 2
    found = learner.run(batch, {"q": 0.0})
    assert float(found["loss/q"]) == pytest.approx(total / 14, rel=1e-4)


SPEC = LayerSpec("batch_renorm:BatchRenorm", "q.0_norm", 3, 3, options=(("warmup", 2.0),))


@pytest.mark.parametrize(
    "check", [check for check in LAYER if "finite_differences" not in check.__name__], ids=lambda check: check.__name__
)
def test_the_layer(check: Any) -> None:
    """The gradients that the suite compares are those of a layer without statistics of the batch."""
    check(lambda: Layer(SPEC, inputs=(3,)))


def test_batch_renormalisation_is_that_of_the_paper() -> None:
    """Algorithm 1 of Ioffe 2017; after the warm-up the result is that of the running statistics, within the bounds."""
    kind, random = importlib.import_module("batch_renorm").BatchRenorm(), np.random.default_rng(4)
    held = {name.rpartition(".")[2]: array for name, array in kind.initial(SPEC, random).items()}
    held |= {"scale": random.normal(size=3), "shift": random.normal(size=3)}
    tensors = {f"{SPEC.name}.{part}": torch.tensor(array.astype(np.float32)) for part, array in held.items()}
    mean, deviation = np.zeros(3), np.ones(3)
    for step in range(6):
        x = random.normal(3.0, 9.0, size=(5, 3)).astype(np.float32)
        with training_mode(True), torch.no_grad():
            found = kind.torch(SPEC, tensors, torch.from_numpy(x)).numpy()
        centre, spread = x.mean(0), np.sqrt(x.var(0) + 1e-3)
        r, d = np.ones(3), np.zeros(3)
        if step >= 2:
            r, d = np.clip(spread / deviation, 1 / 3, 3), np.clip((centre - mean) / deviation, -5, 5)
        expected = held["scale"] * ((x - centre) / spread * r + d) + held["shift"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        mean, deviation = mean + 0.01 * (centre - mean), deviation + 0.01 * (spread - deviation)
    np.testing.assert_allclose(tensors[f"{SPEC.name}.mean"], mean, rtol=1e-4)
    np.testing.assert_allclose(tensors[f"{SPEC.name}.deviation"], deviation, rtol=1e-4)
    assert float(tensors[f"{SPEC.name}.steps"]) == 6.0


def test_the_critics_of_crossq_see_both_states_in_one_batch() -> None:
    """Statistics of the layers count one batch per update of a critic, and none where the actor moves."""
    algorithm = made("crossq", policy_delay=1)
    learner = algorithm.learner(context_of(algorithm))
    learn(algorithm, learner, acted(algorithm, 1), updates=5)
    found = {**learner.state(), **learner.weights()}
    steps = {
        name.removeprefix("private."): float(array[0]) for name, array in found.items() if name.endswith("_norm.steps")
    }
    assert len(steps) == 6 and set(steps.values()) == {5.0}
    assert not any(name.startswith("target") for name in learner.state())
