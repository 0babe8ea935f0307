"""`learner.threads` is set before the learner is built, and after a torch that only the learner imports."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.agent.plans import stand_in_plan
from zmqrl.algorithms.base import Algorithm
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import LearnerSection
from zmqrl.learner.process import _make_learner


class Torch:
    """As much of the module as is used."""

    threads = 8

    def set_num_threads(self, threads: int) -> None:
        self.threads = threads


def plan_of(threads: int | None) -> RunPlan:
    plan = stand_in_plan(Path("/nowhere"))
    return replace(plan, config=replace(plan.config, learner=LearnerSection(device="cpu", threads=threads)))


def built(learner: Any) -> Algorithm:
    return cast(Algorithm, SimpleNamespace(learner=learner))


@pytest.mark.parametrize(("threads", "expected"), [(3, 3), (None, 1)])
def test_a_torch_that_is_there_already_has_its_threads_while_the_learner_is_built(
    monkeypatch: pytest.MonkeyPatch, threads: int | None, expected: int
) -> None:
    """The policy of single mode, for example, has imported it and set one thread."""
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", cast(Any, torch))
    assert _make_learner(built(lambda weights, device: torch.threads), {}, plan_of(threads)) == expected


def test_a_torch_that_the_learner_imports_has_them_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    _make_learner(built(lambda *_: monkeypatch.setitem(sys.modules, "torch", cast(Any, torch))), {}, plan_of(3))
    assert torch.threads == 3


def test_a_learner_without_torch_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    _make_learner(built(lambda *_: None), {}, plan_of(3))
    assert "torch" not in sys.modules
