"""What events mean for one process: each changes the record of the process. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.launch import reports
from zmqrl.launch.actions import Handler
from zmqrl.launch.process_records import ProcessRecord, Relieved
from zmqrl.launch.run_state import UNREPORTED, RunState
from zmqrl.messages import agent
from zmqrl.orchestrators.base import HostEvent
from zmqrl.supervision.restarts import BAD_CONFIGURATION, without_numbers


def _on_started(message: agent.Started, event: HostEvent, state: RunState) -> None:
    process = state.hosts[event.host].record_of(event)
    if process.role == "broker":  # it begins to judge
        for judged in state.hosts.processes:
            judged.judged = "well"
    if not _is_lost(process, state):
        process.spawn, process.judged, process.state = message.spawn, "well", "starting"


def _on_ready(message: agent.Ready, event: HostEvent, state: RunState) -> None:
    process = state.hosts[event.host].record_of(event)
    if not _is_lost(process, state):
        process.state, process.is_ready = "ready", True


def _is_lost(process: ProcessRecord, state: RunState) -> bool:
    """Whether its message was on its way when its host was lost: the next agent has other processes."""
    return process.state == "lost" or state.hosts[process.host].is_gone


def _on_first_step(message: agent.FirstStep, event: HostEvent, state: RunState) -> None:
    if state.first_step_s is None:
        state.first_step_s = state.wall_s


def _on_worker_rates(message: agent.WorkerRates, event: HostEvent, state: RunState) -> None:
    process = state.hosts[event.host].record_of(event)
    process.env_steps, process.env_steps_per_s = message.env_steps, message.env_steps_per_s
    process.wait_fraction, process.episodes = message.wait_fraction, message.episodes


def _on_worker_state(message: agent.WorkerState, event: HostEvent, state: RunState) -> None:
    process = state.hosts.process(message.role, message.index)
    if process is not None and message.spawn >= process.spawn:
        process.spawn, process.judged = message.spawn, message.state


def _on_relieved(message: agent.Relieved, event: HostEvent, state: RunState) -> None:
    """The broker placed vector envs by the speed of the workers."""
    worker = state.hosts.process("worker", message.worker)
    if worker is None:
        return
    is_slower = message.before >= message.after
    worker.relieved = Relieved(message.factor, message.after) if is_slower else None
    state.note(reports.relieved(worker, message) if is_slower else reports.faster_again(worker, message))


def _on_exited(message: agent.Exited, event: HostEvent, state: RunState) -> None:
    process = state.hosts[event.host].record_of(event)
    process.state = "ended" if message.expected else "down"
    crashed = process.role == "learner" and message.code not in (0, None)
    if message.expected and not crashed:
        process.is_ready = process.is_ready and (process.role != "worker" or state.ended is not None)
        return
    process.is_ready, process.last_exit = False, message
    if message.code == BAD_CONFIGURATION and (crashed or not state.has_begun):
        state.refused = state.refused or message.cause
    if message.expected:
        _note(state, process, "the run ends without a final checkpoint")
        state.fail(f"{process}: {message.cause}")


def _on_restarting(message: agent.Restarting, event: HostEvent, state: RunState) -> None:
    process, window_s = state.hosts[event.host].record_of(event), state.plan.config.restart.window_s
    process.restarts += 1
    process.restarted_at = [at for at in process.restarted_at if event.at - at < window_s] + [event.at]
    state.count_restart(process)
    _note(state, process, reports.restarting(process, message, state.plan.config.restart))


def _on_restart_limit_reached(message: agent.RestartLimitReached, event: HostEvent, state: RunState) -> None:
    process = state.hosts[event.host].record_of(event)
    process.state = "failed"
    if process.role == "worker":
        state.last_failed_worker = f"{process}: {message.cause}"
    _note(state, process, reports.not_restarted(process, message, state), message.cause)


def _note(state: RunState, process: ProcessRecord, action_taken: str, cause: str = UNREPORTED) -> None:
    """`cause`: of a process whose end was not reported."""
    state.note(reports.ended(process, action_taken, cause, state))
    if process.last_exit is not None and reports.has_traceback(process.last_exit):
        state.tracebacks.add(without_numbers(process.last_exit.cause))


HANDLERS: Mapping[type, Handler] = {
    agent.Started: _on_started,
    agent.Ready: _on_ready,
    agent.FirstStep: _on_first_step,
    agent.WorkerRates: _on_worker_rates,
    agent.WorkerState: _on_worker_state,
    agent.Relieved: _on_relieved,
    agent.Exited: _on_exited,
    agent.Restarting: _on_restarting,
    agent.RestartLimitReached: _on_restart_limit_reached,
}
