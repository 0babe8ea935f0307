"""Which hosts were silent for too long."""

from __future__ import annotations

from zmqrl.broker.liveness import JOIN_S, Hosts


def test_a_silent_host_is_lost_once() -> None:
    hosts = Hosts("local", 2.0)
    assert [hosts.receive("b", 0.0), hosts.receive("c", 1.0), hosts.receive("c", 1.0)] == [True, True, False]
    assert hosts.lost(1.9) == []
    assert hosts.lost(2.0) == ["b"]
    assert hosts.lost(2.5) == []
    assert hosts.receive("b", 2.6)
    assert hosts.lost(3.0) == ["c"]
    assert hosts.lost(4.7) == ["b"]


def test_an_expected_host_has_longer_for_its_first_report() -> None:
    hosts = Hosts("local", 2.0)
    for host in ("b", "c", "d"):
        hosts.expect(host, 0.0)
    assert hosts.receive("b", 1.0), "it was not there before"
    assert not hosts.leave("c", 0.5), "it never was there"
    hosts.forget("d")
    assert hosts.lost(3.0) == ["b"]
    assert hosts.lost(JOIN_S + 2.4) == [], "each report without workers extends the time for the first one with"
    assert hosts.lost(JOIN_S + 2.5) == ["c"]


def test_who_has_ended_and_the_learners_host_are_not_judged() -> None:
    hosts = Hosts("local", 2.0)
    assert not hosts.receive("local", 0.0)
    hosts.receive("b", 0.0)
    assert [hosts.leave("b", 1.0), hosts.leave("b", 1.0)] == [True, False]
    assert hosts.lost(100.0) == []
