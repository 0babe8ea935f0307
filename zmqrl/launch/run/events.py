"""What an event of a host means: the one place where events are dispatched, by their type. Pure.

A handler changes the record of a process or the facts of the run; those of hosts are in `host_events`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from zmqrl.config.codec import replace
from zmqrl.launch.run import host_events, reports
from zmqrl.launch.run.actions import Action
from zmqrl.launch.run.host_events import Handler
from zmqrl.launch.run.host_records import ProcessRecord, Relieved
from zmqrl.launch.run.state import UNREPORTED, RunState
from zmqrl.messages import agent, orchestrator, process
from zmqrl.orchestrators.base import HostEvent
from zmqrl.supervision.restarts import BAD_CONFIGURATION, without_numbers
from zmqrl.types import Severity
from zmqrl.wire.admission import NO_HANDSHAKE


def take(state: RunState, event: HostEvent) -> Sequence[Action]:
    """Take one event in. One of another type, or of a host or worker that is not part of the run, changes nothing."""
    record = state.hosts.get(event.host)
    if record is None:
        return ()
    record.received_at = event.at
    kind = type(event.event)
    is_unnamed = event.role is None and kind in OF_PROCESSES
    if is_unnamed or not record.has_process(event.role, event.index):  # it was on its way when the worker was removed
        return ()
    handler = HANDLERS.get(kind)
    return () if handler is None else handler(event.event, event, state) or ()


def count_refused(state: RunState, where: str, reported: Mapping[str, int]) -> None:
    """Rejected messages, by reason: each reason is reported once per process; the counts are in the status.

    A handshake that was not completed is counted only: a busy machine, or a port scanner, rejects nothing.
    """
    before, counts = state.refused_by.get(where, Counter()), Counter(reported)
    state.refused_by[where] = counts
    new = {reason: count for reason, count in counts.items() if reason not in before and reason != NO_HANDSHAKE}
    if new:
        state.note(reports.refused(where, new))


# processes


def _on_started(message: agent.Started, event: HostEvent, state: RunState) -> None:
    record = state.hosts[event.host].record_of(event)
    if record.role == "broker":  # it begins to judge
        for judged in state.hosts.processes:
            judged.judged = "well"
    if not _is_lost(record, state):
        record.spawn, record.judged, record.state = message.spawn, "well", "starting"


def _on_ready(message: process.Ready, event: HostEvent, state: RunState) -> None:
    record = state.hosts[event.host].record_of(event)
    if not _is_lost(record, state):
        record.state, record.is_ready = "ready", True


def _is_lost(record: ProcessRecord, state: RunState) -> bool:
    """Whether its message was on its way when its host was lost: the next agent has other processes."""
    return record.state == "lost" or state.hosts[record.host].is_gone


def _on_first_step(message: process.FirstStep, event: HostEvent, state: RunState) -> None:
    if state.first_step_s is None:
        state.first_step_s = state.wall_s


def _on_worker_rates(message: process.WorkerRates, event: HostEvent, state: RunState) -> None:
    record = state.hosts[event.host].record_of(event)
    record.env_steps, record.env_steps_per_s = message.env_steps, message.env_steps_per_s
    record.wait_fraction, record.episodes = message.wait_fraction, message.episodes


def _on_worker_state(message: process.WorkerState, event: HostEvent, state: RunState) -> None:
    record = state.hosts.process(message.role, message.index)
    if record is not None and message.spawn >= record.spawn:
        record.spawn, record.judged = message.spawn, message.state


def _on_relieved(message: process.WorkerRelieved, event: HostEvent, state: RunState) -> None:
    """The broker placed vector envs by the speed of the workers."""
    worker = state.hosts.process("worker", message.worker)
    if worker is None:
        return
    is_slower = message.before >= message.after
    worker.relieved = Relieved(message.factor, message.after) if is_slower else None
    state.note(reports.relieved(worker, message) if is_slower else reports.faster_again(worker, message))


def _on_exited(message: agent.Exited, event: HostEvent, state: RunState) -> None:
    record = state.hosts[event.host].record_of(event)
    record.state = "ended" if message.expected else "down"
    crashed = record.role == "learner" and message.code not in (0, None)
    if message.expected and not crashed:
        record.is_ready = record.is_ready and (record.role != "worker" or state.ended is not None)
        return
    record.is_ready, record.last_exit = False, message
    if message.code == BAD_CONFIGURATION and (crashed or not state.has_begun):
        state.refused = state.refused or message.cause
    if message.expected:
        _note(state, record, "the run ends without a final checkpoint")
        state.fail(f"{record}: {message.cause}")


def _on_restarting(message: agent.Restarting, event: HostEvent, state: RunState) -> None:
    record, window_s = state.hosts[event.host].record_of(event), state.plan.config.restart.window_s
    record.restarts += 1
    record.restarted_at = [at for at in record.restarted_at if event.at - at < window_s] + [event.at]
    state.count_restart(record)
    _note(state, record, reports.restarting(record, message, state.plan.config.restart), severity="warning")


def _on_restart_limit_reached(message: agent.RestartLimitReached, event: HostEvent, state: RunState) -> None:
    record = state.hosts[event.host].record_of(event)
    record.state = "failed"
    if record.role == "worker":
        state.last_failed_worker = f"{record}: {message.cause}"
    _note(state, record, reports.not_restarted(record, message, state), message.cause)


def _note(
    state: RunState, record: ProcessRecord, action: str, cause: str = UNREPORTED, severity: Severity = "error"
) -> None:
    """`cause`: of a process whose end was not reported."""
    state.note(replace(reports.ended(record, action, cause, state), severity=severity))
    if record.last_exit is not None and reports.has_traceback(record.last_exit):
        state.tracebacks.add(without_numbers(record.last_exit.cause))


# the run


def _on_metrics(message: process.Metrics, event: HostEvent, state: RunState) -> None:
    state.metrics.update(message.values)
    if state.has_begun:
        state.refused = None
    mean = message.values.get("train_return_mean_100")
    if mean is not None:
        state.returns.append(float(mean))


def _on_score(message: process.VersionScore, event: HostEvent, state: RunState) -> None:
    if state.score is None or not state.score.final:
        state.score = message


def _on_writing(message: process.Writing, event: HostEvent, state: RunState) -> None:
    state.writing_reports += 1


def _on_resumed(message: process.Resumed, event: HostEvent, state: RunState) -> None:
    state.resumed_from = message


def _on_ended(message: process.LearnerEnded, event: HostEvent, state: RunState) -> None:
    state.ended, state.hosts.ending = message, True


def _on_failed(message: agent.RunFailed, event: HostEvent, state: RunState) -> None:
    if not state.is_of_learners_host(event):
        return
    state.fail(reports.failure(message, state), replaces=bool(state.problems))


def _on_finished(message: agent.HostFinished, event: HostEvent, state: RunState) -> None:
    if state.is_of_learners_host(event):
        state.finished = message
    state.count_peaks(message.peak_pss_mb)


def _on_problem(message: process.ProblemReport, event: HostEvent, state: RunState) -> None:
    """Something failed that killed no process."""
    state.note(reports.reported(message, event, state))


def _on_warning(message: agent.Warned, event: HostEvent, state: RunState) -> None:
    state.note(reports.warned(message, event))


def _on_refused(message: process.MessagesRefused, event: HostEvent, state: RunState) -> None:
    count_refused(state, event.where, message.counts)


def _on_lines_refused(message: orchestrator.LinesRefused, event: HostEvent, state: RunState) -> None:
    count_refused(state, f"the launcher, messages from {event.where}", message.counts)


OF_PROCESSES: Mapping[type, Handler] = {
    agent.Started: _on_started,
    process.Ready: _on_ready,
    process.FirstStep: _on_first_step,
    process.WorkerRates: _on_worker_rates,
    process.WorkerState: _on_worker_state,
    process.WorkerRelieved: _on_relieved,
    agent.Exited: _on_exited,
    agent.Restarting: _on_restarting,
    agent.RestartLimitReached: _on_restart_limit_reached,
}
"""Events that name their process."""
HANDLERS: Mapping[type, Handler] = {
    **OF_PROCESSES,
    **host_events.HANDLERS,
    process.Metrics: _on_metrics,
    process.VersionScore: _on_score,
    process.Writing: _on_writing,
    process.Resumed: _on_resumed,
    process.LearnerEnded: _on_ended,
    agent.RunFailed: _on_failed,
    agent.HostFinished: _on_finished,
    process.ProblemReport: _on_problem,
    agent.Warned: _on_warning,
    process.MessagesRefused: _on_refused,
    orchestrator.LinesRefused: _on_lines_refused,
}
