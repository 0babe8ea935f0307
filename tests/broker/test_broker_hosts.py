"""Which hosts were silent for too long."""

from __future__ import annotations

from zmqrl.broker.hosts import Hosts


def test_a_silent_host_is_lost_once_with_its_workers() -> None:
    hosts = Hosts("local", 2.0)
    hosts.hear("b", (1, 2), 0.0)
    hosts.hear("c", (3,), 1.0)
    assert hosts.lost(1.9) == []
    assert hosts.lost(2.0) == [("b", (1, 2))]
    assert hosts.lost(2.5) == []
    hosts.hear("b", (4,), 2.6)
    assert hosts.lost(3.0) == [("c", (3,))]
    assert hosts.lost(4.7) == [("b", (4,))]


def test_who_has_ended_and_the_learners_host_are_not_judged() -> None:
    hosts = Hosts("local", 2.0)
    hosts.hear("local", (0,), 0.0)
    hosts.hear("b", (1,), 0.0)
    hosts.forget("b")
    hosts.forget("b")
    assert hosts.lost(100.0) == []
