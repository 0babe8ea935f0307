"""What a drill says of a process that outlived its run."""

from __future__ import annotations

import threading
import time

import pytest

from tests.held_process import held_process
from zmqrl.drill import subject
from zmqrl.supervision.process_table import kill


def test_a_process_that_the_kernel_holds_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "GONE_S", 0.1)
    with held_process() as held:
        threading.Timer(0.5, kill, [held]).start()
        assert subject._await_gone([held], time.monotonic()) == []


def test_not_longer_than_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "GONE_S", 0.1)
    monkeypatch.setattr(subject, "END_S", 0.3)
    with held_process() as held:
        assert subject._await_gone([held], time.monotonic()) == [held]
        assert subject._what_it_does(held).startswith("D (disk sleep) in ")
