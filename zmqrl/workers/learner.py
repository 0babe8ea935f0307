"""The learner process: version 0 goes out before torch is imported, then the loop of the mode runs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zmqrl.acting.spec import NetworkSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.make import make_algorithm
from zmqrl.config.plan import INITIAL, Boot, RunPlan
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore, Full, few
from zmqrl.data_stores.make import make_store
from zmqrl.errors import ConfigError, StoreError
from zmqrl.loading import loading
from zmqrl.logs.events import EventPipe
from zmqrl.memory_backends.base import LearnerEnds, LedgerView, TakenSegment
from zmqrl.memory_backends.inproc import InprocSource
from zmqrl.memory_backends.make import make_backend
from zmqrl.messages import agent
from zmqrl.networks.initial import initial_weights
from zmqrl.replay.prioritised import build_replay
from zmqrl.replay.uniform import UniformReplay
from zmqrl.types import Weights
from zmqrl.workers.async_loop import run_async_off_policy, run_async_on_policy
from zmqrl.workers.beginning import Beginning, await_store, begin
from zmqrl.workers.learning import Learning
from zmqrl.workers.replay_checkpoint import refill
from zmqrl.workers.saving import Saving
from zmqrl.workers.single import single_stream
from zmqrl.workers.sync_loop import run_sync


def main(boot: Boot) -> int:
    """Train until a reason to stop. Exit code 0; errors go up to `entry`."""
    plan, events = boot.plan, EventPipe(boot.fds.get("events"))
    algorithm = make_algorithm(plan.config, plan.env)
    store = make_store(plan)
    ends, ledger = _ends(boot, store, events)
    limits, wait_s = plan.config.limits, plan.config.store.wait_s
    await_store(boot, store, ends.channel, Saving(events, wait_s, limits.grace_s / 2, lambda: False))
    beginning = begin(boot, store, ends)
    full = beginning.full
    learning = Learning(plan, algorithm, store, ends, events, beginning.counters, ledger)
    if plan.resume and boot.spawn == 0:
        _tell_resumed(events, beginning)
    damaged = store.passed_over()
    if damaged:
        events.send(agent.ProblemReport(few(damaged), f"not loaded; {_start_of(beginning)}"))
    if beginning.version is not None and not damaged:
        events.send(agent.ProblemReport("no full checkpoint was written since the start", _start_of(beginning)))
    if boot.spawn > 0 or plan.resume:
        learning.fulls.hurry()
    learning.oldest_incarnation, learning.counted = beginning.oldest_incarnation, beginning.counted
    signal.signal(signal.SIGTERM, lambda *_: learning.end.request_stop())
    if isinstance(ends.source, InprocSource):
        ends.source.interrupted = lambda: learning.end.overdue is not None
    if full is not None:
        learning.restore_episodes(full)
    weights = _first_weights(learning, beginning)
    events.send(agent.Ready())
    learning.learner = _make_learner(algorithm, weights, plan)
    if full is not None:
        learning.restore_learner(full)
    replay = _replay(learning, full, beginning.held)
    del beginning, full, weights  # with replay the file is large
    try:
        learning.ended(learning.goal_reached() or _run(learning, replay))
        store.finish()
    finally:
        ends.close()
    return 0


def _tell_resumed(events: EventPipe, beginning: Beginning) -> None:
    """What the summary names as `resumed_from`; FULL of 0.1 and a published version have no time."""
    full, version = beginning.full, beginning.version
    if full is not None:
        counters: Any = full.meta["counters"]
        written_at: Any = full.meta.get("written_at")
        events.send(agent.Resumed(str(full.version), counters["env_steps"], written_at))
    elif version is not None:
        events.send(agent.Resumed(str(version.version), version.env_steps, None))


def _start_of(beginning: Beginning) -> str:
    if beginning.full is not None:
        return f"the run continues from full checkpoint {beginning.full.version}"
    if beginning.version is not None:
        return f"the run continues from the weights of version {beginning.version.version}, with a new optimiser state"
    return "the run starts from scratch"


def _replay(learning: Learning, full: Full | None, held: Sequence[TakenSegment]) -> UniformReplay | None:
    """The replay of an off-policy run, with the segments of FULL."""
    if learning.plan.on_policy:
        return None
    config, prioritised = learning.config, learning.algorithm.prioritised
    replay = build_replay(learning.source.columns, config.replay.capacity, config.run.seed, prioritised)
    if full is not None and held:
        refill(replay, full.arrays, held)
    return replay


def _run(learning: Learning, replay: UniformReplay | None) -> str:
    if learning.config.run.mode != "async":
        return run_sync(learning, replay)
    if replay is None:
        return run_async_on_policy(learning)
    return run_async_off_policy(learning, replay)


def _first_weights(learning: Learning, beginning: Beginning) -> Weights:
    """The weights to start from, published, so that workers act while torch is still being imported.

    Not announced when the FULL begun from is the last of the run: the learner before ended between it and its report.
    """
    algorithm, full = learning.algorithm, beginning.full
    if full is not None:
        names = tuple(name for name in full.arrays if name.startswith("weights/"))
        weights: Weights = {name.removeprefix("weights/"): full.arrays[name] for name in names}
    elif beginning.version is not None:
        weights = beginning.version.weights
    else:
        weights = _version_0(learning.plan, algorithm)
    notice = learning.save_version(weights)
    learning.make_start_durable(full, weights)
    if learning.goal_reached() is None:
        learning.announce(notice)
    return weights


def _version_0(plan: RunPlan, algorithm: Algorithm) -> Weights:
    """Random, or as `run.init_from` names them: the launcher has put those into the run directory and checked them."""
    spec: NetworkSpec = algorithm.network()
    drawn = {**initial_weights(spec, plan.config.run.seed), **algorithm.statistics()}
    if plan.config.run.init_from is None:
        return drawn
    path = Path(plan.run_dir, INITIAL)
    try:
        content = path.read_bytes()
        tensors.verify(content)
    except (OSError, StoreError) as error:
        raise ConfigError(f"run.init_from: {path} cannot be loaded: {error}; start a new run") from error
    return {**drawn, **tensors.parse(content)[0]}


def _make_learner(algorithm: Algorithm, weights: Weights, plan: RunPlan) -> Any:
    """An algorithm without torch is not made to import it: that takes more than a second."""
    device, threads = plan.config.learner.device, plan.config.learner.threads or 1
    if device == "auto":
        device = "cuda" if plan.config.network.kind == "cnn" and _has_cuda() else "cpu"
    _set_torch_threads(threads)  # torch may be there already: what `learner` computes depends on it
    with loading():
        learner = algorithm.learner(weights, device)
    _set_torch_threads(threads)  # imported just now, it has begun with OMP_NUM_THREADS, which is the same
    return learner


def _set_torch_threads(threads: int) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _ends(boot: Boot, store: DataStore, events: EventPipe) -> tuple[LearnerEnds, LedgerView | None]:
    if boot.plan.config.run.mode == "single":
        return single_stream(boot, store, events)
    return make_backend(boot.plan).learner(boot), None
