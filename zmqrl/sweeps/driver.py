"""The driver of a sweep: it adds trials and jobs, evaluates what they have reached, and stops those that are pruned.

A folder has one driver, its owner by the rules of run directories. It keeps nothing that the records do not have: the
next driver continues. Each evaluation is a process, `zmqrl eval`, which ends with the driver.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from zmqrl.capacity import usable_cores
from zmqrl.config.foreign.settings import data_of
from zmqrl.config.overrides import SET, as_one, from_flags
from zmqrl.data_stores import files
from zmqrl.errors import ConfigError, EnvFault, Interrupted
from zmqrl.queue.folder import HOLD, STOP, QueueFolder
from zmqrl.queue.hosts import RunnerHosts
from zmqrl.queue.records import MOST_LOST, JobRecord
from zmqrl.queue.runner import KILL_S, JobRunner, RunnerActive, serve
from zmqrl.supervision import owner_record
from zmqrl.supervision.run_owner import RunOwner
from zmqrl.sweeps.folder import SweepFolder, ValueRecord
from zmqrl.sweeps.trials import (
    Action,
    AddJob,
    AddTrial,
    EvaluateCheckpoint,
    RequestOfJob,
    Trial,
    best_of,
    decide,
    has_ended,
    judge,
)
from zmqrl.types import LARGEST_FINITE
from zmqrl.wire.runtime_folder import is_own

PRESET = "best.yaml"
CORES_PER_EVALUATION = 4
RUNNER_EVERY_S = 10.0
"""Between two attempts to become the runner of the queue, while there is another one."""
END_S = 10.0
"""How long the evaluations may take to end with their stdin."""


class SweepDriver:
    """Use as a context: the evaluations end with it."""

    def __init__(self, folder: SweepFolder, queue: QueueFolder, show: Callable[[str], None]) -> None:
        """Take over from the last driver. ConfigError: that one is active, or the folder is another user's."""
        if not is_own(folder.path):  # its jobs would be those of its owner
            raise ConfigError.about(folder.path, "is not a folder of yours", "choose another one (--dir)")
        self._folder, self._queue, self._show = folder, queue, show
        self._sweep, self._keys = folder.sweep, folder.sweep.keys
        try:
            self._owner = RunOwner.acquire(folder.path, secrets.token_hex(8))
        except ConfigError as error:
            what = f"has a driver already{owner_record.process_of(folder.path)}"
            raise ConfigError.about(folder.path, what, "see: zmqrl sweep status") from error
        self._evaluations: dict[EvaluateCheckpoint, subprocess.Popen[bytes]] = {}
        self._killed: Counter[EvaluateCheckpoint] = Counter()
        self._failed: set[int] = set()

    def __enter__(self) -> SweepDriver:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._evaluations.values():
            assert process.stdin is not None
            process.stdin.close()  # it ends with its stdin
        deadline = time.monotonic() + END_S
        for process in self._evaluations.values():
            assert process.stdout is not None
            with process.stdout:
                _await_end(process, deadline)
        with contextlib.suppress(OSError):
            self._owner.release()

    def step(self) -> bool:
        """Do what is to be done now. False: nothing was. OSError: a folder cannot be used now.

        ConfigError: Another driver has taken over, or a record is damaged.
        """
        has_changed = self._collect()
        trials = self._trials()
        for number, verdict in enumerate(judge(self._keys, trials)):
            if verdict.status == "failed" and number not in self._failed:
                self._failed.add(number)
                self._show(f"trial {number} failed: {trials[number].reason()}")
        for action in decide(self._keys, trials, self._folder.is_stopped):
            if (successor := self._owner.successor) is not None:  # this process may have been frozen
                raise ConfigError.about(self._folder.path, f"was taken over by {successor}")
            has_changed |= self._do(action)
        return has_changed

    def has_ended(self) -> bool:
        """Whether the sweep is stopped, or complete; the best trial is then a preset."""
        if self._folder.is_stopped:
            return True
        trials = self._trials()
        if not has_ended(self._keys, trials):
            return False
        if (best := best_of(judge(self._keys, trials))) is not None:
            write_preset(self._folder, trials[best].parameters)
        return True

    def _trials(self) -> list[Trial]:
        return self._folder.trials(self._queue.read())

    def _do(self, action: Action) -> bool:
        """Carry out an action; whether it changed anything."""
        if isinstance(action, EvaluateCheckpoint):
            return self._evaluate(action)
        if isinstance(action, AddTrial):
            self._folder.create_record(f"trial-{action.trial}", self._parameters_of(action.trial))
        elif isinstance(action, AddJob):
            job = self._queue.add(self._record(action), is_numbered=False)
            if job.number <= self._sweep.jobs_before:  # it would count as one of a removed sweep
                self._queue.request(job.number, STOP)
                what, fix = "is not the queue of this sweep: it was made again", f"remove {self._folder.path} too"
                raise ConfigError.about(self._queue.path, what, fix)
            self._show(f"{self._name(action)}: job {job.number}")
        else:
            request(self._folder, self._queue, action)
            self._show(f"job {action.job}: {action.name} requested")
        return True

    def _parameters_of(self, trial: int) -> Mapping[str, Any]:
        if self._keys.method != "optuna":
            return self._keys.parameters_of(trial)
        from zmqrl.sweeps.optuna_trials import propose

        trials = self._trials()
        return propose(self._keys, trial, trials, judge(self._keys, trials))

    def _record(self, action: AddJob) -> JobRecord:
        keys, seed = self._keys, self._sweep.first_seed + action.seed
        overrides = [*self._sweep.overrides(self._folder.parameters(action.trial)), f"run.seed={seed}"]
        overrides += [f"store.keep_every={keys.rungs[0]}"] if keys.rungs else []
        run_dir = str(self._folder.run_dir(action.trial, action.seed))
        what = keys.preset, tuple(overrides), self._sweep.folder, run_dir
        return JobRecord(os.geteuid(), *what, keys.priority, keys.needs, ())

    def _evaluate(self, action: EvaluateCheckpoint) -> bool:
        if action in self._evaluations or len(self._evaluations) * CORES_PER_EVALUATION >= usable_cores():
            return False
        run_dir = str(self._folder.run_dir(action.trial, action.seed))
        words = [sys.executable, "-m", "zmqrl", "--until-eof", "eval", run_dir]
        words += ["--checkpoint", action.checkpoint, "--episodes", str(self._keys.episodes)]
        words += ["--seed", str(self._keys.seed), "--json"]
        pipe, folder = subprocess.PIPE, self._sweep.folder
        self._evaluations[action] = subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=folder, start_new_session=True)
        return True

    def _collect(self) -> bool:
        """Record the values of the evaluations that have ended; whether there were any."""
        ended = [action for action, process in self._evaluations.items() if process.poll() is not None]
        for action in ended:
            process = self._evaluations.pop(action)
            content, code, name = process.communicate()[0], process.returncode, self._name(action)
            place = f"{name} {self._sweep.stage_name(action.stage)}"
            if code < 0 or code == Interrupted.exit_code:
                self._killed[action] += 1
                if self._killed[action] < MOST_LOST:
                    self._show(f"{place}: the evaluation was killed and is started again")
                    continue
            elif code not in (0, EnvFault.exit_code):
                fix = "see the message of zmqrl eval above"
                raise ConfigError.about(name, "cannot be evaluated on this machine", fix)
            value = None if code else self._value(json.loads(content.splitlines()[-1]))
            self._folder.create_record(f"value-{action.trial}-{action.seed}-{action.stage}", ValueRecord(value))
            self._show(f"{place}: {'the evaluation failed' if value is None else value}")
        return bool(ended)

    def _value(self, score: Mapping[str, Any]) -> float | None:
        by = self._sweep.best_by
        value: float = score["return_mean"] if by is None else score["reports"].get(by, math.nan)
        return value if abs(value) <= LARGEST_FINITE else None

    def _name(self, action: AddJob | EvaluateCheckpoint) -> str:
        return f"trial {action.trial}, seed {self._sweep.first_seed + action.seed}"


def _await_end(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a file system that is away
            process.wait(KILL_S)


def request(folder: SweepFolder, queue: QueueFolder, action: RequestOfJob) -> None:
    """Request the end or the pause of a job. A pause is withdrawn where the sweep was resumed since it was decided."""
    queue.request(action.job, action.name)
    if action.name == HOLD and not folder.is_stopped:
        queue.withdraw(action.job, HOLD)


def drive(folder: SweepFolder, queue: QueueFolder, hosts: RunnerHosts, show: Callable[[str], None]) -> None:
    """Continue a sweep until it has ended, as the runner of the queue too while this user has no other one."""
    with ExitStack() as stack:
        driver = stack.enter_context(SweepDriver(folder, queue, show))
        folder.set_stopped(False)
        for job in queue.read().jobs.values():
            if job.record.uid == os.geteuid() and Path(job.record.run_dir).is_relative_to(folder.path):
                if job.end is None and job.number <= folder.sweep.jobs_before:
                    queue.request(job.number, STOP)
                queue.withdraw(job.number, HOLD)
        runner, next_at, has_ended, is_away = None, 0.0, False, False

        def step() -> bool:
            nonlocal runner, next_at, has_ended, is_away
            if runner is None and time.monotonic() >= next_at:
                next_at = time.monotonic() + RUNNER_EVERY_S
                with contextlib.suppress(RunnerActive):
                    runner = stack.enter_context(JobRunner(queue, hosts, show))
            has_changed = has_ended = False
            try:
                has_changed = driver.step()
                has_ended = not has_changed and driver.has_ended()
                is_away = False
            except OSError as error:  # the runner serves other jobs too
                if not is_away:
                    show(f"the sweep {folder.path} cannot continue: {error}; it is tried again")
                is_away = True
            return (runner is not None and runner.step()) or has_changed

        serve(step, lambda: has_ended, show)


def write_preset(folder: SweepFolder, parameters: Mapping[str, Any]) -> None:
    """Write the configuration of a trial to `best.yaml`: a file for `zmqrl train`."""
    preset = f"run.preset={json.dumps(folder.sweep.keys.preset)}"
    tree = data_of(as_one(from_flags([preset, *folder.sweep.overrides(parameters)]), SET))
    plain = json.loads(json.dumps(tree, default=lambda _: None))  # a key that is reset has an object as its value
    content = yaml.safe_dump(plain, sort_keys=False).encode()
    files.replace(str(folder.path / PRESET), [(0, content)], str(folder.path / f".{PRESET}"), False)
