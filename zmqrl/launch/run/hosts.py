"""The records of the hosts of a run, and what follows from all of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.launch.run.addresses import AddressWatch
from zmqrl.launch.run.boots import boots
from zmqrl.launch.run.host_records import HostRecord, ProcessRecord
from zmqrl.messages.agent import BrokerAddresses
from zmqrl.supervision.restarts import ProcessSlot
from zmqrl.types import HostKey, Role

LEAVE_S = 10.0
"""At the end of a run the other hosts may be known to have ended so much before the learner is."""


class Hosts:
    """The records by name, the learner's host first. Made with the plan; `admit` adds others."""

    def __init__(self, plan: RunPlan) -> None:
        self._learner = plan.config.learner.host
        self._records = {host: HostRecord(boot, boot.workers) for host, boot in boots(plan).items()}
        self._others = frozenset(host for host, count in plan.workers.items() if count and host != LOCAL)
        self._rejoins = plan.config.rejoin == "auto"
        self.next_index = plan.total_workers
        """Index of the next worker that is added: each index is used once."""
        self.listening: BrokerAddresses | None = None
        """Where the broker is, for other hosts."""
        self.addresses = AddressWatch()
        """Watch of the addresses of the learner's host."""
        self.ending = False
        """An agent's end is not a loss from now on."""

    def __iter__(self) -> Iterator[HostRecord]:
        return iter(self._records.values())

    def __getitem__(self, host: str) -> HostRecord:
        return self._records[host]

    def get(self, host: str) -> HostRecord | None:
        """None: the run has no such host."""
        return self._records.get(host)

    @property
    def learner(self) -> HostRecord:
        """The host of learner and broker."""
        return self._records[self._learner]

    @property
    def processes(self) -> list[ProcessRecord]:
        """Processes of all hosts."""
        return [process for record in self for process in record.processes.values()]

    def process(self, role: Role, index: int) -> ProcessRecord | None:
        """The record of a process of any host."""
        slot = ProcessSlot(role, index)
        return next((record.processes[slot] for record in self if slot in record.processes), None)

    @property
    def workers(self) -> dict[int, ProcessRecord]:
        """Rollout workers of the newest agent of each host, by index, without those that have left."""
        return {worker.index: worker for row in self for worker in row.worker_records}

    @property
    def total_workers(self) -> int:
        """Number of workers that the broker knows, or will."""
        return sum(len(record.held) for record in self)

    @property
    def expected_workers(self) -> int:
        """Workers of the hosts that have not failed."""
        return sum(row.workers for row in self if not row.is_gone)

    @property
    def remaining_workers(self) -> int:
        """Number of `expected_workers` that are restarted when they die."""
        failed = self.failed_workers
        return sum(index not in failed for row in self if not row.is_gone for index in row.assigned)

    @property
    def failed_workers(self) -> set[int]:
        """Indexes of the workers that reached their restart limit."""
        return {worker.index for worker in self.workers.values() if worker.state == "failed"}

    @property
    def can_go_on(self) -> bool:
        """Whether the run has a worker, or a host that is to return with workers."""
        return self.remaining_workers > 0 or self.awaits_return

    @property
    def missing(self) -> list[HostRecord]:
        """Hosts that are not part of the run, though the launcher has not removed them."""
        return [record for record in self if record.is_gone and record.cause]

    @property
    def keys(self) -> dict[str, HostKey]:
        """Public key to host: of the other hosts that participate now."""
        return {
            record.public: HostKey(record.host, record.incarnation)
            for record in self
            if record is not self.learner and record.state in ("joining", "ready") and record.public
        }

    @property
    def tokens(self) -> dict[str, str | None]:
        """Digest of each one-time token to the host that it admits; None: it was used."""
        used = {digest: None for record in self for digest in record.used_invitations}
        return {**used, **{record.invitation: record.host for record in self if record.invitation}}

    @property
    def awaits_return(self) -> bool:
        """Whether a host is to return: one that is away, or a lost one that is connected to again."""
        return any(record.away or self._is_rejoined(record) for record in self)

    @property
    def unusable_others(self) -> list[HostRecord]:
        """The hosts with workers besides `local`, if none of them could be used at the start; else none."""
        rows = [self._records[host] for host in sorted(self._others)]
        return rows if all(record.is_failed and not record.incarnation for record in rows) else []

    def _is_rejoined(self, record: HostRecord) -> bool:
        is_tried = self._rejoins and not record.section.manual and record is not self.learner
        return bool(is_tried and record.is_missing and record.incarnation and record.workers)

    def admit(self, boot: Boot) -> HostRecord:
        """A host joins the live run, or one that is gone has another section; `assign` gives it workers."""
        before = self._records.get(boot.host)
        record = HostRecord(boot, state="drained") if before is None else before.readmitted(boot)
        self._records[boot.host] = record
        return record

    def assign(self, host: str, workers: int) -> tuple[int, ...]:
        """The indexes of the workers that the host is to have from now on, so many.

        Workers that are not restarted leave first, then the highest indexes. An index that left is never used again.
        """
        record, failed = self._records[host], self.failed_workers
        kept = sorted(record.held, key=lambda index: (index in failed, index))[:workers]
        first, self.next_index = self.next_index, self.next_index + workers - len(kept)
        record.assigned, record.is_revoked = tuple(sorted([*kept, *range(first, self.next_index)])), False
        return record.assigned

    def stayed_away(self, now: float) -> list[HostRecord]:
        """Hosts whose agents ended in order `LEAVE_S` ago, or more, though the run continues. `now`: of one clock."""
        late = []
        for record in self:
            is_leaving = record.state == "leaving" and not self.ending
            since = now if record.leaving_since is None else record.leaving_since
            record.leaving_since = since if is_leaving else None
            if is_leaving and now - since >= LEAVE_S:
                late.append(record)
        return late
