"""The runner of one user: it starts and watches the runs of that user's jobs, and of no others.

Each run is a child, `zmqrl train` or `zmqrl launch`, in a session of its own. The kernel closes its stdin when the
runner ends, however it ends, and the launcher then ends its run: none outlives its runner. The run directory has one
owner (`supervision/run_owner.py`), so that also a launcher which was cut off from everything writes nothing after the
next attempt has begun.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError, HostUnreachable, Interrupted
from zmqrl.launcher_place.unit import stop_s_of
from zmqrl.queue.folder import OUTPUT, QueueFolder
from zmqrl.queue.hosts import RunnerHosts, environment, has_begun, has_launcher
from zmqrl.queue.records import AttemptEnd, AttemptRecord, Job, JobAttempt, JobEnd, Outcome, Records, RunnerRecord
from zmqrl.queue.schedule import (
    LEASE_S,
    Action,
    CloseAttempt,
    Grant,
    Me,
    Preempt,
    RunnerSeen,
    StartRun,
    StopRun,
    decide,
    without_host,
)
from zmqrl.run_files.records import read_summary
from zmqrl.run_files.run_info import is_live, read_info
from zmqrl.run_files.stored_config import read_config
from zmqrl.supervision import owner_record
from zmqrl.supervision.host_entry import user_name
from zmqrl.supervision.run_owner import RunOwner
from zmqrl.wire.runtime_folder import is_own

POLL_S, IDLE_SHARE = 1.0, 0.005
"""Least time between two looks, which is longer where a look takes more than this share of a core."""
KILL_S = 5.0
"""Time for a launcher to end that was killed. The next runner continues a job whose launcher was not seen to end."""
LASTING = FileNotFoundError, NotADirectoryError, PermissionError, IndexError
"""Why a launcher cannot be started at a later attempt either. Another error may pass, as of a file system away."""
RETRY_S = 2.0
"""Time until the next attempt after a lost one. Each further one in succession doubles it: its host may return."""


@dataclass
class _Child:
    """The launcher of an attempt."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    run_id_before: str | None
    is_stopping: bool = False


@dataclass
class _Heartbeats:
    """When each user's runner was last seen to renew its record, by this process's clock."""

    _seen: dict[int, tuple[bytes, float]] = field(default_factory=dict)

    def of(self, folder: QueueFolder) -> Mapping[int, RunnerSeen]:
        found = {}
        for uid, record, content in folder.runners():
            owner = owner_record.decoded(content)
            if owner is not None and not owner.released:
                if self._seen.get(uid, (b"", 0.0))[0] != content:
                    self._seen[uid] = content, time.monotonic()
                found[uid] = RunnerSeen(frozenset(record.hosts), self._seen[uid][1])
        return found


class RunnerActive(ConfigError):
    """This user has a runner of the queue already."""


class JobRunner:
    """Use as a context: the runs end with it."""

    def __init__(self, folder: QueueFolder, hosts: RunnerHosts, show: Callable[[str], None]) -> None:
        """Take over from the last runner of this user. RunnerActive: that one is active."""
        self._folder, self._hosts, self._show = folder, hosts, show
        self._me = Me(os.geteuid(), secrets.token_hex(8))
        own = folder.runner_folder(self._me.uid)
        if not os.path.lexists(own):
            own.mkdir()
            own.chmod(0o755)
        if not is_own(own):
            raise ConfigError.about(own, "is not a folder of yours", "its owner or root must remove it")
        try:
            self._owner = RunOwner.acquire(own, self._me.runner)
        except ConfigError as error:
            what = f"you have a runner already{owner_record.process_of(own)}"
            fix = "one runner serves all your jobs of a queue"
            raise RunnerActive(what, key=("--queue",), value=str(folder.path), fix=fix) from error
        self._is_announced = False
        self._heartbeats = _Heartbeats()
        self._children: dict[int, _Child] = {}
        self._ended: dict[int, AttemptEnd] = {}
        self._silent_since: dict[int, float] = {}
        self._rests_until: dict[int, float] = {}
        self._without_host: set[int] = set()

    def __enter__(self) -> JobRunner:
        return self

    def __exit__(self, *_: object) -> None:
        """End the runs, each with a checkpoint, and give their slots back."""
        begun = time.monotonic()
        for child in self._children.values():
            assert child.process.stdin is not None
            child.is_stopping = True
            child.process.stdin.close()
        for child in self._children.values():
            self._await_end(child, begun + _end_s(child.run_dir))
        with contextlib.suppress(OSError):
            while self.step(may_start=False):
                pass
            self._owner.release()

    def step(self, may_start: bool = True) -> bool:
        """Do what is to be done now. False: nothing was. OSError: the folder cannot be used now.

        Raises:
            ConfigError: Another runner of this user has taken over.
        """
        self._check_owner()
        if not self._is_announced:
            self._folder.announce(RunnerRecord(self._me.uid, tuple(self._hosts.capacity)), self._me.runner)
            self._is_announced = True
        records = self._folder.read()
        runners, observed = self._heartbeats.of(self._folder), self._observed(records)
        self._report_without_host(records)
        now = time.monotonic()
        resting = [number for number, until in self._rests_until.items() if now < until]
        actions = decide(records, self._hosts.capacity, self._me, runners, observed, now, resting)
        changes = [self._do(each) for each in actions if may_start or not isinstance(each, (Grant, StartRun))]
        return any(changes)

    def _report_without_host(self, records: Records) -> None:
        for job in without_host(records, self._hosts.capacity, self._me.uid):
            if job.number not in self._without_host:
                self._without_host.add(job.number)
                self._show(f"job {job.number} waits: it needs {job.record.needs}, which no host of this runner has")

    def has_jobs(self) -> bool:
        """Whether a job of this user has not ended."""
        jobs = self._folder.read().jobs.values()
        return any(job.end is None and job.record.uid == self._me.uid for job in jobs)

    def _await_end(self, child: _Child, deadline: float) -> None:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._show(f"the launcher of {child.run_dir} has not ended in its time and is killed")
            child.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a file system that is away
                child.process.wait(KILL_S)

    def _check_owner(self) -> None:
        if self._owner.successor is not None:
            process = owner_record.process_of(self._folder.runner_folder(self._me.uid))
            what = f"another runner of yours has taken over{process}"
            raise ConfigError(what, key=("--queue",), value=str(self._folder.path))

    def _observed(self, records: Records) -> dict[int, AttemptEnd | None]:
        found: dict[int, AttemptEnd | None] = {}
        for job in records.jobs.values():
            attempt = job.live
            if attempt is None or job.record.uid != self._me.uid:
                continue
            if attempt.number in self._children:
                found[attempt.number] = self._end_of(self._children[attempt.number])
            elif attempt.number in self._ended:
                found[attempt.number] = self._ended[attempt.number]
            elif attempt.record.runner != self._me.runner and self._is_gone(job, attempt):
                found[attempt.number] = AttemptEnd("yielded", has_begun=has_begun(Path(job.record.run_dir)))
        return found

    def _is_gone(self, job: Job, attempt: JobAttempt) -> bool:
        """Whether the run of an earlier runner has ended: its launcher was not seen for `LEASE_S`."""
        run_dir = Path(job.record.run_dir)
        info = read_info(run_dir)
        if has_launcher(run_dir) or (info is not None and is_live(run_dir, info)):
            self._silent_since.pop(attempt.number, None)
            return False
        now = time.monotonic()
        return now - self._silent_since.setdefault(attempt.number, now) >= LEASE_S

    def _end_of(self, child: _Child) -> AttemptEnd | None:
        code = child.process.poll()
        if code is None:
            return None
        info, summary = read_info(child.run_dir), read_summary(child.run_dir) or {}
        is_used = info is not None and is_live(child.run_dir, info, watch=False)
        if code in (HostUnreachable.exit_code, Interrupted.exit_code) or code < 0 or is_used:
            return AttemptEnd("yielded" if child.is_stopping else "lost", code, has_begun(child.run_dir))
        if code != 0:
            return AttemptEnd("failed", code)
        has_trained = info is not None and info.run_id != child.run_id_before
        is_stopped = has_trained and summary.get("status") == "stopped"
        return AttemptEnd("yielded" if is_stopped else "done", code)

    def _do(self, action: Action) -> bool:
        """Carry out an action; whether it changed anything."""
        folder, job = self._folder, action.job
        if isinstance(action, (Grant, StartRun)):
            self._check_owner()  # this process may have been frozen since it read the records
        if isinstance(action, Grant):
            record = AttemptRecord(self._me.uid, job.number, action.host, action.gpus, self._me.runner)
            return folder.create_attempt(action.number, record)
        elif isinstance(action, StartRun):
            self._start(job, action.attempt)
        elif isinstance(action, StopRun):
            return self._stop(action)
        elif isinstance(action, CloseAttempt):
            folder.close_attempt(job.number, action.attempt.number, action.end)
            if (child := self._children.pop(action.attempt.number, None)) is not None:
                child.process.communicate()  # it has ended: close its stdin
            if action.end.outcome == "lost":
                self._rests_until[job.number] = time.monotonic() + RETRY_S * 2**job.lost
        elif isinstance(action, Preempt):
            low = action.attempt.record
            self._show(f"job {job.number} requests the slots of job {low.job} of {user_name(low.uid)}")
            folder.request(job.number, f"preempt-{action.attempt.number}")
        elif folder.end_job(job.number, JobEnd(action.status, action.exit_code)):
            code = "" if action.exit_code is None else f" (exit code {action.exit_code})"
            self._show(f"job {job.number}: {action.status}{code}")
        return True

    def _start(self, job: Job, attempt: JobAttempt) -> None:
        run_dir = Path(job.record.run_dir)
        info = read_info(run_dir)
        self._show(f"job {job.number} starts on {attempt.record.host}: {run_dir}")
        try:
            with (self._folder.job_folder(job.number) / OUTPUT).open("ab") as output:
                process = subprocess.Popen(
                    self._hosts.command(job, attempt),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    cwd=job.record.folder,
                    env=environment(attempt),
                    start_new_session=True,  # Ctrl-C is the runner's, which ends the runs
                )
        except (OSError, IndexError) as error:
            self._show(f"job {job.number} cannot be started: {error}")
            outcome: Outcome = "failed" if isinstance(error, LASTING) else "lost"
            self._ended[attempt.number] = AttemptEnd(outcome, has_begun=False)
            return
        self._children[attempt.number] = _Child(process, run_dir, None if info is None else info.run_id)

    def _stop(self, action: StopRun) -> bool:
        child, to = self._children.get(action.attempt.number), action.to
        if child is None or child.is_stopping:
            return False
        child.is_stopping = True
        why = "" if to is None else f"yields to job {to.number} of {user_name(to.record.uid)}: it "
        self._show(f"job {action.job.number} {why}is stopped with a checkpoint")
        child.process.send_signal(signal.SIGUSR1)
        return True


def _end_s(run_dir: Path) -> float:
    """How long the launcher of a run takes to end at most."""
    try:
        return stop_s_of(read_config(run_dir))
    except ConfigError:  # it has not begun
        return stop_s_of(Config())


def serve(step: Callable[[], bool], has_ended: Callable[[], bool], show: Callable[[str], None]) -> None:
    """Repeat `step`, which returns whether it changed anything, until `has_ended`, or the user interrupts it."""
    is_away = False
    while True:
        begun = time.process_time()
        try:
            has_changed = step()
            if not has_changed and has_ended():
                return
            is_away = False
        except OSError as error:
            has_changed = False
            if not is_away:
                show(f"{error.filename or 'a file'} cannot be used: {error.strerror}; it is tried again")
            is_away = True
        if not has_changed:
            time.sleep(max(POLL_S, (time.process_time() - begun) / IDLE_SHARE))  # files are all that runners share
