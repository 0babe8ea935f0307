"""The message when the agent of the learner's host exited unexpectedly, which ends the run."""

from __future__ import annotations

from pathlib import Path

from zmqrl.config.hosts import is_remote
from zmqrl.config.plan import RunPlan
from zmqrl.launch.run_state import RunState
from zmqrl.logs.tail import tail_of
from zmqrl.supervision.process_table import cause_of
from zmqrl.views.problem import Problem


def lost_agent(state: RunState) -> Problem | None:
    """None while it runs, and when it ended in good order or reported its own fault."""
    if state.agent_exit is not None and state.cut_off is not None:
        return Problem(state.plan.config.learner.host, state.cut_off, "the learner was there: resume the run")
    if state.agent_exit is None or state.finished is not None or state.agent_fault is not None:
        return None
    host = state.plan.config.learner.host
    log = Path(state.plan.run_dir) / "logs" / f"{host}-agent-0.log"
    cause = f"the host agent of {host} exited unexpectedly: {_how_it_ended(state.plan, state.agent_exit)}"
    tail = tail_since(log, state.plan.started_at)
    ends = "its processes and the run end"
    return Problem(f"{host}/agent-0", cause, ends, log=str(log), log_tail=tail)


def _how_it_ended(plan: RunPlan, code: int) -> str:
    """Of the learner's host's agent. SSH has -1 for every signal, and for a connection that was lost."""
    host = plan.config.learner.host
    section = plan.config.hosts.get(host)
    if code == -1 and section is not None and is_remote(host, section):
        return "signal or lost connection"
    return cause_of(code)


def tail_since(log: Path, since: float) -> tuple[str, ...]:
    """The last lines of a log; none without an entry after unix time `since`: they are an earlier run's."""
    try:
        return tail_of(log) if log.stat().st_mtime >= since else ()
    except OSError:
        return ()
