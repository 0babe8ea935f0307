"""`learner.threads` are those of torch while the learner trains."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zmqrl.algorithms.base import Algorithm, LearnerContext
from zmqrl.learner.process import _make_learner


class Torch:
    """As much of the module as is used."""

    threads = 8

    def set_num_threads(self, threads: int) -> None:
        self.threads = threads


def built(learner: Any) -> Algorithm:
    return cast(Algorithm, SimpleNamespace(learner=learner))


def test_a_torch_that_the_learner_imports_has_them_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    _make_learner(built(lambda *_: monkeypatch.setitem(sys.modules, "torch", cast(Any, torch))), LearnerContext({}), 3)
    assert torch.threads == 3


def test_a_learner_without_torch_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    _make_learner(built(lambda *_: None), LearnerContext({}), 3)
    assert "torch" not in sys.modules
