"""Who may send what: a message from another host is accepted only for the workers assigned to this host. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from zmqrl.config.plan import RunPlan, worker_indexes
from zmqrl.errors import WireError
from zmqrl.messages import bus
from zmqrl.wire.gate import UNNAMED


class Senders:
    """Each worker index belongs to one host as long as its agent names it: by the plan, else by the first that does."""

    def __init__(self, plan: RunPlan) -> None:
        self._learner_host = plan.config.learner.host
        self._host_of = {index: host for host, assigned in worker_indexes(plan.workers).items() for index in assigned}

    def admit(self, user: str | None, message: bus.Message) -> bool:
        """Whether the message counts; `user` is the sender's host (`Gate.host_of`).

        Returns:
            False for a worker that no agent has named yet. Its messages are repeated, and its agent's may be later
            than its own, since they take different connections.

        Raises:
            WireError: This sender may not send it.
        """
        if user is None:  # the folder of the ipc sockets is open to this user alone
            return True
        match message:
            case bus.WorkerReport(remote=False):
                raise WireError("not remote", f"worker {message.index} of {_name(user)} cannot see the arena")
            case (
                bus.WorkerReport()
                | bus.RecordRequest()
                | bus.WorkerExit()
                | bus.Segment()
                | bus.Heartbeat(role="worker")
            ):
                return self._is_assigned(user, message.index)
            case bus.HostReport():
                self._check_agent(user, message)
                return True
            case bus.Fetch() | bus.PathProbe():
                return True
        raise WireError("not from there", f"{bus.kind_of(message)} from {_name(user)}")  # the learner is on our host

    def learn(self, host: str, workers: Iterable[int]) -> None:
        """The host of an agent that was admitted has these workers, alive or assigned, and no others."""
        named = set(workers)
        for index in named:
            self._host_of.setdefault(index, host)
        for index in self.workers_of(host):
            if index not in named:
                del self._host_of[index]

    def workers_of(self, host: str) -> list[int]:
        """Every worker that may live on the host."""
        return [index for index, holder in self._host_of.items() if holder == host]

    def _check_agent(self, user: str, report: bus.HostReport) -> None:
        host = report.host
        if host != user if user != UNNAMED else host == self._learner_host:
            raise WireError("host", f"{_name(user)} sends for {host}")
        for index in (*report.alive, *report.ready, *report.failed, *report.workers):
            if self._host_of.get(index, host) != host:
                raise WireError("host", f"{host} names worker {index} of {self._host_of[index]}")

    def _is_assigned(self, user: str, index: int) -> bool:
        """Without keys no process from outside is known by name: then any host but the learner's counts."""
        host = self._host_of.get(index)
        if host is not None and (host != user if user != UNNAMED else host == self._learner_host):
            raise WireError("host", f"{_name(user)} sends for worker {index} of {host}")
        return host is not None


def _name(user: str) -> str:
    return user if user != UNNAMED else "a host without a key"
