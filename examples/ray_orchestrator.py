"""Hosts that are nodes of a Ray cluster, by their names: `ray start --head --node-name n1`.

In hosts.yaml: `orchestrator: {kind: ray_orchestrator:Ray}`. RAY_ADDRESS selects another cluster than this machine's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from zmqrl.config.sections import Config as RunConfig
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.shell_orchestrator import ShellOrchestrator
from zmqrl.ssh.shell import Finished, HostShell, Pipe

THREADS, END_S, PLACE_S = {"stdin": 1, "stdout": 1, "stderr": 1, "end": 1}, 2.0, 20.0
CONNECTOR = ThreadPoolExecutor(1)  # in the main thread Ray would take the signals of the launcher
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes do not have this module


class Program:
    """The actor: a line of `sh`, whose stdin ends with the actor, also when the launcher is killed."""

    def __init__(self, line: str) -> None:
        self._process: Any = subprocess.Popen(["sh", "-c", line], stdin=-1, stdout=-1, stderr=-1)

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended
            os.write(self._process.stdin.fileno(), data) if data else self._process.stdin.close()

    def read(self, name: str) -> bytes:
        return os.read(getattr(self._process, name).fileno(), 65536)

    def wait(self) -> int:
        return int(self._process.wait())


def connect() -> None:
    if not ray.is_initialized():
        ray.init("auto", log_to_driver=False)


def run(line: str, timeout_s: float) -> tuple[int, bytes, bytes]:
    done = subprocess.run(["sh", "-c", line], input=b"", capture_output=True, timeout=timeout_s, check=False)
    return done.returncode, done.stdout, done.stderr


class RayPipe(Pipe):
    def __init__(self, program: Any, stderr: Path) -> None:
        self._program, self._code = program, program.wait.options(concurrency_group="end").remote()
        self._log = threading.Thread(target=self._append, args=(stderr,), daemon=True)
        self._log.start()

    def write(self, data: bytes) -> None:
        self._program.write.options(concurrency_group="stdin").remote(data)

    def lines(self) -> Iterator[str]:
        return self.split(self._read("stdout"))

    def _read(self, name: str) -> Iterator[bytes]:
        with contextlib.suppress(RayError):
            while chunk := ray.get(self._program.read.options(concurrency_group=name).remote(name)):
                yield chunk

    def _append(self, path: Path) -> None:
        with path.open("ab", buffering=0) as log:
            log.writelines(self._read("stderr"))

    def exit_status(self, timeout_s: float) -> int | None:
        with contextlib.suppress(RayError):
            return int(ray.get(self._code)) if ray.wait([self._code], timeout=timeout_s)[0] else None
        return -1

    def close(self) -> None:
        self.write(b"")
        self.exit_status(END_S)
        self._log.join(END_S)
        ray.kill(self._program)


@dataclass(frozen=True)
class RayShell(HostShell):
    host: str

    def _there(self, function: Any, **options: Any) -> Any:
        CONNECTOR.submit(connect).result()
        for node in ray.nodes():
            if node["Alive"] and self.host in (node["NodeName"], node["NodeManagerAddress"]):
                place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                return ray.remote(num_cpus=0, scheduling_strategy=place, **options)(function)
        raise HostFailed(self.host, "the Ray cluster has no such node", f"ray start --node-name {self.host}")

    def run(self, command: str, timeout_s: float) -> Finished:
        try:
            return Finished(*ray.get(self._there(run).remote(command, timeout_s), timeout=timeout_s + PLACE_S))
        except RayError as error:
            raise HostFailed(self.host, str(error).strip(), "ray status") from error

    def start(self, command: str, stderr: Path) -> RayPipe:
        return RayPipe(self._there(Program, concurrency_groups=THREADS).remote(command), stderr)

    def close(self) -> None: ...


class Ray(ShellOrchestrator):
    @classmethod
    def shell(cls, config: Any, run: RunConfig, host: str) -> RayShell:
        return RayShell(host)
