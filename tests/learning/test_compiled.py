"""A compiled update is the eager one, for every number of rows; what tracing would freeze is found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.learning.test_net import SPEC, batch, loss_of, made
from zmqrl.errors import ConfigError, TrainingFailed
from zmqrl.learning import compiled, package_cache
from zmqrl.learning.compiled import UNFINISHED, CompiledExecutor, Signature
from zmqrl.learning.executor import EagerExecutor, Executor
from zmqrl.learning.groups import Group
from zmqrl.learning.net import Net
from zmqrl.learning.package_cache import cache_folder
from zmqrl.networks.initial import initial_weights

RATES = (1e-3, 2e-3, 5e-4, 1e-3, 4e-3, 1e-3)
ROWS = (64, 63, 17, 2, 1, 128)
"""A batch of one row runs eagerly."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: a graph is compiled once."""
    return tmp_path_factory.mktemp("compiled")


class Learner:
    """Steps group `a` by a loss that reads `self.factor`, which is no tensor, and `shift` of the batch."""

    def __init__(self) -> None:
        self.net: Net = made(Group("a", target=True, max_grad_norm=1.0), Group("b", ("b", "scale")))
        self.factor = 1.0

    def train(self, rows: Mapping[str, torch.Tensor], twice: bool = False) -> Mapping[str, torch.Tensor]:
        loss = loss_of(self.net("a", rows["x"]), rows["y"] + rows["shift"]) * self.factor
        self.net.step("a", loss)
        if twice:
            self.net.step("a", loss_of(self.net("a", rows["x"]), rows["y"]))
        self.net.update_targets(0.1)
        return {"loss": loss, "per_row": self.net("a", rows["x"]).sum(1)}

    def run(self, executor: Executor, number: int, **variant: bool) -> dict[str, torch.Tensor]:
        rates = {name: torch.tensor(RATES[number], dtype=torch.float64) for name in self.net.groups}
        rows = {**batch(ROWS[number]), "shift": torch.tensor(float(number))}
        return executor.run(self.train, rows, rates, **variant)


@pytest.mark.whole
def test_it_is_the_eager_update(cache: Path) -> None:
    one, other = Learner(), Learner()
    eager, fast = EagerExecutor(one.net), CompiledExecutor(other.net, cache)
    for number in range(len(ROWS)):
        expected, found = one.run(eager, number), other.run(fast, number)
        assert expected.keys() == found.keys() == {"loss", "per_row", "grad_norm/a"}
        for name in expected:
            np.testing.assert_allclose(found[name].numpy(), expected[name].numpy(), rtol=1e-4, atol=1e-5)
    for name, tensor in one.net.tensors.items():
        np.testing.assert_allclose(other.net.tensors[name].numpy(), tensor.numpy(), rtol=1e-4, atol=1e-5)
    assert len(list(cache.glob("*.pt2"))) == 1, "one package for all numbers of rows"


@pytest.mark.whole
def test_a_package_is_kept_for_later_runs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Learner()
    first.run(CompiledExecutor(first.net, cache), 0)
    monkeypatch.setattr(compiled, "_compile", lambda *_: pytest.fail("compiled again"))
    later = Learner()
    later.run(CompiledExecutor(later.net, cache), 0)
    assert torch.equal(first.net.tensors["a.parameters"], later.net.tensors["a.parameters"])


@pytest.mark.whole
def test_a_damaged_package_is_compiled_again(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut short by a power cut, or built with another C library: the file is there and cannot be loaded."""
    first = Learner()
    first.run(CompiledExecutor(first.net, cache), 0)
    for path in cache.glob("*.pt2"):
        (tmp_path / path.name).write_bytes(path.read_bytes()[:1000])
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    again = Learner()
    again.run(CompiledExecutor(again.net, tmp_path), 0)
    assert torch.equal(again.net.tensors["a.parameters"], first.net.tensors["a.parameters"])
    (whole,) = (path for path in tmp_path.glob("*.pt2") if path.stat().st_size > 1000)
    assert sizes == [whole.stat().st_size], "a power cut leaves the whole package, or none"


@pytest.mark.whole
def test_a_new_package_that_cannot_be_loaded_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_badly(*arguments: Any) -> None:
        arguments[-1].write_bytes(b"cut")

    monkeypatch.setattr(compiled, "_compile", compile_badly)
    (cache / "other").mkdir()
    learner = Learner()
    with pytest.raises(ConfigError, match=r"learner\.executor: .*/other/[0-9a-f]{32}\.pt2, .*start a new run with"):
        learner.run(CompiledExecutor(learner.net, cache / "other"), 0)


@pytest.mark.whole
def test_a_number_that_tracing_froze_is_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COMPARE_EVERY", 2)
    learner = Learner()
    executor = CompiledExecutor(learner.net, cache)
    learner.run(executor, 0)
    learner.factor = 0.5
    learner.run(executor, 1)  # nothing is compared here
    with pytest.raises(TrainingFailed, match=r"differs from the eager one by .* in 'loss'.*must come from the batch"):
        learner.run(executor, 2)


@pytest.mark.whole
def test_a_mean_of_many_nearly_equal_numbers_is_within_the_tolerance(cache: Path) -> None:
    """As the entropy of a fresh policy: the last bits that a compiled sum loses have one sign."""
    net = made(Group("a"), Group("b", ("b", "scale")))

    def update(rows: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        net.step("a", loss_of(net("a", rows["x"]), rows["y"]))
        log = torch.log_softmax(rows["x"] * 1e-3, 1)
        return {"entropy": -(log.exp() * log).sum(1).mean()}

    rates = {name: torch.tensor(1e-3, dtype=torch.float64) for name in net.groups}
    rows = batch(65_536)
    found = CompiledExecutor(net, cache).run(update, rows, rates)["entropy"]
    assert abs(float(found) - np.log(3)) < 1e-3


class Cancelling:
    """Two numbers of some thousands differ by about one: the errors, and so the gradients, have few correct digits."""

    def __init__(self, size: float) -> None:
        weights = initial_weights(SPEC, 1)
        weights["a.1.bias"] = weights["a.1.bias"] + np.float32(size)
        self.net = Net(SPEC, (Group("a"), Group("b", ("b", "scale"))), weights, "cpu")
        self.factor = 1.0

    def train(self, rows: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        level = self.net("a", rows["x"]).sum(1) * 10.0
        self.net.step("a", (level - level.detach().mean()).square().mean() * self.factor)
        return {}

    def run(self, executor: Executor, rows: int = 256) -> dict[str, torch.Tensor]:
        rates = {name: torch.tensor(1e-3, dtype=torch.float64) for name in self.net.groups}
        return executor.run(self.train, batch(rows), rates)


@pytest.mark.whole
@pytest.mark.parametrize("rows", [256, 4096])
def test_rounding_of_numbers_that_nearly_cancel_is_no_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(compiled, "COMPARE_EVERY", 1)
    learner = Cancelling(3000.0)
    executor = CompiledExecutor(learner.net, cache)
    for _ in range(10):
        learner.run(executor, rows)
    traced: list[object] = []
    monkeypatch.setattr(compiled, "_traced", lambda *arguments: traced.append(arguments))
    learner.run(executor, rows)
    assert not traced, "what was found to be rounding needs no second graph"
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "MOST_ROUNDING", 0.0)
    learner = Cancelling(3000.0)
    with pytest.raises(TrainingFailed, match=r"differs from the eager one by .*: no number of it was frozen"):
        learner.run(CompiledExecutor(learner.net, cache), rows)


@pytest.mark.whole
@pytest.mark.parametrize("size", [0.0, 3000.0])
def test_a_frozen_number_is_found_beside_rounding(cache: Path, monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(compiled, "COMPARE_EVERY", 1)
    learner = Cancelling(size)
    executor = CompiledExecutor(learner.net, cache)
    learner.run(executor)
    learner.factor = 1.01
    with pytest.raises(TrainingFailed, match=r"in 'grad_norm/a': a number that changes .* must come from the batch"):
        learner.run(executor)


@pytest.mark.whole
def test_training_that_diverged_is_not_a_difference(cache: Path) -> None:
    """The learner names the group whose gradient is not finite."""
    learner = Cancelling(float("inf"))
    results = learner.run(CompiledExecutor(learner.net, cache))
    assert not results["grad_norm/a"].isfinite()


def test_an_update_that_depends_on_data_is_refused(cache: Path) -> None:
    net = made()

    def update(rows: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if rows["y"].mean() > 0:  # a branch on data
            net.step("a", loss_of(net("a", rows["x"]), rows["y"]))
        return {}

    rates = {name: torch.tensor(1e-3, dtype=torch.float64) for name in net.groups}
    with pytest.raises(ConfigError, match=r"the update cannot be compiled: .*learner\.executor: eager"):
        CompiledExecutor(net, cache).run(update, batch(), rates)


def test_rows_and_strides_are_checked_on_every_call() -> None:
    rows = batch(8)
    with pytest.raises(ValueError, match="y has 7 rows, and the tensors before it 8"):
        Signature.of({**rows, "y": rows["y"][:7]}, {})
    with pytest.raises(ValueError, match="x: a compiled update needs contiguous tensors"):
        Signature.of({**rows, "x": rows["x"].t().contiguous().t()}, {})
    assert Signature.of(rows, {}) == Signature.of(batch(9), {}) != Signature.of({**rows, "x": rows["x"].double()}, {})


def test_without_a_compiler_the_run_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler, and 'no-such-compiler' is missing"):
        CompiledExecutor(made(), tmp_path)


@pytest.mark.whole
def test_a_kept_package_needs_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Learner()
    first.run(CompiledExecutor(first.net, cache), 0)
    monkeypatch.setenv("CXX", "no-such-compiler")
    later = Learner()
    executor = CompiledExecutor(later.net, cache)
    later.run(executor, 0)
    with pytest.raises(ConfigError, match=r"^learner.executor: 'compiled' needs a C\+\+ compiler"):
        later.run(executor, 0, twice=True)


def test_the_folder_of_packages_is_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of another CPU, C library or torch on a shared home directory are not loaded, and spare no compiler."""
    monkeypatch.setenv("ZMQRL_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    folders = set()
    for flags in ("x86_64 avx2", "x86_64 avx2", "x86_64 avx2 avx512f", "aarch64 asimd"):
        monkeypatch.setattr(package_cache, "cpu_flags", lambda flags=flags: flags)
        folders.add(cache_folder())
    monkeypatch.setattr(package_cache, "version", lambda _: "1.0")
    folders.add(cache_folder())
    assert len(folders) == 4 and {folder.parent for folder in folders} == {tmp_path / "compiled"}
    (tmp_path / "compiled" / "other").mkdir(parents=True)
    (tmp_path / "compiled" / "other" / "a.pt2").touch()
    (cache_folder() / UNFINISHED).mkdir(parents=True)
    (cache_folder() / UNFINISHED / "a.7.pt2").touch()  # of a compilation that was killed
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler"):
        CompiledExecutor(made())
    (cache_folder() / "a.pt2").touch()
    CompiledExecutor(made())
