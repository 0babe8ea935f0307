"""What an event of a host means for the run: the one place where events are dispatched, by their type. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from zmqrl.config.codec import replace
from zmqrl.launch import host_events, process_events, reports
from zmqrl.launch.actions import Action, Handler, KeepLog
from zmqrl.launch.run_state import RunState
from zmqrl.messages import agent
from zmqrl.orchestrators.base import HostEvent
from zmqrl.views.problem import Problem


def take(state: RunState, event: HostEvent) -> Sequence[Action]:
    """Take one event in. One of another type, or of a host or worker that is not part of the run, changes nothing."""
    record = state.hosts.get(event.host)
    if record is None:
        return ()
    record.received_at = event.at
    kind = type(event.event)
    is_unnamed = event.role is None and kind in process_events.HANDLERS
    if is_unnamed or not record.has_process(event.role, event.index):  # it was on its way when the worker was removed
        return ()
    handler = HANDLERS.get(kind)
    return () if handler is None else handler(event.event, event, state) or ()


def count_refused(state: RunState, where: str, reported: Mapping[str, int]) -> None:
    """Rejected messages, by reason: each reason is reported once per process; the counts are in the status."""
    before, counts = state.refused_by.get(where, Counter()), Counter(reported)
    state.refused_by[where] = counts
    new = {reason: count for reason, count in counts.items() if reason not in before}
    if new:
        state.note(reports.refused(where, new))


def _on_metrics(message: agent.Metrics, event: HostEvent, state: RunState) -> None:
    state.metrics.update(message.values)
    if state.has_begun:
        state.refused = None
    mean = message.values.get("train_return_mean_100")
    if mean is not None:
        state.returns.append(float(mean))


def _on_score(message: agent.Score, event: HostEvent, state: RunState) -> None:
    if state.score is None or not state.score.final:
        state.score = message


def _on_writing(message: agent.Writing, event: HostEvent, state: RunState) -> None:
    state.writing_reports += 1


def _on_resumed(message: agent.Resumed, event: HostEvent, state: RunState) -> None:
    state.resumed_from = message


def _on_ended(message: agent.Ended, event: HostEvent, state: RunState) -> None:
    state.ended, state.hosts.ending = message, True


def _on_failed(message: agent.RunFailed, event: HostEvent, state: RunState) -> None:
    if not state.is_of_learners_host(event):
        return
    last = f"{message.cause}\n{replace(state.problems[-1], is_repeated=False)}" if state.problems else message.cause
    state.fail(last, replaces=bool(state.problems))


def _on_finished(message: agent.Finished, event: HostEvent, state: RunState) -> None:
    if state.is_of_learners_host(event):
        state.finished = message
    state.count_peaks(message.peak_pss_mb)


def _on_problem(message: agent.ProblemReport, event: HostEvent, state: RunState) -> None:
    """Something failed that killed no process."""
    state.note(Problem(event.where, message.cause, message.done, log=reports.log_of(event.host, *event.process, state)))


def _on_warning(message: agent.Warned, event: HostEvent, state: RunState) -> None:
    state.note(Problem(event.host, message.text, "the run continues"))


def _on_refused(message: agent.Refused, event: HostEvent, state: RunState) -> None:
    count_refused(state, event.where, message.counts)


def _on_lines_refused(message: agent.LinesRefused, event: HostEvent, state: RunState) -> None:
    count_refused(state, f"the launcher, messages from {event.where}", message.counts)


def _on_log(message: agent.LogText, event: HostEvent, state: RunState) -> Sequence[Action]:
    return [KeepLog(message)]


HANDLERS: Mapping[type, Handler] = {
    **process_events.HANDLERS,
    **host_events.HANDLERS,
    agent.Metrics: _on_metrics,
    agent.Score: _on_score,
    agent.Writing: _on_writing,
    agent.Resumed: _on_resumed,
    agent.Ended: _on_ended,
    agent.RunFailed: _on_failed,
    agent.Finished: _on_finished,
    agent.ProblemReport: _on_problem,
    agent.Warned: _on_warning,
    agent.Refused: _on_refused,
    agent.LinesRefused: _on_lines_refused,
    agent.LogText: _on_log,
}
