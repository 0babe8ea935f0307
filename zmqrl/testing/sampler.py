"""What a sampler promises. A maker returns a new `ReplaySpec` that selects it, always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from zmqrl.random_streams import stream
from zmqrl.replay.base import AnySample, SegmentMeta
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import ReplaySpec
from zmqrl.testing.expect import checks_of, is_same
from zmqrl.types import Array, SegmentId, SlotRef, Version

SEED, SLOTS, PLACES, ENVS, DRAWN = 1, 9, 4, 2, 64

SamplerMaker: TypeAlias = Callable[[], ReplaySpec]
"""For example `lambda: ReplaySpec(sampler="my_lab.samplers:Mine")`."""


def valid_items_are_drawn(make: SamplerMaker) -> None:
    """Each drawn item is a held one that may be drawn; weights are finite, and none is negative."""
    replay, spec = _replay(make), make()
    replay.anneal(0.7)
    for slot in range(SLOTS):
        _add(replay, [slot])
        sample = _sample(replay, spec, slot)
        _check(replay, sample)
        replay.set_priorities(sample, stream(SEED, "priorities", index=slot).random(DRAWN))


def released_segments_are_never_drawn(make: SamplerMaker) -> None:
    """Also not after late priorities, and not when few segments are left."""
    replay, spec = _replay(make), make()
    _add(replay, range(PLACES))
    late = _sample(replay, spec, 0)
    while replay.segments > 1:
        replay.release_oldest()
        replay.set_priorities(late, np.full(DRAWN, 1e6))
        _check(replay, _sample(replay, spec, replay.segments))
    _add(replay, range(PLACES, SLOTS))
    replay.set_priorities(late, np.full(DRAWN, 1e6))
    _check(replay, _sample(replay, spec, SLOTS))


def draws_are_deterministic(make: SamplerMaker) -> None:
    """Two samplers with the same history draw the same items and weights, bit for bit."""
    samples = []
    for _ in range(2):
        replay, spec = _replay(make), make()
        _add(replay, range(6))
        samples.append(_train(replay, spec, range(4)))
    _same(samples[0], samples[1], "two samplers with the same history")


def a_restored_sampler_continues_bit_for_bit(make: SamplerMaker) -> None:
    """`load_state` of `state`, then the held segments are added: the next draws and the next state are the same."""
    straight, resumed, spec = _replay(make), _replay(make), make()
    _add(straight, range(6))
    _train(straight, spec, range(3))
    saved = {name: np.array(array) for name, array in straight.state().items()}
    resumed.load_state(dict(reversed(saved.items())))
    _add(resumed, range(6 - PLACES, 6))
    for replay in (straight, resumed):
        _add(replay, [6])
    _same(_train(straight, spec, range(3, 6)), _train(resumed, spec, range(3, 6)), "after a resume")
    is_same(straight.state(), resumed.state(), "state after a resume")


def _columns(spec: ReplaySpec) -> dict[str, Array]:
    """Slots of an env of noise with NEXT_STEP autoreset."""
    steps = spec.burn_in + spec.length + 2 * spec.every if spec.length else max(8, spec.n_step)
    rng, lead = stream(SEED, "testing"), (SLOTS, steps, ENVS)
    ended = rng.random(lead) < 0.2
    valid = np.ones(lead, dtype=bool)
    for t in range(1, steps):
        valid[:, t] = ~ended[:, t - 1]
        ended[:, t] &= valid[:, t]
    columns: dict[str, Array] = {
        "obs": rng.normal(size=(SLOTS, steps + 1, ENVS, 3)).astype(np.float32),
        "action": rng.integers(0, 3, lead),
        "reward": rng.normal(size=lead).astype(np.float32),
        "terminated": ended,
        "truncated": np.zeros_like(ended),
        "valid": valid,
    }
    if spec.first_priority is not None:
        columns[spec.first_priority] = rng.normal(size=lead).astype(np.float32)
    return columns


def _replay(make: SamplerMaker) -> SegmentReplay:
    spec = make()
    return SegmentReplay(_columns(spec), PLACES, SEED, spec)


def _add(replay: SegmentReplay, slots: Iterable[int]) -> None:
    for slot in slots:
        replay.add(SlotRef(slot, 1), SegmentMeta(SegmentId(0, 0, slot), Version(0, slot), 1))


def _sample(replay: SegmentReplay, spec: ReplaySpec, key: int) -> AnySample:
    return replay.sample_sequences(DRAWN, key) if spec.length else replay.sample(DRAWN, spec.n_step, 0.9, key)


def _check(replay: SegmentReplay, sample: AnySample) -> None:
    wrong = sample.rows[~replay.may_be_drawn(sample.rows)]
    assert not len(wrong), f"items that may not be drawn: {wrong[:5]}"
    assert np.isfinite(sample.weight).all() and (sample.weight >= 0).all(), f"weights: {sample.weight}"


def _train(replay: SegmentReplay, spec: ReplaySpec, keys: Iterable[int]) -> list[Array]:
    drawn = []
    for key in keys:
        sample = _sample(replay, spec, key)
        replay.set_priorities(sample, stream(SEED, "priorities", index=key).random(DRAWN))
        drawn += [sample.rows, sample.weight]
    return drawn


def _same(one: list[Array], other: list[Array], what: str) -> None:
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)), f"{what}: other draws"


SAMPLER = checks_of(__name__)
