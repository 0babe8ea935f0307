"""What a lease needs: a free slot, room under the limits of async, and in sync a segment that is due."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.workers import WorkerProcess, Workers
from zmqrl.config.plan import RunPlan
from zmqrl.shared_memory.arena import RELEASE, Arena, layout_of
from zmqrl.types import SlotRef, Version

IN_FLIGHT_BYTES = 16 << 20
"""Segments of one worker that are on their way from another host, beyond those of `leases_per_worker`."""
NEVER = 1e18
"""More env steps than a run can have: 1 / ratio overflows where the ratio is next to nothing."""


class Slots:
    """Which slots are free, leased or held; rebuilt from the arena's words when a broker begins.

    Free slots are known here alone. Until every worker has reported, unresolved slots stay aside.
    """

    def __init__(self, arena: Arena, first: bool) -> None:
        """`first`: no worker of a broker before can have a lease."""
        self._arena = arena
        held = sorted(arena.held(), key=lambda ref: arena.meta(ref.slot).id.index)
        self._held: dict[int, int] = dict(held)
        """Slot to generation, the oldest first."""
        others = [slot for slot in range(arena.layout.slots) if slot not in self._held]
        self._free: deque[int] = deque(others if first else ())
        self.unresolved: set[int] = set() if first else set(others)
        """Perhaps leased under a broker before."""

    def free_unresolved(self) -> None:
        """Every worker has reported or is dead: what no process claimed is free."""
        for slot in sorted(self.unresolved):
            self.free(slot)
        self.unresolved = set()

    def claim(self, slot: int) -> None:
        """A worker named it as its lease."""
        self.unresolved.discard(slot)

    def hold(self, ref: SlotRef) -> None:
        """The learner's from now on."""
        self.unresolved.discard(ref.slot)
        self._held[ref.slot] = ref.generation

    def free(self, slot: int) -> None:
        """No worker has it."""
        self._free.append(slot)

    def collect(self, thoroughly: bool) -> None:
        """Find what the learner released: the oldest first; all of them when nothing is free and `thoroughly`."""
        held, word = self._held, self._arena.word
        while held:
            slot = next(iter(held))
            if word(slot, RELEASE) < held[slot]:
                break
            del held[slot]
            self._free.append(slot)
        if thoroughly and not self._free and held:
            for slot in self._arena.released():
                if held.pop(slot, None) is not None:
                    self._free.append(slot)

    def count_held(self) -> int:
        """Slots that the learner has not released."""
        return sum(self._arena.word(slot, RELEASE) < generation for slot, generation in self._held.items())

    def lease(self) -> SlotRef | None:
        """The next free slot under a new generation."""
        return self._arena.lease(self._free.popleft()) if self._free else None


def least_slack(workers: int, leases_per_worker: int, segment_rows: int, ratio: float) -> int:
    """The least slack, in env steps: with less, workers and learner could wait for each other for ever.

    A segment for each lease; and where updates are rare, a segment beyond the `1 / ratio` env steps of one update,
    for a lease is charged as a whole and the learner counts whole updates.
    """
    return max(workers * leases_per_worker * segment_rows, segment_rows + math.ceil(min(1 / ratio, NEVER)))


def transit_leases(plan: RunPlan) -> int:
    """Leases of all async workers of other hosts beyond `leases_per_worker`, for segments that are on their way.

    On-policy they take slots of the learner's second batch, and one batch stays for those who deliver, if others hang.
    Off-policy they take slots of the second set of leases, as far as `replay.slack` has room for them.
    """
    config = plan.config
    if config.mode.deterministic:
        return 0
    if plan.on_policy:
        return plan.batch_segments
    per_worker, rows = config.limits.leases_per_worker, config.env.num_envs * config.env.segment_steps
    most = per_worker * (plan.total_workers - plan.workers.get(config.learner.host, 0))
    if config.replay.slack is None:
        return most
    least = least_slack(plan.total_workers, per_worker, rows, config.replay.ratio)
    return max(0, min(most, (config.replay.slack - least) // rows))


class LeaseLimiter:
    """Two limits of async, checked when a lease is given.

    Off-policy, env steps may run ahead of `updates / ratio + learning_starts` by at most the slack. On-policy, the run
    ends with the batch that reaches `run.total_env_steps`, and no more is collected than this batch needs.
    """

    def __init__(self, plan: RunPlan) -> None:
        env, replay, leases = plan.config.env, plan.config.replay, plan.config.limits.leases_per_worker
        self._async, self._on_policy = not plan.config.mode.deterministic, plan.on_policy
        self._segment_rows = env.num_envs * env.segment_steps
        self._ratio, self._learning_starts = replay.ratio, replay.learning_starts
        least = least_slack(plan.total_workers, leases, self._segment_rows, replay.ratio)
        self._slack = replay.slack or least + transit_leases(plan) * self._segment_rows
        self._total_env_steps = plan.config.run.total_env_steps
        self._batch_rows = plan.batch_segments * self._segment_rows
        self._arena_rows = plan.slots * self._segment_rows
        self._held_segments = plan.held_segments
        self._env_steps = self._updates = 0

    def report(self, env_steps: int, updates: int) -> None:
        """Where the learner is: also behind its predecessor, when it continues from a full checkpoint."""
        self._env_steps, self._updates = env_steps, updates

    def allows(self, stored: int, outstanding: int, count_held: Callable[[], int]) -> bool:
        """Whether one more lease may be given.

        `stored`: rows of the whole run. `count_held` returns the number of segments that the learner has not released.
        """
        if not self._async or (self._on_policy and self._is_far_from_the_end):
            return True  # before the segments are counted, which costs more than the rest
        if self._on_policy:
            unused = max(0, count_held() - self._held_segments)  # at the start of a run it may be more
            return self._is_needed(unused + outstanding + 1)
        rows = stored + (outstanding + 1) * self._segment_rows
        return self._ratio * (rows - self._learning_starts - self._slack) <= self._updates

    @property
    def _is_far_from_the_end(self) -> bool:
        """Whether the learner needs more than the arena can hold."""
        return self._env_steps + self._arena_rows <= self._total_env_steps

    def _is_needed(self, segments: int) -> bool:
        """Whether the learner may need so many segments. It does while they are less than a batch: no deadlock."""
        return self._env_steps + segments * self._segment_rows <= self._total_env_steps + self._batch_rows


class DueSegments:
    """Which segments may be stepped now, and which leases are beyond these: spare ones.

    In async, a lease of a worker of another host is spare beyond `leases_per_worker`.
    """

    def __init__(self, plan: RunPlan, ledger: StreamLedger, workers: Workers) -> None:
        self._ledger, self._workers, self._sync = ledger, workers, plan.config.mode.deterministic
        self._ahead = plan.config.mode.rounds_ahead
        self.version: Version | None = None
        """The learner's newest."""
        self._per_worker = plan.config.limits.leases_per_worker
        in_flight = IN_FLIGHT_BYTES // sum(column.nbytes for column in plan.columns)
        reported = layout_of(plan).open_words - 1  # beside the open segment
        self._most_of_remote = min(reported, self._per_worker + in_flight)
        self.most_spare = max(1, plan.total_workers) * self._per_worker if self._sync else transit_leases(plan)
        """Most spare leases. In sync, those with slots beyond what fills the due rounds. Workers may be more than at
        the start, and the slots are not: with one lease more a vector env would be without a slot, and all would wait.
        """

    def of(self, process: WorkerProcess) -> int:
        """Segments that the process may step now; in async vector envs."""
        return self._segments(process.assigned) if self._sync else len(process.assigned)

    def most_leases(self, process: WorkerProcess) -> int:
        """`leases_per_worker`; in sync also one for each position that the worker has to fill yet.

        Never more there: leases are not taken back, and what one worker has too many another lacks for its quota.
        """
        if self._sync:
            return max(self._per_worker, self.of(process))
        return self._most_of_remote if process.remote else self._per_worker

    def has_enough(self, process: WorkerProcess) -> bool:
        """Whether its next lease is a spare one. In sync it then has one for each position to fill or deliver again."""
        if not self._sync:
            return len(process.leases) >= self._per_worker
        leaving = len(process.leaving) if process.remote else 0
        return len(process.leases) >= self.of(process) + leaving

    def spare_leases(self) -> int:
        """Leases of all processes beyond those that they need."""
        processes = self._workers.processes()
        if self._sync:
            return sum(max(0, len(process.leases) - self.of(process)) for process in processes)
        return sum(max(0, len(process.leases) - self._per_worker) for process in processes if process.remote)

    def strands_lease(self, holder: WorkerProcess, vector_env: int) -> bool:
        """Whether its holder would keep leases that it cannot use now, and that the next holder would lack."""
        if not self._sync or vector_env not in holder.assigned or self.version is None:
            return False
        unused = len(holder.leases) - self.of(holder)
        kept = max(0, unused + self._segments((vector_env,))) - max(0, unused)
        return kept > 0 and self.spare_leases() + kept > self.most_spare

    def _segments(self, vector_envs: Iterable[int]) -> int:
        n, records = self.version.n if self.version else 0, self._ledger.records
        rounds = range(n, n + 1 + self._ahead)
        return sum(records[v].next_index <= index for v in vector_envs for index in rounds)
