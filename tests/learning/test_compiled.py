"""A compiled update is the eager one, for every number of rows; what tracing would freeze is found."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.learning.reports import Reports
from tests.learning.test_net import SPEC, batch, loss_of, made
from tests.support.raising import raises
from zmqrl.errors import ConfigError, TrainingFailed
from zmqrl.learning import compiled, package_cache
from zmqrl.learning.compiled import FIX_OF_ROWS, CompiledExecutor, Signature, TracedExecutor, _key
from zmqrl.learning.executor import EagerExecutor, Executor
from zmqrl.learning.groups import Group
from zmqrl.learning.net import Net
from zmqrl.learning.package_cache import FIX, cache_folder, keep_package, read_package
from zmqrl.networks.initial import initial_weights
from zmqrl.wire.runtime_folder import run_folder_root

RATES = (1e-3, 2e-3, 5e-4, 1e-3, 4e-3, 1e-3, 1e-3)
ROWS = (64, 63, 17, 2, 1, 128, 65_536)
"""A batch of one row runs eagerly."""
MANY = 6
"""Number of the largest, whose sums have other last digits."""


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
        log = torch.log_softmax(rows["x"] * 1e-3, 1)
        entropy = -(log.exp() * log).sum(1).mean()
        return {"loss": loss, "per_row": self.net("a", rows["x"]).sum(1), "entropy": entropy}

    def run(self, executor: Executor, number: int, **variant: bool) -> dict[str, torch.Tensor]:
        rates = {name: torch.tensor(RATES[number], dtype=torch.float64) for name in self.net.groups}
        rows = {**batch(ROWS[number]), "shift": torch.tensor(float(number))}
        return executor.run(self.train, rows, rates, **variant)


@pytest.mark.whole
def test_it_is_the_eager_update(cache: Path) -> None:
    one, other = Learner(), Learner()
    eager, fast = EagerExecutor(one.net), CompiledExecutor(other.net, cache)
    for number in range(MANY):
        expected, found = one.run(eager, number), other.run(fast, number)
        assert expected.keys() == found.keys() == {"loss", "per_row", "entropy", "grad_norm/a"}
        for name in expected:
            np.testing.assert_allclose(found[name].numpy(), expected[name].numpy(), rtol=1e-4, atol=1e-5)
    for name, tensor in one.net.tensors.items():
        np.testing.assert_allclose(other.net.tensors[name].numpy(), tensor.numpy(), rtol=1e-4, atol=1e-5)
    assert len(list(cache.glob("*.pt2"))) == 1, "one package for all numbers of rows"


@pytest.mark.whole
def test_a_package_is_kept_for_later_runs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Learner()
    first.run(CompiledExecutor(first.net, cache), 0)
    monkeypatch.setattr(compiled, "_compiled", lambda *_: pytest.fail("compiled again"))
    later = Learner()
    later.run(CompiledExecutor(later.net, cache), 0)
    assert torch.equal(first.net.tensors["a.parameters"], later.net.tensors["a.parameters"])


def from_cache(cache: Path, compilations: list[str]) -> Any:
    """In place of a compilation, which takes 20 s: what was compiled into `cache`."""

    def package(graph: Any, arguments: Any, batch: Any) -> bytes | None:
        del batch
        compilations.append(f"{_key(graph, arguments)}.pt2")
        return read_package(cache / compilations[-1], Reports())

    return package


DAMAGES = {
    "is damaged: its checksum differs": lambda path: path.write_bytes(with_zeros(path.read_bytes())),
    "cannot be loaded: ": lambda path: keep_package(path, b"PK of another libc", Reports()),
}


def with_zeros(content: bytes) -> bytes:
    """A page in the code of the update."""
    half = len(content) // 2
    return content[:half] + bytes(4096) + content[half + 4096 :]


@pytest.mark.whole
@pytest.mark.parametrize("cause", DAMAGES)
def test_a_package_that_cannot_be_loaded_is_compiled_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Torch compares no checksum: it loads a page of zeros, and the process ends by SIGSEGV, or the weights differ."""
    first = Learner()
    first.run(CompiledExecutor(first.net, cache), 0)
    tmp_path.chmod(0o700)
    for path in cache.glob("*.pt2"):
        DAMAGES[cause](Path(shutil.copy(path, tmp_path)))
    compilations: list[str] = []
    monkeypatch.setattr(compiled, "_compiled", from_cache(cache, compilations))
    reports = Reports()
    for _ in range(2):  # the second one loads what the first one kept
        again = Learner()
        again.run(CompiledExecutor(again.net, tmp_path, reports), 0)
        assert torch.equal(again.net.tensors["a.parameters"], first.net.tensors["a.parameters"])
    (name,) = compilations
    ((found, done),) = reports
    assert found.startswith(f"{tmp_path / name} ") and cause in found and done == "the update is compiled again"


@pytest.mark.whole
def test_a_new_package_that_cannot_be_loaded_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_compiled", lambda *_: b"cut")
    learner = Learner()
    with raises(ConfigError, key=("learner", "executor"), fix=f"{FIX_OF_ROWS}; or {FIX}"):
        learner.run(CompiledExecutor(learner.net, tmp_path), 0)


@pytest.mark.whole
def test_nothing_is_left_where_torch_would_leave_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Learner()
    first.run(CompiledExecutor(first.net, cache), 0)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    later = Learner()
    executor = CompiledExecutor(later.net, cache)
    later.run(executor, 0)
    assert os.listdir(tmp_path) == [] and not list(run_folder_root().glob("tmp-*"))
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    later.run(executor, 1)  # what was unpacked is gone, and its library is mapped


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
    learner = Learner()
    found = learner.run(CompiledExecutor(learner.net, cache), MANY)["entropy"]
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


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.parametrize("rows", [256, 4096])
def test_rounding_of_numbers_that_nearly_cancel_is_not_an_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(compiled, "COMPARE_EVERY", 1)
    learner = Cancelling(3000.0)
    executor = CompiledExecutor(learner.net, cache, reports := Reports())
    for _ in range(10):
        learner.run(executor, rows)
    ((cause, done),) = reports
    assert "differs from the eager one by" in cause and "times the tolerance" in cause and "rounding" in done
    traced: list[object] = []
    monkeypatch.setattr(compiled, "_traced", lambda *arguments: traced.append(arguments))
    learner.run(executor, rows)
    assert not traced, "what was found to be rounding needs no second graph"
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "MOST_ROUNDING", 0.0)
    learner = Cancelling(3000.0)
    with pytest.raises(TrainingFailed, match=r"differs from the eager one by .*: no number of it was frozen"):
        learner.run(CompiledExecutor(learner.net, cache), rows)


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.parametrize("size", [0.0, 3000.0])
def test_a_frozen_number_is_found_despite_rounding(cache: Path, monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(compiled, "COMPARE_EVERY", 1)
    learner = Cancelling(size)
    executor = CompiledExecutor(learner.net, cache)
    learner.run(executor)
    learner.factor = 1.01
    with pytest.raises(TrainingFailed, match=r"in 'grad_norm/a': a number that changes .* must come from the batch"):
        learner.run(executor)


@pytest.mark.long
@pytest.mark.whole
def test_training_that_diverged_is_not_a_difference(cache: Path) -> None:
    """The learner names the group whose gradient is not finite."""
    learner = Cancelling(float("inf"))
    results = learner.run(CompiledExecutor(learner.net, cache))
    assert not results["grad_norm/a"].isfinite()


@pytest.mark.whole
def test_an_update_that_depends_on_data_is_refused(cache: Path) -> None:
    net = made()

    def update(rows: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if rows["y"].mean() > 0:  # a branch on data
            net.step("a", loss_of(net("a", rows["x"]), rows["y"]))
        return {}

    rates = {name: torch.tensor(1e-3, dtype=torch.float64) for name in net.groups}
    with raises(ConfigError, key=("learner", "executor"), fix=f"{FIX_OF_ROWS}; or {FIX}"):
        CompiledExecutor(net, cache).run(update, batch(), rates)


@pytest.mark.whole
def test_a_shape_that_tracing_froze_is_named() -> None:
    net = made()

    def update(rows: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        net.step("a", loss_of(net("a", rows["x"]).view(len(rows["x"]), 2), rows["y"]))
        return {}

    with raises(ConfigError, key=("learner", "executor"), fix=f"{FIX_OF_ROWS}; or {FIX}"):
        TracedExecutor(net).run(update, batch(), rates_of(net))


@pytest.mark.whole
def test_a_number_of_rows_that_tracing_froze_is_no_rounding() -> None:
    net = made(Group("a", max_grad_norm=1e-6), Group("b", ("b", "scale")))

    def update(rows: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        errors = (net("a", rows["x"]).sum(1) - rows["y"]).square()
        net.step("a", errors.mean())
        return {"loss": errors.sum() / len(rows["x"])}

    reports = Reports()
    with pytest.raises(TrainingFailed) as found:
        TracedExecutor(net, reports).run(update, batch(), rates_of(net))
    assert FIX_OF_ROWS in str(found.value) and not reports


def rates_of(net: Net) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(1e-3, dtype=torch.float64) for name in net.groups}


def test_rows_and_strides_are_checked_on_every_call() -> None:
    rows = batch(8)
    with pytest.raises(ValueError, match="y has 7 rows, and the tensors before it 8"):
        Signature.of({**rows, "y": rows["y"][:7]}, {})
    with pytest.raises(ValueError, match="x: a compiled update needs contiguous tensors"):
        Signature.of({**rows, "x": rows["x"].t().contiguous().t()}, {})
    assert Signature.of(rows, {}) == Signature.of(batch(9), {}) != Signature.of({**rows, "x": rows["x"].double()}, {})


def test_without_a_compiler_the_run_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with raises(ConfigError, key=("learner", "executor"), value="'compiled'"):
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
    cache_folder().mkdir()
    (cache_folder() / "tmpabc.part").touch()  # of a process that was killed
    with raises(ConfigError, key=("learner", "executor"), value="'compiled'"):
        CompiledExecutor(made())
    (cache_folder() / "a.pt2").touch()
    CompiledExecutor(made())
