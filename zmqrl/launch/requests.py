"""Requests of other commands to a running launcher, a file each in the run directory, and the workers they change."""

from __future__ import annotations

import contextlib
import copy
import os
import secrets
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from zmqrl.config.plan import MOST_WORKERS, RunPlan, worker_indexes
from zmqrl.errors import ConfigError, DeadlineExceeded, WireError
from zmqrl.launch.run_directory import read_info
from zmqrl.messages.files import RequestAnswer, ScaleRequest, decode
from zmqrl.messages.lines import line_of
from zmqrl.views.problem import counted

FOLDER = "requests"
POLL_EVERY_S = 0.05
MAX_BYTES = 1 << 20
TAKEN_S = 5.0
"""A request that the launcher has removed is answered at once: so much longer is waited, and no answer is left."""


def send_request(run_dir: Path, request: ScaleRequest, deadline_s: float) -> str:
    """Put a request and wait for its answer. A command that is interrupted withdraws its request.

    Raises:
        ConfigError: The launcher refuses it; the message is its own.
        DeadlineExceeded: It does not answer.
        WireError: Its answer is none.
    """
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    name = secrets.token_hex(6)
    request_path, answer_path = folder / f"{name}.json", folder / f"{name}.answer"
    try:
        _write(request_path, request)
        if not _appears(answer_path, deadline_s) and (_removed(request_path) or not _appears(answer_path, TAKEN_S)):
            info = read_info(run_dir)
            hint = ""
            if info is not None and info.host != socket.gethostname():
                hint = f"; the run was started on {info.host}: run the command on that host"
            raise DeadlineExceeded(f"no answer from the launcher of {run_dir} within {deadline_s:g} s{hint}")
        answer = decode(RequestAnswer, answer_path.read_bytes())
    finally:
        for path in (request_path, answer_path):
            path.unlink(missing_ok=True)
    if answer.refused is not None:
        raise ConfigError(answer.refused)
    return answer.done or ""


def _appears(path: Path, deadline_s: float) -> bool:
    until = time.monotonic() + deadline_s
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_EVERY_S)  # a file is all that two processes of any two times share
    return True


def _removed(path: Path) -> bool:
    """Remove a request. False: the other end was faster: the launcher answers, or the command has given up."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


class Requests:
    """The launcher's end."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER
        self._earlier: set[Path] = set()
        """Files of an earlier attempt that could not be removed."""

    def clear(self) -> None:
        """An attempt begins: what commands and the launcher of an earlier one left in the folder is removed.

        A file that cannot be removed is never served.

        Raises:
            OSError: The folder cannot be read.
        """
        with contextlib.suppress(FileNotFoundError):
            self._earlier = set(self._folder.iterdir())
            self._remove_earlier()

    def _remove_earlier(self) -> None:
        for path in list(self._earlier):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                self._earlier.remove(path)

    def waiting(self) -> Iterator[tuple[Path, ScaleRequest | WireError]]:
        """Requests that are there, or why one is none, each with the name to answer under.

        Raises:
            OSError: The folder cannot be used now.
        """
        self._remove_earlier()
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            if path in self._earlier or not path.is_file():  # a folder may have such a name
                continue
            request = _read(path)
            if _removed(path):  # first: what cannot be removed would be served for ever
                yield path, request

    def answer(self, path: Path, answer: RequestAnswer) -> None:
        """What became of the request."""
        _write(path.with_suffix(".answer"), answer)


def _read(path: Path) -> ScaleRequest | WireError:
    try:
        if path.stat().st_size >= MAX_BYTES:
            return WireError("size", f"a request of more than {MAX_BYTES} bytes")
        return decode(ScaleRequest, path.read_bytes())
    except OSError as error:
        return WireError("unreadable", str(error))
    except WireError as error:
        return error


def _write(path: Path, message: ScaleRequest | RequestAnswer) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(line_of(message))
    temporary.replace(path)


class Scaling:
    """An index removed from a host is never used again: the broker has removed its worker."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        participating = (host for host, workers in plan.workers.items() if workers)
        self._hosts = dict.fromkeys((plan.config.learner.host, *participating))
        self._held = {host: list(indexes) for host, indexes in worker_indexes(plan.workers).items()}
        self._next = plan.total_workers

    @property
    def total(self) -> int:
        """Workers of all hosts."""
        return sum(len(indexes) for indexes in self._held.values())

    def held(self, host: str) -> tuple[int, ...]:
        """Indexes of a host's workers."""
        return tuple(self._held.get(host, ()))

    def admit(self, hosts: Collection[str]) -> None:
        """Hosts that were not part of the run at its start may have workers from now on."""
        self._hosts = self._hosts | dict.fromkeys(hosts)

    def forget(self, host: str) -> None:
        """The host is lost: when it returns, its workers have other indexes."""
        self._held[host] = []

    def scale(self, host: str, workers: int, least: int = 1, failed: Collection[int] = ()) -> tuple[int, ...]:
        """The indexes that `host` is to hold from now on.

        Args:
            host: Of the run.
            workers: How many it is to hold.
            least: Workers that the run keeps.
            failed: Workers that are not restarted: they are removed first, then the highest indexes.

        Raises:
            ConfigError: The reason for a rejection; nothing was changed.
        """
        self._check(host, workers, least)
        held = sorted(self._held.get(host, ()), key=lambda index: (index in failed, index))
        while len(held) < workers:
            held.append(self._next)
            self._next += 1
        self._held[host] = sorted(held[:workers])
        return self.held(host)

    def try_all(
        self,
        wanted: Mapping[str, int],
        forgotten: Collection[str] = (),
        admitted: Collection[str] = (),
        least: int = 1,
    ) -> list[str]:
        """Change nothing. The hosts of `wanted` in the order in which to scale them: those that lose workers first.

        Args:
            wanted: Workers by host.
            forgotten: Hosts that are forgotten before.
            admitted: Hosts that are admitted before.
            least: Workers that the run keeps.

        Raises:
            ConfigError: One of the changes is unavailable.
        """
        trial = copy.copy(self)
        trial._held = {host: list(held) for host, held in self._held.items()}
        trial.admit(admitted)
        for host in forgotten:
            trial.forget(host)
        order = sorted(wanted, key=lambda host: wanted[host] - len(trial.held(host)))
        for host in order:
            trial.scale(host, wanted[host], least=0)
        if trial.total < min(1, least):
            raise _last_worker(wanted)
        if trial.total < min(least, self.total):
            changes = " ".join(f"{host}={workers}" for host, workers in wanted.items())
            raise ConfigError(
                f"{changes} is refused: {counted(trial.total, 'worker')} would remain, and min_workers is {least}. "
                "To end the run: zmqrl stop"
            )
        return order

    def _check(self, host: str, workers: int, least: int) -> None:
        config, others = self._plan.config, self.total - len(self._held.get(host, ()))
        if host not in self._hosts and (workers or host not in config.hosts):
            raise ConfigError(f"unknown host {host!r}; hosts of this run: {', '.join({**config.hosts, **self._hosts})}")
        if config.mode.in_process:
            raise ConfigError("mode single has no workers to scale")
        if others + workers < least:
            raise _last_worker({host: workers})
        if config.mode.deterministic and others + workers > config.env.vector_envs:
            raise ConfigError(
                f"{host}={workers} gives {others + workers} workers for {config.env.vector_envs} vector "
                "envs: in sync each worker needs at least one; set fewer workers"
            )
        if not config.mode.deterministic and others + workers > self._plan.streams:
            raise ConfigError(
                f"{host}={workers} gives {others + workers} workers, and this run supports at most "
                f"{self._plan.streams}: stop it with `zmqrl stop`, and resume it with more workers"
            )
        if self._next + workers - len(self._held.get(host, ())) > MOST_WORKERS:
            raise ConfigError(
                f"{host}={workers}: the run has already started {self._next} workers, and the limit is {MOST_WORKERS}: "
                "stop it with `zmqrl stop`, and resume it"
            )


def _last_worker(wanted: Mapping[str, int]) -> ConfigError:
    return ConfigError(
        f"{', '.join(wanted)}: no other host has workers, and a run needs one; to end the run: zmqrl stop"
    )
