"""Which segments may be stepped now, and how many leases are there beyond these."""

from __future__ import annotations

from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.workers import WorkerProcess, Workers
from zmqrl.config.plan import RunPlan
from zmqrl.types import Version


class DueSegments:
    """Part of the broker's state: reads the stream records and the leases."""

    def __init__(self, plan: RunPlan, ledger: StreamLedger, workers: Workers) -> None:
        self._ledger, self._workers, self._sync = ledger, workers, plan.config.mode.deterministic
        self.version: Version | None = None
        """The learner's newest."""
        self.most_spare = max(1, plan.total_workers) * plan.config.limits.leases_per_worker
        """Number of leases (sync) with slots beyond those that fill the current round. Workers may be more than at the
        start, and the slots are not: with one lease more a vector env would be without a slot, and all would wait.
        """

    def of(self, process: WorkerProcess) -> int:
        """Vector envs of the process whose next segment may be stepped now."""
        if not self._sync:
            return len(process.assigned)
        n, records = self.version.n if self.version else 0, self._ledger.records
        return sum(records[v].next_index <= n for v in process.assigned)

    def spare_leases(self) -> int:
        """Leases of all processes beyond the vector envs that they may step now."""
        return sum(max(0, len(process.leases) - self.of(process)) for process in self._workers.processes())

    def strands_lease(self, holder: WorkerProcess, vector_env: int) -> bool:
        """Whether its holder would keep a lease that it cannot use now, and that the next holder would lack."""
        if not self._sync or vector_env not in holder.assigned:
            return False
        is_due = self.version is not None and self._ledger.records[vector_env].next_index <= self.version.n
        return is_due and len(holder.leases) >= self.of(holder) and self.spare_leases() >= self.most_spare
