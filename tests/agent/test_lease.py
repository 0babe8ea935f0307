"""The host lease: one silent source is enough, and a source counts from its first word on."""

from __future__ import annotations

from zmqrl.agent.host_agent import HostLease


def test_no_source_is_silent_before_its_first_message() -> None:
    assert HostLease(2.0).silent(1e9) is None


def test_one_silent_source_ends_it_while_the_other_continues() -> None:
    lease = HostLease(2.0)
    lease.renew("launcher", 0.0)
    lease.renew("broker", 1.0)
    assert lease.silent(1.99) is None
    assert lease.silent(2.0) == "launcher"
    lease.renew("launcher", 2.5)
    assert lease.silent(2.9) is None
    assert lease.silent(3.0) == "broker"
