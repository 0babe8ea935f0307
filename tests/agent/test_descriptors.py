"""Whether the descriptors of a host are enough for its part of a run."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.raising import raises
from zmqrl.agent.process import check_descriptors
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError
from zmqrl.types import ModeName


def boot_of(host: str, workers: int, total: int, mode: ModeName = "async") -> Boot:
    return Boot("agent", 0, 0, host, stand_in_plan(Path("runs"), mode, total), workers=tuple(range(workers)))


def limit_to(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))


@pytest.mark.parametrize(("host", "workers", "total", "role", "needed"), [
    ("far", 300, 1000, "the host agent, with 300 workers", 1276),
    ("local", 0, 400, "the broker, with 400 workers", 1266),
    ("local", 400, 400, "the host agent, with 400 workers", 1676),
])  # fmt: skip
def test_a_hard_limit_that_is_too_low(
    host: str, workers: int, total: int, role: str, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = boot_of(host, workers, total)
    limit_to(needed, monkeypatch)
    check_descriptors(boot)
    limit_to(1024, monkeypatch)
    what = f"{role}, needs {needed:,} file descriptors, and the limit is 1,024 (ulimit -Hn)"
    with raises(ConfigError, key=(), what=what):
        check_descriptors(boot)


def test_mode_single_has_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to(256, monkeypatch)
    check_descriptors(boot_of("local", 0, 0, "single"))
