"""`status.json`: the current state of the run, for `zmqrl status` from another shell."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from zmqrl.config.codec import to_json
from zmqrl.launch.run.bottleneck import find_bottleneck, relieved_workers, slowest_worker
from zmqrl.launch.run.host_records import HostRecord
from zmqrl.launch.run.state import RunState
from zmqrl.launch.summary import recovery_of

Phase: TypeAlias = Literal["starting", "running", "paused", "ending", "ended"]
RETURNS_SHOWN = 30
WORKER_FIELDS = (
    "host",
    "index",
    "state",
    "env_steps",
    "env_steps_per_s",
    "wait_fraction",
    "episodes",
    "restarts",
)
"""Fields of a process record that the row of a worker has."""


def status_of(state: RunState, now: float, wall_s: float) -> dict[str, Any]:
    """JSON data at unix time `now`, `wall_s` seconds after the start of the command."""
    done, eta_s = _progress(state, wall_s)
    run, late, problems = state.plan.config.run, slowest_worker(state), list(state.problems)[-5:]
    return {
        "run_id": state.plan.run_id,
        "run_dir": state.plan.run_dir,
        "name": run.name,
        "mode": run.mode,
        "written_at": now,
        "wall_s": round(wall_s, 1),
        "phase": _phase(state),
        "progress": round(done, 4),
        "eta_s": None if eta_s is None else round(eta_s, 1),
        "env_steps": state.env_steps,
        "total_env_steps": run.total_env_steps,
        "stop_at_return": run.stop_at_return,
        "metrics": state.metrics,
        "returns": list(state.returns)[-RETURNS_SHOWN:],
        "score": {} if state.score is None else to_json(state.score),
        "restarts": state.restarts,
        "bottleneck": find_bottleneck(state),
        "slowest": None if late is None else str(late),
        "relieved": relieved_workers(state),
        "ready_workers": state.ready_workers,
        "expected_workers": state.hosts.expected_workers,
        "checkpoint_every_s": run.checkpoint_every_s,
        "recovery": recovery_of(state.plan),
        "hosts": [host_status(row, now) for row in state.hosts],
        "refused": state.refused_messages,
        "workers": [
            {name: getattr(worker, name) for name in WORKER_FIELDS} for _, worker in sorted(state.hosts.workers.items())
        ],
        "problems": [str(problem) for problem in problems],
        "severities": [problem.severity for problem in problems],
    }


def host_status(row: HostRecord, now: float) -> dict[str, Any]:
    """One row of the table of hosts."""
    workers = row.worker_records
    return {
        "host": row.host,
        "state": "away" if row.away else "silent" if row.is_silent(now) else row.state,
        "workers": row.workers,
        "ready": sum(worker.is_ready for worker in workers),
        "env_steps_per_s": round(
            sum(worker.env_steps_per_s for worker in workers if worker.state not in ("ended", "lost")), 1
        ),
        "cpu": None if row.cpu is None else round(row.cpu, 2),
        "pss_mb": None if row.pss_mb is None else round(row.pss_mb, 1),
        "gpus": [msgspec.to_builtins(gpu) for gpu in row.gpus],
        "restarts": row.former_restarts + sum(worker.restarts for worker in workers),
        "ms": row.milliseconds,
        "store": row.sees_store,
        "last_s": None if row.received_at is None else round(max(0.0, now - row.received_at), 1),
        "cause": row.away or row.cause,
    }


def _phase(state: RunState) -> Phase:
    if state.agent_exit is not None:
        return "ended"
    if state.ended or state.failure:
        return "ending"
    if state.paused:
        return "paused"
    trains = state.all_ready or state.first_step_s is not None  # workers that are added later start while it trains
    return "running" if trains else "starting"


def _progress(state: RunState, wall_s: float) -> tuple[float, float | None]:
    """Share of the limit that ends the run first, and seconds to it at the mean speed since the start or the resume."""
    run, updates = state.plan.config.run, state.metrics.get("updates", 0)
    before = 0 if state.resumed_from is None else state.resumed_from.env_steps
    stored = state.env_steps - before
    limits: list[tuple[float | None, float]] = []
    if state.plan.config.mode.offline and run.stop_at_updates is not None:
        rate, left = state.metrics.get("updates_per_s", 0.0), max(0, run.stop_at_updates - updates)
        limits += [(left / rate, updates / run.stop_at_updates)] if rate else []
    if run.max_wall_s is not None:
        limits.append((max(0.0, run.max_wall_s - wall_s), wall_s / run.max_wall_s))
    if state.first_step_s is not None and stored > 0:
        step_s = (wall_s - state.first_step_s) / stored
        limits.append((step_s * max(0, run.total_env_steps - state.env_steps), state.env_steps / run.total_env_steps))
        if run.stop_at_updates is not None and updates > 0:
            update_s = step_s * state.env_steps / updates
            limits.append((update_s * max(0, run.stop_at_updates - updates), updates / run.stop_at_updates))
    eta_s, done = min(limits, default=(None, state.env_steps / run.total_env_steps))
    return min(1.0, done), eta_s
