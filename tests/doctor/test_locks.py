"""The register as doctor shows it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL
from zmqrl.doctor.machine import held_locks
from zmqrl.doctor.needs import needs_of
from zmqrl.planning.configure import load
from zmqrl.supervision.host_entry import Entry
from zmqrl.supervision.host_lock import HostLock
from zmqrl.supervision.process_table import identify


def entry(run_id: str, ago_s: float) -> Entry:
    me = identify(os.getpid())
    assert me is not None
    return Entry(run_id, me.pid, me.start_time, "somebody", os.getuid(), time.time() - ago_s, 3, "h0", "laptop")


def test_the_live_ones_are_shown_oldest_first(tmp_path: Path) -> None:
    register = HostLock(tmp_path / "agents")
    for held in (entry("young", 60), entry("old", 3600), replace(entry("dead", 10), start_time=1)):
        register.acquire(held, "ignored")
    old, young = held_locks(register)
    assert (old.run_id, young.run_id) == ("old", "young")
    assert young.own and young.pid == os.getpid() and young.workers == 3 and 59 < young.age_s < 120


def test_no_register_holds_no_lock(tmp_path: Path) -> None:
    assert held_locks(HostLock(tmp_path / "none")) == ()


def test_only_a_host_that_a_launch_would_not_use_is_refused() -> None:
    loaded = load("cartpole-ppo", overrides=["hosts.a.workers=1", "hosts.b.workers=1", "hosts.b.cores=2"])
    needs = needs_of(loaded, Path("hosts.yaml"))
    assert {name: host.neighbours for name, host in needs.hosts.items()} == {
        LOCAL: "warned",
        "a": "refused",
        "b": "warned",
    }
