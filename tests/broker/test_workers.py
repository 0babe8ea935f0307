"""Who steps which vector env, whatever hosts say and in whatever order."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zmqrl.broker.assignment import Owners
from zmqrl.broker.workers import Workers

HOSTS = ("a", "b", "c")
LIMIT = 8
WORDS = st.lists(
    st.tuples(
        st.sampled_from(HOSTS),
        st.lists(st.integers(0, 7), unique=True, max_size=5),
        st.lists(st.integers(0, 7), unique=True, max_size=1),
    ),
    max_size=12,
)


@given(words=WORDS, vector_envs=st.integers(1, 16))
def test_every_vector_env_has_an_owner_loads_are_even_and_little_moves(words: list[Any], vector_envs: int) -> None:
    known = Workers(LIMIT)
    owned = Owners(True, vector_envs, known)
    before: list[int | None] = [None] * vector_envs
    for host, workers, failed in words:
        known.receive(host, workers, failed)
        owned.balance()
        owners = [owned.owner(v) for v in range(vector_envs)]
        members = sorted(known.members)
        if not members:
            assert owners == [None] * vector_envs
        else:
            loads = Counter(owners)
            assert set(loads) <= set(members)
            counts = [loads[index] for index in members]
            assert max(counts) - min(counts) <= 1
            kept = Counter(o for o in before if o in members)
            least, more = divmod(vector_envs, len(members))
            room = sorted((kept[index] for index in members), reverse=True)
            best = sum(min(has, least + (rank < more)) for rank, has in enumerate(room))
            assert sum(old == new for old, new in zip(before, owners, strict=True)) == best
        before = owners


def test_async_each_worker_has_its_own() -> None:
    workers = Workers(LIMIT)
    owned = Owners(False, 8, workers)
    workers.receive("a", (1, 4), ())
    owned.balance()
    assert [owned.owner(v) for v in range(6)] == [None, 1, None, None, 4, None]


def test_async_a_vector_env_of_a_worker_that_left_goes_to_another_once_it_is_free() -> None:
    workers = Workers(1_000)
    owned = Owners(False, 3, workers)
    for lost in range(0, 300, 3):
        workers.receive("a", tuple(range(lost, lost + 3)), ())
        if lost:
            owned.balance(taken=(0, 1, 2))
            assert [owned.owner(v) for v in range(3)] == [None, None, None]
            owned.balance(taken=(1,))
            assert [owned.owner(v) for v in range(3)] == [lost, None, lost + 1]
        owned.balance()
        assert {owned.owner(v) for v in range(3)} == {lost, lost + 1, lost + 2}


def test_another_host_cannot_take_or_give_up_what_is_not_its_own() -> None:
    workers = Workers(LIMIT)
    assert workers.receive("a", (0,), ())
    assert workers.receive("b", (0, 1), (0,))
    assert workers.members == {0, 1}
    assert not workers.has_failed(0)
    assert not workers.is_of(0, "b")
    workers.receive("b", (), ())
    assert workers.members == {0}


def test_a_worker_may_register_before_its_host_reports() -> None:
    workers = Workers(LIMIT)
    workers.add(3, 0)
    assert workers.members == {3}
    assert workers.is_of(3, "a") and workers.is_of(3, "b")
    assert not workers.has_left(3)
    workers.receive("a", (3,), ())
    assert not workers.is_of(3, "b")
    workers.receive("a", (), ())
    assert workers.has_left(3)
    workers.add(3, 0)
    assert workers.has_left(3), "it had to leave"


def test_a_failed_worker_stays_failed() -> None:
    workers = Workers(LIMIT)
    workers.receive("a", (0, 1), (1,))
    assert workers.members == {0}
    assert not workers.receive("a", (0, 1), (1,)), "reported again"
    assert workers.members == {0}


def test_a_host_that_returns_is_not_bound_by_the_restart_limit_of_its_former_workers() -> None:
    """The limit is reached for an index, and its next agent has others."""
    workers = Workers(8)
    workers.receive("b", (1, 2), ())
    workers.receive("b", (1,), (2,))
    assert (workers.members, workers.has_failed(2)) == ({1}, True)
    workers.receive("b", (), (1, 2))  # it is lost
    workers.receive("b", (3, 4), ())
    assert (workers.members, workers.has_failed(3)) == ({3, 4}, False)
