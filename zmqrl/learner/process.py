"""The learner process: version 0 goes out before torch is imported, then the loop of the mode runs."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.bus_ends.zmq_learner import learner_ends
from zmqrl.config.plan import Boot
from zmqrl.data_stores.base import DataStore, few
from zmqrl.data_stores.make import make_store
from zmqrl.errors import ConfigError
from zmqrl.learner.async_loop import run_async_off_policy, run_async_on_policy
from zmqrl.learner.env_settings import EnvSettings
from zmqrl.learner.full_content import (
    changes_since,
    check_executor,
    load_learner,
    refill,
    stored_before,
    stored_counters,
    stored_weights,
)
from zmqrl.learner.offline_loop import loaded_replay, run_offline
from zmqrl.learner.restore import StartState, await_store, load_start_state, version_0, with_learner_only
from zmqrl.learner.session import Session, make_session
from zmqrl.learner.sync_loop import Collect, Learner, run_sync
from zmqrl.loading import loading
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import ProblemReport, Ready, Resumed
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.types import Weights

if TYPE_CHECKING:
    from zmqrl.rollout.in_process import InProcessWorker


def main(boot: Boot) -> int:
    """Train until a reason to end. Exit code 0; errors go up to `entry`."""
    plan, events = boot.plan, EventPipe(boot.fds.get("events"))
    algorithm, store = make_algorithm(plan.config, plan.env), make_store(plan)
    worker = _worker_here(boot, store, events) if plan.config.mode.in_process else None
    ends = learner_ends(boot) if worker is None else worker.ends
    await_store(boot, store, ends.channel, events)
    start = load_start_state(boot, algorithm, store, ends)
    if start.full is not None:
        check_executor(start.full, plan.config.learner.executor)
    loaded = loaded_replay(plan, algorithm, start.full)
    session = make_session(plan, algorithm, store, ends, events, start, boot.spawn, loaded)
    _report_start(boot, store, events, start)
    if boot.spawn > 0 or plan.resume:
        session.checkpoints.schedule_now()
    signal.signal(signal.SIGTERM, lambda *_: session.end.request_stop())
    weights = _publish_first(session, algorithm, start)
    context = _context(algorithm, session, weights, events)
    _note_device(context.device, session, events, start)
    learner = _make_learner(algorithm, context, plan.config.learner.threads or 1)
    if start.full is not None:
        load_learner(learner, start.full)
    events.send(Ready())
    replay = _make_replay(session, algorithm, start) if plan.held_segments else None
    if isinstance(learner, OnPolicyLearner):
        learner.replay = replay
    del start, weights  # with replay the file is large
    try:
        collect = None if worker is None else EnvSettings(worker.collect, events).collect
        reason = session.end.goal_reached(session.progress) or _run(session, learner, replay, collect)
        if session.recording is not None:
            session.recording.finish()
        session.reporter.ended(reason, learner, None if worker is None else worker.ledger())
        store.finish()
    finally:
        ends.close()
    return 0


def _worker_here(boot: Boot, store: DataStore, events: EventPipe) -> InProcessWorker:
    from zmqrl.rollout.in_process import InProcessWorker  # gymnasium, which no other learner imports

    return InProcessWorker(boot, store, events)


def _run(session: Session, learner: Learner, replay: SegmentReplay | None, collect: Collect | None) -> str:
    if session.plan.config.mode.offline:
        assert session.loaded is not None and not isinstance(learner, OnPolicyLearner)
        return run_offline(session, learner, session.loaded)
    if session.plan.config.mode.deterministic:
        return run_sync(session, learner, replay, collect)
    if isinstance(learner, OnPolicyLearner):
        return run_async_on_policy(session, learner, replay)
    assert replay is not None
    return run_async_off_policy(session, learner, replay)


def _report_start(boot: Boot, store: DataStore, events: EventPipe, start: StartState) -> None:
    if boot.plan.resume and boot.spawn == 0:
        _report_resumed(events, start)
    damaged = store.passed_over()
    if damaged:
        events.send(ProblemReport(few(damaged), f"not loaded; {_description(start)}"))
    if (start.version or start.passed_over) is not None and not damaged:
        events.send(ProblemReport("no full checkpoint was written since the start", _description(start)))


def _report_resumed(events: EventPipe, start: StartState) -> None:
    """What the summary names as `resumed_from`; FULL of 0.1 and a published version have no time."""
    full, version = start.full, start.version
    if full is not None:
        written_at: Any = full.meta.get("written_at")
        events.send(Resumed(str(full.version), stored_counters(full)["env_steps"], written_at))
    elif version is not None:
        events.send(Resumed(str(version.version), version.env_steps, None))


def _description(start: StartState) -> str:
    version, passed_over = start.version, start.passed_over
    if version is not None:
        from_scratch = ", ".join(("optimiser", *version.missing))
        return f"the run continues from the weights of version {version.version}; started from scratch: {from_scratch}"
    full = start.full
    at = "the run starts from scratch" if full is None else f"the run continues from full checkpoint {full.version}"
    if passed_over is not None:
        at += f", because version {passed_over.version} lacks {', '.join(passed_over.missing)}"
    return at


def _publish_first(session: Session, algorithm: Algorithm, start: StartState) -> Weights:
    """The weights to start from; what workers need of them is published, while torch is still being imported.

    Not announced when the FULL begun from is the last of the run: the learner before ended between it and its report.
    """
    if start.full is not None:
        weights = stored_weights(start.full)
    elif start.version is not None:
        weights = start.version.weights
    else:
        weights = version_0(session.plan, algorithm)
    before = None if start.full is None else stored_before(start.full)
    if before is not None:
        session.publisher.save_before(before)
    spec = algorithm.network()
    notice = session.publisher.save({n: array for n, array in weights.items() if not spec.is_learner_only(n)})
    session.checkpoints.make_start_durable(start.full, weights)
    if session.end.goal_reached(session.progress) is None:
        session.publisher.announce(notice)
    return weights


def _make_replay(session: Session, algorithm: Algorithm, start: StartState) -> SegmentReplay:
    plan, observation = session.plan, algorithm.env.observation
    columns, seed, spec = session.source.columns, plan.config.run.seed, algorithm.replay()
    replay = SegmentReplay(columns, plan.held_segments, seed, spec, observation, plan.config.continues_episodes)
    if start.full is not None and start.held:
        refill(replay, start.full.arrays, start.held)
    return replay


def _context(algorithm: Algorithm, session: Session, weights: Weights, events: EventPipe) -> LearnerContext:
    plan = session.plan
    device = plan.config.learner.device
    if device == "auto":
        device = "cuda" if plan.is_gpu_of_use and _has_cuda() else "cpu"
        if plan.config.network.kind != "mlp":  # else the start line in the log has it
            print(f"learner: device {device}", file=sys.stderr, flush=True)
    if device.startswith("cuda") and not _has_cuda():
        fix = "check it with nvidia-smi, install the build of torch for its driver, or write cpu"
        raise ConfigError("torch finds no GPU", key=("learner", "device"), value=device, fix=fix)
    return LearnerContext(
        weights=with_learner_only(algorithm, plan, weights),
        device=device,
        seed=plan.config.run.seed,
        schedule_env_steps=session.progress.counters.schedule_env_steps,
        replay=None if plan.on_policy else plan.config.replay,
        executor=plan.config.learner.executor,
        precision=plan.config.learner.precision,
        report=lambda cause, done: events.send(ProblemReport(cause, done)),
    )


def _note_device(device: str, session: Session, events: EventPipe, start: StartState) -> None:
    """Store what the learner computes on; reported when a learner before it computed on or with something else."""
    session.checkpoints.device = name = "cpu" if device == "cpu" else _gpu_name(device)
    changes = None if start.full is None else changes_since(start.full, session.plan.config.learner, name)
    if changes is not None:
        events.send(changes)


def _make_learner(algorithm: Algorithm, context: LearnerContext, threads: int) -> Learner:
    """Built with one thread, it trains with `threads`.

    An algorithm without torch is not made to import it: that takes more than a second.
    """
    with loading():
        learner = algorithm.learner(context)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    return learner


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _gpu_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device)
