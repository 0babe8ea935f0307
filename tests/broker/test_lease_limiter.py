"""The two sides of the rate limiter together: whatever the ratio, one of them can always move on."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest

from tests.shared_memory.bus_plans import bus_plan
from zmqrl.broker.leases import LeaseLimiter, least_slack
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection, LimitsSection, ReplaySection
from zmqrl.replay.limiter import updates_due

RATIOS = (1 / 1024, 0.01, 1 / 49, 0.02, 0.03, 0.1, 0.29, 1.0, 3.0)
WORKERS, LEASES, ROWS, STARTS = (1, 2, 3, 5), (1, 2, 4), (1, 16, 32, 100, 2048), (0, 10_000)
COMBINATIONS = tuple(itertools.product(RATIOS, WORKERS, LEASES, ROWS, STARTS))
UPDATES = (*range(120), 10**3, 10**6, 10**6 + 1)


def limiter(ratio: float, workers: int, leases: int, rows: int, starts: int) -> LeaseLimiter:
    plan = bus_plan("async", workers=workers, vector_envs=workers, leases=leases)
    config = replace(
        plan.config,
        env=EnvSection(num_envs=1, segment_steps=rows),
        replay=ReplaySection(ratio=ratio, learning_starts=starts),
        limits=LimitsSection(leases_per_worker=leases),
    )
    return LeaseLimiter(replace(plan, config=config, on_policy=False))


def none_held() -> int:
    return 0


def due(stored: int, updates: int, ratio: float, starts: int) -> int:
    return updates_due(stored, updates, learning_starts=starts, ratio=ratio, most=16)


def last_without_work(updates: int, ratio: float, starts: int) -> Iterator[int]:
    """The most env steps with which no update is due: leases are granted the less, the more is stored."""
    stored = starts + math.ceil((updates + 1) / ratio) + 2
    while due(stored, updates, ratio, starts):
        stored -= 1
    yield stored


def test_there_are_many_combinations() -> None:
    assert len(COMBINATIONS) >= 960


@pytest.mark.whole
def test_a_lease_can_be_granted_whenever_no_update_is_due() -> None:
    """That is absence of deadlock: the learner has taken everything, and no lease is left in any worker's hands."""
    for ratio, workers, leases, rows, starts in COMBINATIONS:
        broker = limiter(ratio, workers, leases, rows, starts)
        for updates in UPDATES:
            broker.report(0, updates)
            for stored in last_without_work(updates, ratio, starts):
                state = (ratio, workers, leases, rows, starts, updates, stored)
                assert broker.allows(stored, 0, none_held), f"deadlock: {state}"


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_get_on(seed: int) -> None:
    """Workers fill leases in any order, with fewer valid rows than fit; the learner takes its turns when it likes."""
    dice = random.Random(seed)
    ratio, workers, leases, rows, starts = dice.choice([c for c in COMBINATIONS if c[3] > 1])
    broker, out, stored, updates = limiter(ratio, workers, leases, rows, starts), 0, 0, 0
    goal = starts + math.ceil(20 / ratio) + 10 * rows
    while stored < goal:
        moved = False
        if out < workers * leases and broker.allows(stored, out, none_held):
            out, moved = out + 1, True
        if out and (not moved or dice.random() < 0.5):
            out, stored, moved = out - 1, stored + dice.choice((1, rows - 1, rows)), True
        if not moved or dice.random() < 0.3:
            count = due(stored, updates, ratio, starts)
            assert count or moved, f"deadlock at {stored} env steps, {updates} updates"
            updates += count
            broker.report(0, updates)
    assert updates >= 19 - 16


def test_the_least_slack_is_a_lease_each_or_a_segment_and_what_one_update_needs() -> None:
    assert least_slack(2, 2, 32, 0.25) == 128
    assert least_slack(1, 2, 32, 0.02) == 82
    assert least_slack(1, 1, 16, 0.03) == 50


def test_near_the_end_of_an_on_policy_run_segments_are_leased_until_the_last_batch_is_full() -> None:
    """8 rows a segment, 2 segments a batch, 96 of 96 env steps: the learner may need one more batch."""
    plan = bus_plan("async")
    run = replace(plan.config.run, total_env_steps=96)
    broker = LeaseLimiter(replace(plan, config=replace(plan.config, run=run)))
    broker.report(96, 0)
    for held, leased, allowed in ((0, 0, True), (1, 0, True), (0, 1, True), (1, 1, False), (2, 0, False)):
        assert broker.allows(0, leased, lambda held=held: held) == allowed, (held, leased)  # type: ignore[misc]


def test_an_on_policy_run_counts_segments_only_near_its_end() -> None:
    """The count is as expensive as all else of a lease: it took 13 % of the segments per second."""
    plan = bus_plan("async")
    run = replace(plan.config.run, total_env_steps=10_000)
    broker = LeaseLimiter(replace(plan, config=replace(plan.config, run=run)))

    def count_held() -> int:
        raise AssertionError("the held segments were counted")

    assert broker.allows(0, 1, count_held)
    broker.report(9_999, 0)
    with pytest.raises(AssertionError):
        broker.allows(0, 1, count_held)


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("seed", range(30))
def test_an_on_policy_run_ends_with_little_that_no_update_has_used(seed: int, kept: int) -> None:
    """Segments have fewer valid rows than fit, and the learner may go back to a full checkpoint.

    Replay holds `kept` of those that were used.
    """
    dice = random.Random(seed)
    batch, rows, leases = dice.choice((1, 2, 4)), dice.choice((1, 16, 100)), dice.choice((1, 2, 6))
    total, slots = dice.choice((1, 50, 1000)), kept + leases + 2 * batch
    plan = bus_plan("async", workers=1, vector_envs=1, leases=leases)
    env, run = EnvSection(num_envs=1, segment_steps=rows), replace(plan.config.run, total_env_steps=total)
    config = replace(plan.config, env=env, run=run)
    broker = LeaseLimiter(replace(plan, config=config, batch_segments=batch, slots=slots, held_segments=kept))
    held, out, trained, used, deaths = list[int](), 0, 0, 0, 3

    def count_held() -> int:
        return len(held) + min(used, kept)

    while trained < total:
        may_lease = out < leases and count_held() + out < slots and broker.allows(0, out, count_held)
        moves = [*["lease"] * may_lease, *["fill"] * (out > 0), *["train"] * (len(held) >= batch)]
        assert moves, f"deadlock: {len(held)} held, {trained} of {total}"
        move = dice.choice(moves)
        out += {"lease": 1, "fill": -1, "train": 0}[move]
        if move == "fill":
            held.append(dice.choice((1, rows)))
        if move == "train":
            trained, used, held = trained + sum(held[:batch]), used + batch, held[batch:]
            if deaths and dice.random() < 0.05:
                trained, deaths = 0, deaths - 1
            broker.report(trained, 0)
    assert len(held) + out <= 2 * batch + max(0, kept - used)
