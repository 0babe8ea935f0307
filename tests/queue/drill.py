"""Drill of a queue: jobs of several users over several hosts, with kills of everything at random moments.

usage: python -m tests.queue.drill FOLDER [--jobs 40] [--users 3] [--hosts 4] [--kills 60] [--every 5] [--seed 1]

It kills runners, launchers, host agents and hosts, stops the file system once for `OUTAGE_S`, and lets all jobs end.
Then it checks that each job has one end and the weights of an undisturbed run, that no job had two launchers at a time,
and that jobs began in their order; it prints the figures, and ends with exit code 1 if a check fails. Started again
with the same FOLDER, which is not in /tmp, it continues. FOLDER/result.json has the figures, the faults and the commits
of its starts. Needs root, the lab (tests/lab), useradd and setpriv, and for the outage a loop device.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.lab import Lab
from tests.queue.drill_site import Storage, User, site, victims
from tests.support.runs.ssh_runs import sha256_of_one_process
from zmqrl.bench.report import machine
from zmqrl.queue.folder import QueueFolder
from zmqrl.queue.records import JobEnd, Records
from zmqrl.supervision.process_table import ProcessId, children_of, identify, is_alive

KINDS = ("runner", "launcher", "agent", "host")
OUTAGE_S, DOWN_S, LOOK_EVERY_S = 15.0, 2.0, 0.3
TALLY = "tests.stand_ins.tally:Tally"
SETTINGS = (
    f"algorithm.kind={TALLY}", "env.vector_envs=2", "run.stop_at_return=null", "evaluator.episodes=0",
)  # fmt: skip
OF_JOBS = ("run.mode=sync", "run.checkpoint_every_s=1", "algorithm.round_s=0.1", "limits.host_lease_s=6")


@dataclass
class Seen:
    """What was seen while the jobs ran, kept in a file for the next start."""

    commits: list[str] = field(default_factory=list)
    """Of the starts."""
    faults: list[str] = field(default_factory=list)
    held_s: dict[int, float] = field(default_factory=dict)
    """Core seconds of each user while every user had jobs that waited."""
    ended: dict[int, tuple[JobEnd, int]] = field(default_factory=dict)
    """End and number of attempts of each job when its end was seen first."""
    wall_s: float = 0.0

    @classmethod
    def of(cls, path: Path) -> Seen:
        """As the last start left it."""
        found = msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()
        found.commits = list(dict.fromkeys([*found.commits, str(machine()["commit"])]))
        return found

    def write(self, path: Path) -> None:
        """Keep it: whole or not at all."""
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(self))
        new.replace(path)

    def look(self, records: Records, lab: Lab, users: int, passed_s: float) -> None:
        """Take a look at the records and at the processes, `passed_s` after the last one."""
        self.wall_s += passed_s
        for job in records.jobs.values():
            if sum(attempt.end is None for attempt in job.attempts) > 1:
                self.faults.append(f"job {job.number} has two attempts without an end")
            if job.end is not None:
                now = job.end, len(job.attempts)
                if (first := self.ended.setdefault(job.number, now)) != now:
                    self.faults.append(f"job {job.number} ended as {first}, later as {now}")
        for run_dir, found in launchers(lab).items():
            if len(found) > 1:
                self.faults.append(f"launchers of {run_dir} at a time: {found}")
        waiting = {job.record.uid for job in records.jobs.values() if records.is_waiting(job)}
        for job in records.jobs.values() if len(waiting) == users else ():
            held_s = passed_s * job.record.needs.cores * (job.live is not None)
            self.held_s[job.record.uid] = self.held_s.get(job.record.uid, 0.0) + held_s


class Killer:
    """Makes the kills of a drill; those of an earlier start count."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, lab: Lab, storage: Storage) -> None:
        self._journal, self._lab, self._storage = folder / "kills.jsonl", lab, storage
        self.made = self._journal.read_text().split() if self._journal.exists() else []
        self._random = random.Random(f"{arguments.seed} {len(self.made)}")
        self._kills, self._every_s = arguments.kills, arguments.every
        self._next_at = time.monotonic() + self._every_s
        self._down: dict[int, float] = {}

    @property
    def count(self) -> int:
        """Kills of processes and hosts."""
        return sum(kind != "outage" for kind in self.made)

    @property
    def allows_runners(self) -> bool:
        """Whether runners can be started now."""
        return 0 not in self._down and not self._storage.is_stopped

    def step(self) -> None:
        """Make the kill that is due, and bring back what was down long enough."""
        now = time.monotonic()
        for index in [index for index, since in self._down.items() if now - since >= DOWN_S]:
            del self._down[index]
            self._lab.hosts[index].boot()
        if now < self._next_at or self.count >= self._kills or self._storage.is_stopped:
            return
        self._next_at = now + self._random.uniform(0.5, 1.5) * self._every_s
        if self._storage.can_stop and "outage" not in self.made and self.count >= self._kills // 2:
            self._storage.stop(OUTAGE_S)
            self._note("outage")
        else:
            self._kill(KINDS[self.count] if self.count < len(KINDS) else self._random.choice(KINDS))

    def _kill(self, kind: str) -> None:
        if kind == "host":
            index = self._random.randrange(len(self._lab.hosts))
            if index not in self._down:
                self._lab.hosts[index].crash()
                self._down[index] = time.monotonic()
                self._note(kind)
        elif found := victims([host for n, host in enumerate(self._lab.hosts) if n not in self._down], kind):
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(found), signal.SIGKILL)
                self._note(kind)

    def _note(self, kind: str) -> None:
        self.made.append(kind)
        with self._journal.open("a") as file:
            file.write(f"{kind}\n")


def launchers(lab: Lab) -> Mapping[str, Sequence[ProcessId]]:
    """Launchers that live, by run directory."""
    by_run: dict[str, list[ProcessId]] = defaultdict(list)
    for process in lab.hosts[0].processes("--until-eof"):
        if "--run-dir" in process.argv and (known := identify(process.pid)) is not None:
            by_run[process.argv[process.argv.index("--run-dir") + 1]].append(known)
    return {run_dir: found if len(found) == 1 else without_forks(found) for run_dir, found in by_run.items()}


def without_forks(processes: Sequence[ProcessId]) -> list[ProcessId]:
    """A child of a launcher has the words of its parent until its own program begins."""
    forks = {child for process in processes for child in children_of(process.pid)}
    return [process for process in processes if process not in forks and is_alive(process)]


def add_jobs(queue: Path, users: list[User], arguments: argparse.Namespace) -> None:
    """As many as are missing, of the users in turn; every fifth one has a higher priority."""
    for number in range(len(QueueFolder(queue).read().jobs), arguments.jobs):
        user = users[number % len(users)]
        settings = (*SETTINGS, *OF_JOBS, f"run.total_env_steps={arguments.steps}", f"run.seed={user.uid}")
        pairs = [word for setting in settings for word in ("--set", setting)]
        words = ("--needs", "cores=1", "--priority", str(int(number % 5 == 4)), "--queue", str(queue))
        user.zmqrl("queue", "add", "cartpole-ppo", *words, *pairs)


def drill(arguments: argparse.Namespace, folder: Path) -> int:
    """Run the drill; its exit code."""
    seen, begun = Seen.of(folder / "seen.json"), time.monotonic()
    with site(folder, arguments.hosts, arguments.users) as (lab, storage, users):
        queue, last = storage.path / "queue", time.monotonic()
        add_jobs(queue, users, arguments)
        killer, records = Killer(folder, arguments, lab, storage), QueueFolder(queue).read()
        while any(job.end is None for job in records.jobs.values()):
            assert time.monotonic() - begun < arguments.limit, state(records)
            killer.step()
            for user in users if killer.allows_runners else ():
                user.keep_runner(queue)
            records, now = QueueFolder(queue).read(), time.monotonic()
            seen.look(records, lab, len(users), now - last)
            seen.write(folder / "seen.json")
            last = now
            time.sleep(LOOK_EVERY_S)  # the pace of the looks
        few = [f"{killer.count} kills were made before the jobs ended: raise --steps"]
        faults = [*seen.faults, *few[killer.count >= arguments.kills :], *faults_of(records, folder, arguments)]
        result = {**figures(records, seen, killer.made), "faults": list(dict.fromkeys(faults))}
        (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print((folder / "result.json").read_text(), end="")
    print("\n".join(result["faults"]) or "passed")
    return 1 if faults else 0


def faults_of(records: Records, folder: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """What is wrong after the end."""
    first: dict[tuple[int, int], int] = defaultdict(int)
    for job in records.jobs.values():
        key = (job.record.uid, job.record.priority)
        began = job.attempts[0].number if job.attempts else 0
        if began < first[key]:
            yield f"job {job.number} began before an earlier one of its user and priority"
        first[key] = began
    expected: dict[str, str] = {}
    for job in records.jobs.values():
        (seed,) = (pair for pair in job.record.overrides if pair.startswith("run.seed="))
        if seed not in expected:
            settings = (*SETTINGS, f"run.total_env_steps={arguments.steps}", seed)
            alone = folder / f"alone-{seed}-{arguments.steps}"
            expected[seed] = _weights(alone) or sha256_of_one_process(alone, settings, "--resume", "auto")
        found = _weights(Path(job.record.run_dir))
        if job.end is None or job.end.status != "done" or found != expected[seed]:
            yield f"job {job.number}: {job.end}, weights {found}, undisturbed {expected[seed]}"


def _weights(run_dir: Path) -> str | None:
    summary = run_dir / "summary.json"
    return str(json.loads(summary.read_text())["weights_sha256"]) if summary.exists() else None


def figures(records: Records, seen: Seen, kills: list[str]) -> dict[str, Any]:
    """What the drill measured."""
    attempts = [attempt for job in records.jobs.values() for attempt in job.attempts]
    total = sum(seen.held_s.values())
    return {
        "commits": seen.commits,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "jobs": len(records.jobs),
        "kills": dict(Counter(kills)),
        "wall_s": round(seen.wall_s, 1),
        "attempts": len(attempts),
        "ends of attempts": Counter(attempt.end.outcome if attempt.end else "none" for attempt in attempts),
        "hosts": Counter(attempt.record.host for attempt in attempts),
        "share of the cores by user": {uid: round(held / total, 3) for uid, held in seen.held_s.items() if total},
    }


def state(records: Records) -> str:
    """The jobs that have not ended."""
    return "\n".join(str(job) for job in records.jobs.values() if job.end is None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("jobs", 40), ("users", 3), ("hosts", 4), ("kills", 60), ("seed", 1), ("steps", 15_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, seconds in (("every", 5.0), ("limit", 7_200.0)):
        parser.add_argument(f"--{name}", type=float, default=seconds)
    arguments = parser.parse_args()
    return drill(arguments, arguments.folder.absolute())


if __name__ == "__main__":
    sys.exit(main())
