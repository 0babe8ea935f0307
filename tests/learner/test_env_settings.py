"""In mode single the settings of env and learner are apart, in the torch and the numpy of one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from zmqrl.learner.env_settings import EnvSettings
from zmqrl.logs.events import EventPipe
from zmqrl.messages.lines import child_event
from zmqrl.messages.process import ProblemReport

READ: Mapping[str, Callable[[], Any]] = {
    "torch.set_default_dtype": torch.get_default_dtype,
    "torch.set_num_threads": torch.get_num_threads,
    "torch.set_grad_enabled": torch.is_grad_enabled,
    "torch.set_default_device": lambda: str(torch.get_default_device()),
    "torch.set_deterministic_debug_mode": torch.get_deterministic_debug_mode,
    "torch.set_float32_matmul_precision": torch.get_float32_matmul_precision,
    "numpy.seterr": lambda: np.geterr()["invalid"],
}
CHANGES: Mapping[str, tuple[Callable[[], object], Any]] = {
    "torch.set_default_dtype": (lambda: torch.set_default_dtype(torch.float64), torch.float64),
    "torch.set_num_threads": (lambda: torch.set_num_threads(2), 2),
    "torch.set_grad_enabled": (lambda: torch.set_grad_enabled(False), False),
    "torch.set_default_device": (lambda: torch.set_default_device("meta"), "meta"),
    "torch.set_deterministic_debug_mode": (lambda: torch.use_deterministic_algorithms(True), 2),
    "torch.set_float32_matmul_precision": (lambda: torch.set_float32_matmul_precision("high"), "high"),
    "numpy.seterr": (lambda: np.seterr(all="raise"), "raise"),
}
THREADS = 3


def read() -> dict[str, Any]:
    return {name: get() for name, get in READ.items()}


@pytest.fixture
def learners() -> Iterator[dict[str, Any]]:
    """The settings of the learner; what a test leaves of others is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    with np.errstate():
        yield read()
    torch.set_num_threads(before)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")


def test_the_learner_keeps_its_settings_and_the_env_those_that_it_changed(learners: dict[str, Any]) -> None:
    read_fd, write_fd = os.pipe()
    seen: list[dict[str, Any]] = []

    def collect(interrupted: Callable[[], bool]) -> None:
        seen.append({**read(), "interrupted": interrupted()})
        if len(seen) == 2:
            for change, _ in CHANGES.values():
                change()

    settings = EnvSettings(collect, EventPipe(write_fd))
    for _ in range(4):
        settings.collect(lambda: True)
        assert read() == learners
    os.close(write_fd)
    as_in_a_worker = {**learners, "torch.set_num_threads": 1, "interrupted": True}
    changed = {**as_in_a_worker, **{name: value for name, (_, value) in CHANGES.items()}}
    assert seen == [as_in_a_worker, as_in_a_worker, changed, changed]
    with os.fdopen(read_fd, "rb") as events:
        (report,) = map(child_event, events)
    assert isinstance(report, ProblemReport)
    assert all(name in report.cause for name in CHANGES)


def test_an_env_that_raises_leaves_the_settings_of_the_learner(learners: dict[str, Any]) -> None:
    def collect(_: Callable[[], bool]) -> None:
        torch.set_default_dtype(torch.float64)
        raise ValueError

    with pytest.raises(ValueError):
        EnvSettings(collect, EventPipe(None)).collect(lambda: False)
    assert read() == learners


def test_a_cpu_as_the_default_device_does_not_stay_a_mode_of_torch(learners: dict[str, Any]) -> None:
    """It delays each call."""
    EnvSettings(lambda _: torch.set_default_device("meta"), EventPipe(None)).collect(lambda: False)
    assert torch._GLOBAL_DEVICE_CONTEXT.device_context is None
