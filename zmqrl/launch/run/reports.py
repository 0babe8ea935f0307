"""The sentences of problems that the launcher reports, made from its records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import RestartSection
from zmqrl.errors import ConfigError
from zmqrl.launch.run.bottleneck import Slowest, times
from zmqrl.launch.run.host_records import HostRecord, ProcessRecord
from zmqrl.launch.run.state import RunState
from zmqrl.messages.agent import Exited, LeaseLost, Restarting, RestartLimitReached, RunFailed, Warned
from zmqrl.messages.process import ProblemReport, WorkerRelieved
from zmqrl.orchestrators.base import HostEvent
from zmqrl.orchestrators.handshake import other_bits
from zmqrl.supervision.process_table import cause_of
from zmqrl.supervision.restarts import BAD_CONFIGURATION, without_numbers
from zmqrl.views.problem import Problem, counted
from zmqrl.wire.probe import FULL_PACKETS, MTU_FIX

LEFT = "it has left, or its workers failed; see the output of `zmqrl worker` there"
"""Cause stated for a host that joined by a connection file: its events do not come to the launcher."""
TRACEBACK = "Traceback (most recent call last)"
HANGING = {"slow": "makes no progress", "stalled": "makes no progress", "lost": "sends no heartbeats"}
"""Symptom of a process that has started, by the state in which it is judged to be."""

# processes


def log_of(host: str, role: str, index: int, state: RunState) -> str:
    """Path of the log in the run directory, where other hosts' logs arrive; the agent names it on its own host."""
    return str(Path(state.plan.run_dir) / "logs" / f"{host}-{role}-{index}.log")


def ended(process: ProcessRecord, action_taken: str, cause: str, state: RunState) -> Problem:
    """A process ended. `cause`: where its end was not reported."""
    died = process.last_exit
    if died is None:
        return Problem(str(process), cause, action_taken)
    is_removed = died.code == BAD_CONFIGURATION and not state.has_begun  # with the run directory of a refused run
    return Problem(
        where=str(process),
        cause=died.cause,
        action_taken=action_taken,
        detail=died.detail,
        log="" if is_removed else log_of(process.host, process.role, process.index, state),
        log_tail=tuple(died.log_tail),
        is_repeated=has_traceback(died) and without_numbers(died.cause) in state.tracebacks,
    )


def has_traceback(died: Exited) -> bool:
    """Whether the end of the log shows where an exception was raised."""
    return any(line.startswith(TRACEBACK) for line in died.log_tail)


def restarting(process: ProcessRecord, message: Restarting, limits: RestartSection) -> str:
    """Text about a restart; from the second one on with how many there were, as the process's agent counts them."""
    count, when = len(process.restarted_at), f"in {message.in_s:g} s" if message.in_s else "immediately"
    how_often = f" (restart {count} of at most {limits.max} within {limits.window_s:g} s)"
    return f"restarting {when}{'' if count < 2 and limits.max > 1 else how_often}"


def not_restarted(process: ProcessRecord, message: RestartLimitReached, state: RunState) -> str:
    """Why, and its effect on the run."""
    died, limits = process.last_exit, state.plan.config.restart
    why = f"restart limit reached ({limits.max} within {limits.window_s:g} s)"
    if died is not None and died.cause != message.cause and message.cause.startswith(died.cause):
        why = f"it raised the same exception {message.cause.removeprefix(died.cause).strip(' ()')}"
    elif died is not None and died.code == BAD_CONFIGURATION:
        why = f"exit code {BAD_CONFIGURATION} means invalid configuration"
    return f"not restarted: {why}; {_without(process, state)}"


def _without(process: ProcessRecord, state: RunState) -> str:
    if process.role == "evaluator":
        return "the run continues without evaluations"
    if process.role != "worker":
        return "the run ends"
    if state.hosts.remaining_workers:
        return f"its vector envs {_where_vector_envs_go(state)}"
    waits = "the run waits for the hosts that are to return"
    return f"no rollout worker remains; {waits if state.hosts.awaits_return else 'the run ends'}"


def _where_vector_envs_go(state: RunState) -> str:
    return "move to the other workers" if state.plan.config.mode.deterministic else "are removed"


def relieved(worker: ProcessRecord, message: WorkerRelieved) -> Problem:
    """Vector envs of a slow worker move to others."""
    cause = f"worker {worker.index} is {times(message.factor)} times slower than the others"
    moved = f"{message.before - message.after} of its {message.before} vector envs move to faster workers"
    return Problem(worker.host, cause, f"{moved}; the weights do not depend on it")


def faster_again(worker: ProcessRecord, message: WorkerRelieved) -> Problem:
    """Vector envs move back."""
    done = f"it has {message.after} vector envs now, before {message.before}"
    return Problem(worker.host, f"worker {worker.index} is faster again", done, severity="note")


def slow_worker(late: Slowest, state: RunState) -> Problem:
    """The other workers of a sync run wait for this one."""
    several = sum(record.workers > 0 for record in state.hosts) > 1
    others = "those of the other hosts" if several else "the others"
    cause = f"worker {late.worker} is {late.factor:.1f} times slower than {others}, which wait for it"
    fix = f"; zmqrl drain {late.host} moves its vector envs to the other hosts" if several else ""
    return Problem(late.host, cause, f"the run continues at the speed of this worker; check the load there{fix}")


# hosts


def lease_lost(lost: LeaseLost, plan: RunPlan) -> str:
    """Why an agent ended in order."""
    return f"no {lost.source} heartbeat for {_lease_limit(plan)}: the host agent ended"


def silent_host(plan: RunPlan) -> str:
    """Why the broker gave a host up."""
    return f"the broker received no message from it for {_lease_limit(plan)}"


def agent_exited(code: int | None) -> str:
    """How the agent of a host ended. `code`: None and -1, which SSH has for every signal, are not known."""
    return f"the host agent exited ({'exit unknown' if code is None or code == -1 else cause_of(code)})"


def address_changed(change: str) -> Problem:
    """The launcher's machine has another address."""
    return Problem("launcher", change, "hosts that are silent since are connected to again", severity="note")


def _lease_limit(plan: RunPlan) -> str:
    return f"limits.host_lease_s ({plan.config.limits.host_lease_s:g} s)"


def fix_of_unreachable(record: HostRecord, cause: str) -> str:
    """What to do where a host cannot connect to the broker."""
    if FULL_PACKETS in cause:
        return MTU_FIX
    if record.section.tunnel:
        return "its tunnel ends at this machine, which must reach that port: open it, or set learner.address"
    return "open that port there, set learner.address, or set `tunnel: true` for this host"


def lost_host(record: HostRecord, fix: str, state: RunState) -> Problem:
    """A host with workers that is not there, though it should be."""
    others = "no host with workers remains"
    if state.hosts.can_go_on and not state.hosts.remaining_workers:
        others = "no host with workers remains; the run waits for its return"
    elif state.hosts.unusable_others:
        others = "no other host can be used"
    elif state.hosts.can_go_on:
        others = f"the run continues without this host; its vector envs {_where_vector_envs_go(state)}"
    return Problem(record.host, record.cause, f"{fix}\n{others}" if fix else others, severity="error")


def store_not_shared(record: HostRecord, plan: RunPlan) -> Problem:
    """Weights travel over the bus."""
    cause = f"the store {plan.store_path} is not shared with the learner's host"
    return Problem(record.host, cause, "the broker sends the weights instead; mount it there for direct reads")


def differing_digests(digests: Mapping[str, str]) -> Problem | None:
    """Hosts on which acting computes other bits."""
    differ = other_bits(digests)
    done = "vector envs are spread evenly between these hosts, not by speed; the weights depend on this"
    return Problem("hosts", f"{differ}, by the processor or the version of numpy", done) if differ else None


def invited(host: str, path: Path) -> Problem:
    """A host that is waited for, and what its user has to do."""
    how = f"copy {path} to that host (its token admits one host, once), and run there"
    return Problem(host, "joins manually", f"{how}: zmqrl worker --connect {path.name}", severity="note")


def not_invited(record: HostRecord, error: str | None) -> tuple[str, str]:
    """Cause and fix of a host without a connection file."""
    return f"the connection file cannot be written: {error}", f"zmqrl scale {record.host}=N writes another"


def not_rejoined(record: HostRecord, error: ConfigError) -> Problem:
    """A lost host for whose workers the run has no room."""
    cause, done = f"cannot be connected to again: {error}", "the run continues without this host"
    return Problem(record.host, cause, done, severity="error")


def not_waited_for(record: HostRecord) -> Problem:
    """A host that is outside of its window at the start."""
    return Problem(record.host, record.away, "it is not waited for", severity="note")


def returned(record: HostRecord, away_s: float) -> Problem:
    """A lost host is back."""
    return Problem(record.host, f"was away for {away_s:.0f} s", _back(record), severity="note")


def presence_changed(record: HostRecord, reason: str, is_here: bool, had_workers: bool) -> Problem:
    """Report of workers that leave or return because of a window or of other users."""
    left = "its workers leave at the end of their segments" if had_workers else "it has no workers"
    return Problem(record.host, reason, _back(record) if is_here else left, severity="note")


def _back(record: HostRecord) -> str:
    return f"back with {counted(record.workers, 'worker')}"


def presence_unchanged(record: HostRecord, reason: str, error: ConfigError) -> Problem:
    """The run has no room for its workers."""
    return Problem(record.host, f"{reason}, but: {error}", "it is tried again")


# the run


def too_few(state: RunState, limit_s: float) -> Problem:
    """The run pauses: who is missing, and the workers that are not restarted."""
    hosts = [f"{record.host} is {record.state}" for record in state.hosts if record.workers and record.state != "ready"]
    workers = [f"{worker} failed" for worker in state.hosts.workers.values() if worker.state == "failed"]
    missing = ", ".join([*hosts, *workers])
    cause = f"{_ready(state)}, min_workers is {state.required_workers}{f': {missing}' if missing else ''}"
    action = f"the run is paused, for at most limits.too_few_s ({limit_s:g} s)"
    return Problem("run", cause, f"{action}; zmqrl scale HOST=N adds workers")


def enough_again(state: RunState, paused_s: float) -> Problem:
    """The pause is over."""
    return Problem("run", f"{_ready(state)} again after {paused_s:.0f} s", "the run continues", severity="note")


def _ready(state: RunState) -> str:
    workers = state.ready_workers
    return f"{counted(workers, 'worker')} {'is' if workers == 1 else 'are'} ready"


def over_wall_limit(max_wall_s: float, over_s: float) -> Problem:
    """The learner did not end the run at `run.max_wall_s`."""
    passed = f"run.max_wall_s ({max_wall_s:g} s) passed {over_s:.0f} s ago"
    return Problem("run", f"{passed}, and the learner did not end the run", "the run is stopped")


def unverified_end(cause: str, run_id: str) -> Problem:
    """The orchestrator failed to end the run."""
    fix = f"to end and verify what is left: zmqrl down {run_id}"
    return Problem("the end of the processes", cause, fix, severity="error")


def stalled(state: RunState, after_s: float) -> Problem:
    """The run stores nothing."""
    cause = f"no env step stored for limits.stalled_after_s ({after_s:g} s), at {state.env_steps:,}"
    return Problem("run", cause, f"{_waited_for(state)}; zmqrl stop ends the run with a checkpoint")


def _waited_for(state: RunState) -> str:
    """The processes and hosts that a run without progress may be waiting for."""
    learner = ProcessRecord(state.hosts.learner.host, "learner", 0)
    learner = state.hosts.process("learner", 0) or learner
    away = []
    for process in [*(worker for worker in state.hosts.workers.values() if worker.state != "ended"), learner]:
        is_ready = process.is_ready if process is learner else process.state == "ready"
        if not is_ready:
            away.append(f"{process} is {'not ready' if process is learner else process.state}")
        elif process.judged != "well":
            away.append(f"{process} {HANGING[process.judged]}")
    away += [
        f"host {record.host} is {record.state}"
        for record in state.hosts
        if record.state not in ("ready", "drained") or record.away
    ]
    return ", ".join(away) if away else "all processes are running and responsive; see zmqrl logs"


def failure(message: RunFailed, state: RunState) -> str:
    """Why the learner's host cannot continue the run: with the last problem, which is its cause."""
    if not state.problems:
        return message.cause
    return f"{message.cause}\n{replace(state.problems[-1], is_repeated=False)}"


def reported(message: ProblemReport, event: HostEvent, state: RunState) -> Problem:
    """Something failed that killed no process."""
    log = log_of(event.host, *event.process, state)
    return Problem(event.where, message.cause, message.done, log=log, severity=message.severity)


def warned(message: Warned, event: HostEvent) -> Problem:
    """What an agent found."""
    return Problem(event.host, message.text, "the run continues")


def refused(where: str, new: Mapping[str, int]) -> Problem:
    """Messages that were rejected, by reason."""
    counts = ", ".join(f"{count} x {reason}" for reason, count in new.items())
    return Problem(where, f"rejected {counts}", "counted; the run continues")
