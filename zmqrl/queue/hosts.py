"""The hosts on which a runner starts jobs, and the command line of a run there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from zmqrl.capacity import usable_cores
from zmqrl.config.hosts import LOCAL
from zmqrl.config.load import resolve_logins
from zmqrl.errors import ConfigError
from zmqrl.queue.records import Job, JobAttempt
from zmqrl.queue.schedule import Capacity
from zmqrl.run_files.records import read_summary
from zmqrl.run_files.run_info import read_info
from zmqrl.supervision.gpus import VISIBLE, query, visible_gpus

TRAINED = "env_steps", "updates", "first_env_step_s"
"""Fields of a summary of which one is above 0 once anything was trained."""
_OF_LOCAL = re.compile(r"^\s*hosts\.local\.")


@dataclass(frozen=True)
class RunnerHosts:
    """Slots by host, this machine under its own name, and the file that describes the hosts; None: this machine."""

    capacity: dict[str, Capacity]
    file: Path | None = None

    @classmethod
    def of(cls, file: Path | None) -> RunnerHosts:
        """The hosts of `file` that have a capacity. ConfigError: none has, or the file is invalid."""
        if file is None:
            gpus = visible_gpus(query(), os.environ.get(VISIBLE))
            return cls({socket.gethostname(): Capacity(usable_cores(), len(gpus or ()))})
        slots = {name: host.capacity for name, host in resolve_logins(file).hosts.items() if host.capacity is not None}
        if not slots:
            fix = "add hosts.NAME.capacity: {cores: 8, gpus: 1} for the hosts that run jobs"
            raise ConfigError("no host has a capacity", source=str(file), key=("hosts",), fix=fix)
        found = {_shared_name(name): Capacity(slot.cores, slot.gpus) for name, slot in slots.items()}
        return cls(found, file.absolute())

    def command(self, job: Job, attempt: JobAttempt) -> list[str]:
        """The words that start or continue the run of a job. Stdin keeps it alive: it ends with the runner."""
        record, host = job.record, attempt.record.host
        name = LOCAL if self.file is None or host == socket.gethostname() else host
        pairs = [f"hosts.{name}.cores={record.needs.cores}", f"hosts.{name}.workers=auto"]
        words = [sys.executable, "-m", "zmqrl", "--until-eof"]
        if self.file is None:
            words += ["train", record.preset]
        else:
            words += ["launch", str(self.file), "--limit", name]
            pairs += [f"run.preset={record.preset}", f"learner.host={name}"]
            pairs += [] if name == LOCAL else [f"hosts.{name}.env.{VISIBLE}={json.dumps(_listed(attempt))}"]
        pairs += [_OF_LOCAL.sub(f"hosts.{name}.", pair) for pair in record.overrides]
        words += [word for pair in pairs for word in ("--set", pair)]
        return [*words, "--run-dir", record.run_dir, "--resume", "auto", "--plain"]


def environment(attempt: JobAttempt) -> dict[str, str]:
    """Environment of a launcher: on this machine a job sees the GPUs that it has."""
    if attempt.record.host != socket.gethostname():
        return dict(os.environ)
    visible = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    gpus = [visible[index] for index in attempt.record.gpus] if visible else None
    return {**os.environ, VISIBLE: _listed(attempt) if gpus is None else ",".join(gpus)}


def has_launcher(run_dir: Path) -> bool:
    """Whether this machine has a launcher of this user for the run, also one that has no record yet."""
    words = b"\0--run-dir\0%b\0" % os.fsencode(run_dir)
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if file.stat().st_uid == os.geteuid() and words in file.read_bytes():
                return True
    return False


def has_begun(run_dir: Path) -> bool:
    """Whether the last attempt of a run may have left checkpoints: not where its summary names no step and no update.

    An attempt whose host did not start has no number of env steps; one without a summary was killed.
    """
    info = read_info(run_dir)
    summary = None if info is None else read_summary(run_dir, info.run_id)
    return info is not None and (summary is None or any(map(summary.get, TRAINED)))


def _listed(attempt: JobAttempt) -> str:
    return ",".join(map(str, attempt.record.gpus))


def _shared_name(name: str) -> str:
    """The name of a host among all runners: `local` is another machine for each."""
    return socket.gethostname() if name == LOCAL else name
