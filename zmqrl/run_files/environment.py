"""`environment/attempt-N.json`: what an attempt ran on, and with which code of its user."""

from __future__ import annotations

import json
import platform
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zmqrl.capacity import usable_cores
from zmqrl.config.codec import to_json
from zmqrl.config.plan import RunPlan
from zmqrl.installed import installed
from zmqrl.run_files.user_code import Repository, Snapshot, snapshots

FOLDER = "environment"
SCHEMA = 1
PACKAGES = ("zmqrl", "torch", "gymnasium", "numpy")
WAIT_S = 60.0
"""For git, whose commands have limits of their own."""


@dataclass(frozen=True)
class EnvironmentRecord:
    """One attempt: the launcher's machine, and the repositories of the user's code."""

    schema: int
    attempt: int
    started_at: float
    host: str
    versions: Mapping[str, str]
    os: str
    cpu: str
    cores: int
    """That the launcher may use."""
    gpus: tuple[str, ...]
    code: tuple[Repository, ...]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result may depend on; that of torch without its import."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    return found | {package: installed(package) or "unknown" for package in PACKAGES}  # a checkout is not installed


class EnvironmentWriter:
    """Looks at code and machine in a thread, while the processes of the run start; writes once."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._found: list[Snapshot] = []
        self._is_written = False
        self._thread = threading.Thread(target=self._look, name="code", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        self._found = snapshots(self._plan.config)

    @property
    def is_due(self) -> bool:
        """Whether `write` has something to write, and does not wait."""
        return not self._is_written and not self._thread.is_alive()

    def write(self, run_dir: Path) -> None:
        """Write the record and the changes of each repository, once. OSError: not all is written, try again."""
        if self._is_written:
            return
        self._thread.join(WAIT_S)
        folder, stem = run_dir / FOLDER, f"attempt-{self._plan.lineage.attempt}"
        folder.mkdir(exist_ok=True)
        numbered = [f"{stem}.diff", *(f"{stem}-{n}.diff" for n in range(2, len(self._found) + 1))]
        found = [snapshot.named(name) for name, snapshot in zip(numbered, self._found, strict=False)]
        for snapshot in found:
            if snapshot.repository.diff is not None:
                (folder / snapshot.repository.diff).write_bytes(snapshot.changes)
        record = EnvironmentRecord(
            schema=SCHEMA,
            attempt=self._plan.lineage.attempt,
            started_at=self._plan.started_at,
            host=socket.gethostname(),
            versions=versions(),
            os=f"{platform.system()} {platform.release()} {platform.machine()}, {_distribution()}",
            cpu=cpu_model(),
            cores=usable_cores(),
            gpus=tuple(_gpus()),
            code=tuple(snapshot.repository for snapshot in found),
        )
        (folder / f"{stem}.json").write_text(json.dumps(to_json(record), indent=2) + "\n", encoding="utf-8")
        self._is_written = True


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def cpu_model() -> str:
    """Model of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _gpus(folder: Path = Path("/proc/driver/nvidia/gpus")) -> Iterator[str]:
    """Models of NVIDIA, as their driver names them."""
    for path in sorted(folder.glob("*/information")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        yield next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")), "unknown")
