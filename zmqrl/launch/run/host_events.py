"""What events mean for a host: each changes the record of the host. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from zmqrl.config.hosts import LOCAL
from zmqrl.data_stores.make import is_shared
from zmqrl.launch.run import reports
from zmqrl.launch.run.actions import Action, RemoveInvitation
from zmqrl.launch.run.host_records import HostRecord, HostState
from zmqrl.launch.run.state import RunState
from zmqrl.messages.agent import ActingDigest, BrokerAddresses, GpuUse, Joined, LeaseLost, OtherUse, Unreachable, Usage
from zmqrl.messages.orchestrator import AgentExited, Handshake, HostUnusable
from zmqrl.messages.process import Enrolled, HostHere, HostLost, ProcessFault
from zmqrl.orchestrators.base import HostEvent
from zmqrl.supervision.restarts import ProcessSlot

Handler: TypeAlias = Callable[..., Sequence[Action] | None]
"""Takes one type of event in: the message, its `HostEvent`, and the `RunState` that it changes."""


def _on_handshake(message: Handshake, event: HostEvent, state: RunState) -> None:
    record = state.hosts[event.host]
    record.begin_agent("ready" if record is state.hosts.learner else "joining", message.public)


def _on_enrolled(message: Enrolled, event: HostEvent, state: RunState) -> Sequence[Action]:
    """A host that SSH does not reach has shown its token, by its digest. A used or unknown one is ignored."""
    for record in state.hosts if state.is_of_learners_host(event) and message.token else ():
        if record.invitation == message.token:
            record.invitation, record.used_invitations = "", (*record.used_invitations, message.token)
            record.begin_agent("joining", message.public)
            return [RemoveInvitation(record.host)]
    return ()


def _on_broker_addresses(message: BrokerAddresses, event: HostEvent, state: RunState) -> None:
    if not state.is_of_learners_host(event):
        return
    state.hosts.listening = message
    change = state.hosts.addresses.check(message.addresses)
    if change is not None:
        machine = "this machine" if state.hosts.learner.host == LOCAL else f"the learner's host {event.host}"
        reconnect(state, change.of(machine), [row for row in state.hosts if row.address in change.gone])


def reconnect(state: RunState, cause: str, records: Sequence[HostRecord]) -> None:
    """The connections to these hosts are dead, though neither end may see that for long."""
    for record in records:
        if record.state == "ready" and record is not state.hosts.learner and not record.section.manual:
            lose(state, record, "lost", cause)


def _on_joined(message: Joined, event: HostEvent, state: RunState) -> None:
    record = state.hosts[event.host]
    record.state, record.milliseconds, record.sees_store = "ready", message.milliseconds, message.store
    record.address = message.address
    record.reported.clear()
    if is_shared(state.plan.config.store) and not message.store:
        state.note(reports.store_not_shared(record, state.plan))


def _on_host_here(message: HostHere, event: HostEvent, state: RunState) -> None:
    """A host that SSH does not reach has joined, or left (no workers): its events do not come to this launcher."""
    record = state.hosts.get(message.host)
    if record is None or not record.section.manual or not state.is_of_learners_host(event):
        return
    if not message.workers:
        record.state, record.cause = ("ended", "") if state.hosts.ending else ("drained", reports.LEFT)
        record.assigned, record.is_revoked = (), True
        record.set_workers("ended")
    elif not record.is_gone:
        record.state, record.cause, record.assigned = "ready", "", tuple(message.workers)
        record.reported.clear()
        record.remove(worker for worker in record.worker_records if worker.index not in record.assigned)
        for index in record.assigned:
            record.record(ProcessSlot("worker", index))
        record.set_workers("ready")


def _on_fault(message: ProcessFault, event: HostEvent, state: RunState) -> None:
    if event.role is None:
        state.hosts[event.host].fault = message.error
        if state.is_of_learners_host(event):
            state.agent_fault = message.error


def _on_unreachable(message: Unreachable, event: HostEvent, state: RunState) -> None:
    record = state.hosts[event.host]
    cause = f"cannot connect to the learner's host: {message.cause}"
    lose(state, record, "failed", cause, reports.fix_of_unreachable(record, message.cause))


def _on_host_unusable(message: HostUnusable, event: HostEvent, state: RunState) -> None:
    lose(state, state.hosts[event.host], "failed", message.cause, message.fix)


def _on_lease_lost(message: LeaseLost, event: HostEvent, state: RunState) -> None:
    record = state.hosts[event.host]
    if record.state != "connecting":  # else of its former agent
        lose(state, record, "lost", reports.lease_lost(message, state.plan))
    if record is state.hosts.learner and not state.hosts.ending:  # in good order, but not at the end of the run
        state.fail(f"{record.host}: {record.cause}", lacks_hosts=True)


def _on_host_lost(message: HostLost, event: HostEvent, state: RunState) -> None:
    record = state.hosts.get(message.host)
    if record is None or not state.is_of_learners_host(event):
        return
    lose(state, record, "lost", reports.silent_host(state.plan))
    if record.section.manual and record.is_gone:
        record.is_revoked = True  # without encryption it has no key that could leave the allow-list


def _on_agent_exited(message: AgentExited, event: HostEvent, state: RunState) -> None:
    record, code, is_ending = state.hosts[event.host], message.code, state.hosts.ending
    is_learners = record is state.hosts.learner
    if is_learners:
        state.agent_exit = 1 if code is None else code
    if record.is_gone or (record.state == "connecting" and message.introduced):  # the latter of its former agent
        return
    if is_ending or is_learners or (code == 0 and not record.workers and not record.is_kept):
        record.state = "ended" if is_ending or is_learners else "drained"
        if state.ended is None:  # else those that were there at the end are counted
            record.set_workers("ended")
    elif code == 0 and record.state == "ready":
        record.state = "leaving"
    else:
        lose(state, record, "lost", record.fault or reports.agent_exited(code))


def _on_acting_digest(message: ActingDigest, event: HostEvent, state: RunState) -> None:
    state.hosts[event.host].acting = message.digest
    digests = {row.host: row.acting for row in state.hosts if row.acting and row.workers and not row.is_gone}
    if (problem := reports.differing_digests(digests)) is not None:
        state.note_once(problem)


def _on_gpu_use(message: GpuUse, event: HostEvent, state: RunState) -> None:
    state.hosts[event.host].gpus = message.gpus


def _on_other_use(message: OtherUse, event: HostEvent, state: RunState) -> None:
    state.hosts[event.host].other_use = message


def _on_usage(message: Usage, event: HostEvent, state: RunState) -> None:
    record, used = state.hosts[event.host], message.processes
    cpu, before = sum(process.cpu for process in used.values()), record.cpu_sample
    if before is not None and event.at > before[0] and cpu >= before[1]:
        record.cpu = (cpu - before[1]) / (event.at - before[0])
    record.cpu_sample, record.pss_mb = (event.at, cpu), sum(process.pss_mb for process in used.values())
    for name, process in used.items():
        state.count_peaks({name.rpartition("-")[0]: process.pss_mb})
    if message.arena_usage is not None:
        state.metrics["leases"], state.stored = message.arena_usage.leases, message.arena_usage.stored


def lose(state: RunState, record: HostRecord, to: HostState, cause: str, fix: str = "") -> None:
    """A host is not there, though it should be: the only function that makes one `lost`, or `failed`.

    Called for `LeaseLost`, `HostLost` (silent to the broker) and `AgentExited` here, and by `RunMachine` for another
    address of a machine and for an agent that ended with 0 before the run. docs/hosts/changes.md lists the causes. The
    same cause is reported once until the host was ready again.
    """
    if record.is_gone:
        return
    is_new = cause not in record.reported
    record.state, record.cause = to, cause
    record.reported.add(cause)
    record.set_workers("lost")
    if record is state.hosts.learner:
        state.agent_fault = state.agent_fault or "\n".join(filter(None, (cause, fix)))
    elif is_new:
        state.note(reports.lost_host(record, fix, state))


HANDLERS: Mapping[type, Handler] = {
    Handshake: _on_handshake,
    Enrolled: _on_enrolled,
    BrokerAddresses: _on_broker_addresses,
    Joined: _on_joined,
    HostHere: _on_host_here,
    ProcessFault: _on_fault,
    Unreachable: _on_unreachable,
    HostUnusable: _on_host_unusable,
    LeaseLost: _on_lease_lost,
    HostLost: _on_host_lost,
    AgentExited: _on_agent_exited,
    ActingDigest: _on_acting_digest,
    GpuUse: _on_gpu_use,
    OtherUse: _on_other_use,
    Usage: _on_usage,
}
