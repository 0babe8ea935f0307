"""The learner process: version 0 goes out before torch is imported, then the loop of the mode runs."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from zmqrl.acting.spec import NetworkSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.make import make_algorithm
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.data_stores.base import DataStore, Full
from zmqrl.data_stores.make import make_store
from zmqrl.logs.events import EventPipe
from zmqrl.memory_backends.base import LedgerView, MemoryBackend, SegmentSource, TakenSegment
from zmqrl.memory_backends.inproc import InprocSource
from zmqrl.networks.initial import initial_weights
from zmqrl.plugins import load
from zmqrl.replay.build import build_replay
from zmqrl.replay.uniform import UniformReplay
from zmqrl.types import Weights
from zmqrl.workers.async_loop import run_async_off_policy, run_async_on_policy
from zmqrl.workers.beginning import begin
from zmqrl.workers.learning import Learning
from zmqrl.workers.replay_checkpoint import refill
from zmqrl.workers.single import single_stream
from zmqrl.workers.sync_loop import run_sync


def main(boot: Boot) -> int:
    """Train until a reason to stop. Exit code 0; errors go up to `entry`."""
    plan, events = boot.plan, EventPipe(boot.fds.get("events"))
    algorithm = make_algorithm(plan.config, plan.env)
    store = make_store(plan)
    source, ledger = _source(boot, store, events)
    beginning = begin(boot, store, source)
    full = beginning.full
    learning = Learning(plan, algorithm, store, source, events, beginning.counters, ledger)
    for damaged in store.passed_over():
        events.send("problem", cause=damaged, done=f"it is not loaded; {_gone_on_from(full)}")
    if boot.spawn > 0 or plan.resume:
        learning.fulls.hurry()
    learning.oldest_incarnation, learning.counted = beginning.oldest_incarnation, beginning.counted
    signal.signal(signal.SIGTERM, lambda *_: learning.end.request_stop())
    if isinstance(source, InprocSource):
        source.interrupted = lambda: learning.end.overdue is not None
    if full is not None:
        learning.restore_episodes(full)
    weights = _first_weights(learning, full)
    events.send("ready")
    learning.learner = _make_learner(algorithm, weights, plan)
    if full is not None:
        learning.restore(full)
    try:
        learning.ended(_run(learning, full, beginning.held))
    finally:
        source.close()
    return 0


def _gone_on_from(full: Full | None) -> str:
    return "the run begins anew" if full is None else f"the run goes on from FULL {full.version}"


def _run(learning: Learning, full: Full | None, held: Sequence[TakenSegment]) -> str:
    plan = learning.plan
    if plan.on_policy and plan.config.run.mode == "async":
        return run_async_on_policy(learning)
    replay: UniformReplay | None = None
    if not plan.on_policy:
        config, prioritised = plan.config, learning.algorithm.prioritised
        replay = build_replay(learning.source.columns, config.replay.capacity, config.run.seed, prioritised)
        if full is not None and held:
            refill(replay, full.arrays, held)
    if plan.config.run.mode == "async":
        assert replay is not None
        return run_async_off_policy(learning, replay)
    return run_sync(learning, replay)


def _first_weights(learning: Learning, full: Full | None) -> Weights:
    """The weights to start from, published, so that workers act while torch is still being imported."""
    algorithm = learning.algorithm
    if full is not None:
        names = tuple(name for name in full.arrays if name.startswith("weights/"))
        weights: Weights = {name.removeprefix("weights/"): full.arrays[name] for name in names}
    else:
        spec: NetworkSpec = algorithm.network()
        weights = {**initial_weights(spec, learning.config.run.seed), **algorithm.statistics()}
    notice = learning.save_version(weights)
    if learning.goal_reached() is None:  # else the run is over: nobody is to step for it
        learning.announce(notice)
    return weights


def _make_learner(algorithm: Algorithm, weights: Weights, plan: RunPlan) -> Any:
    import torch

    torch.set_num_threads(plan.config.learner.threads or 1)
    device = plan.config.learner.device
    if device == "auto":
        device = "cuda" if plan.config.network.kind == "cnn" and torch.cuda.is_available() else "cpu"
    return algorithm.learner(weights, device)


def _source(boot: Boot, store: DataStore, events: EventPipe) -> tuple[SegmentSource, LedgerView | None]:
    if boot.plan.config.run.mode == "single":
        return single_stream(boot, store, events)
    kind = boot.plan.config.memory_backend.kind
    source: SegmentSource = load(kind, "zmqrl.memory_backends", MemoryBackend).source(boot)
    return source, None
