"""A run under drill: the command in a separate process, its processes, and what can be seen of it from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.drill.recovery import RunSnapshot
from zmqrl.drill.shared_view import SharedView
from zmqrl.launch.stop_signals import request_stop
from zmqrl.run_files.run_info import launcher_state, read_info
from zmqrl.run_files.stored_config import stored_place
from zmqrl.supervision.process_table import ProcessId, await_gone, held_by_kernel, identify, is_alive, kill
from zmqrl.supervision.run_owner import OwnerState
from zmqrl.types import Array, Ledger, Version
from zmqrl.wire.runtime_folder import private_folder, remove_left_folder

LAUNCHER = "launcher-0"
GONE_S = 5.0
"""Within this everything must be gone once launcher or host agent was killed."""
END_S = 60.0
"""How long a run may take to stop."""
POLL_EVERY_S = 0.02
_VERSION = re.compile(r"v(\d+)-(\d+)\.safetensors")


def processes_below(pid: int) -> dict[str, ProcessId]:
    """`role-index` to process of a run, as `/proc` shows them below a launcher.

    A process that was forked has the command line of its parent at first, so the older one counts.
    """
    found: dict[str, ProcessId] = {}
    todo = [pid]
    for each in todo:
        try:
            todo += [int(p) for p in Path(f"/proc/{each}/task/{each}/children").read_text(encoding="utf-8").split()]
            arguments = Path(f"/proc/{each}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        process = identify(each)
        if process is not None and is_alive(process) and len(arguments) > 5 and arguments[3].startswith("zmqrl."):
            found.setdefault(f"{arguments[3].removeprefix('zmqrl.')}-{arguments[5]}", process)
    return found


@dataclass(frozen=True)
class Attempt:
    """One lifetime of the launcher, and the stream records at the end of its arena (None: no arena)."""

    ended_ns: int
    """Unix time."""
    ledger: Ledger | None
    left_over: Array | None = None
    in_flight: Array | None = None
    killed: bool = False
    """Launcher or host agent was."""
    broker_killed: bool = False
    """While the attempt ended, so that no other took its place."""

    @property
    def may_hold_sealed(self) -> bool:
        """Whether slots may remain that are sealed and that no broker accepted; the ledger counts them in flight."""
        return self.killed or self.broker_killed


@dataclass
class RunUnderTest:
    """One run; `start` first."""

    name: str
    plan: RunPlan
    """For the layout of its memory; the run makes its own from the same arguments."""
    arguments: Sequence[str]
    """Arguments after `zmqrl train`."""
    witness: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What outlived its launcher or agent by `GONE_S`."""
    furthest_n: int = 0
    """Highest n of all versions that were seen, over all learners and attempts."""
    _process: subprocess.Popen[bytes] | None = None
    _view: SharedView | None = None

    @property
    def run_dir(self) -> Path:
        """Where it writes."""
        return Path(self.plan.run_dir)

    @property
    def checkpoints(self) -> Path:
        """Directory of its checkpoints: of the run's own lineage, `plan` has another."""
        return Path(stored_place(self.run_dir, self.plan.config))

    @property
    def output(self) -> Path:
        """Everything that its launchers reported."""
        return self.run_dir.with_name(f"{self.name}.log")

    @property
    def exit_code(self) -> int | None:
        """The launcher's, once it has ended."""
        return None if self._process is None else self._process.poll()

    @property
    def sync(self) -> bool:
        """Whether successors continue from the state of their predecessors."""
        return self.plan.config.mode.deterministic

    def start(self, resume: bool = False) -> None:
        """Start the command, or `--resume`."""
        arguments = ["--resume", str(self.run_dir)] if resume else [*self.arguments, "--run-dir", str(self.run_dir)]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "zmqrl", "train", *arguments, "--plain"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the drill's, which ends the runs
            )

    def snapshot(self) -> RunSnapshot:
        """What is there now."""
        processes = self.processes()
        agent = processes.get("agent-0")
        if self._view is None and agent is not None and not self.plan.config.mode.in_process:
            self._view = SharedView.open(self.plan, agent.pid)
        stored = () if self._view is None else self._view.stored()
        return RunSnapshot(processes, stored, self._newest_version())

    def processes(self) -> dict[str, ProcessId]:
        """`role-index` to process, as `/proc` shows them below the launcher."""
        if self._process is None:
            return {}
        launcher = identify(self._process.pid)
        own = {} if launcher is None or not is_alive(launcher) else {LAUNCHER: launcher}
        return own | processes_below(self._process.pid)

    def await_gone(self, before: Mapping[str, ProcessId]) -> float:
        """Wait until nothing is left of a run whose agent or launcher was killed; seconds that it took."""
        assert self._process is not None
        begun = time.monotonic()
        try:
            self._process.wait(GONE_S)
        except subprocess.TimeoutExpired:
            pass
        left = _await_gone(before.values(), begun)
        took_s = time.monotonic() - begun
        self._note_left(before, left)
        self._process.wait(GONE_S)
        self._end_attempt(killed=True)
        return took_s

    def stop(self) -> int:
        """`zmqrl stop`, and wait for the end. Returns the exit code."""
        before = self.snapshot().processes
        self.request_stop()
        return self.await_end(before)

    def request_stop(self) -> None:
        """What `zmqrl stop` does, once the launcher has begun: a signal before that would kill it."""
        assert self._process is not None
        until = time.monotonic() + END_S
        while self._process.poll() is None and time.monotonic() < until:
            info = read_info(self.run_dir)
            if info is not None and launcher_state(self.run_dir, info, watch=False) is OwnerState.HERE:
                request_stop(self.run_dir, info)
                return
            time.sleep(POLL_EVERY_S)

    def await_end(self, before: Mapping[str, ProcessId], broker_killed: bool = False) -> int:
        """Wait for the end of a run after a stop request. Returns the exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.left.append(f"{self.name}/launcher did not end within {END_S:g} s of `zmqrl stop`")
            self.kill()
            return -signal.SIGKILL
        self._note_left(before, _await_gone(before.values(), time.monotonic()))
        self._end_attempt(killed=False, broker_killed=broker_killed)
        return code

    def kill(self) -> None:
        """End whatever is there, at once; safe to call again."""
        if self._process is None:
            return
        processes = self.processes()
        for process in processes.values():
            kill(process)
        self._process.wait(GONE_S)
        await_gone(processes.values(), GONE_S)
        self._drop_view()
        info = read_info(self.run_dir)
        if info is not None:
            remove_left_folder(info.run_id)

    def summary(self) -> dict[str, Any] | None:
        """`summary.json`, if a launcher came to write it."""
        try:
            loaded: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text(encoding="utf-8"))
            return loaded
        except (OSError, ValueError):
            return None

    def log_tail(self) -> str:
        """The end of what it reported."""
        try:
            return self.output.read_bytes()[-2000:].decode(errors="replace")
        except OSError:
            return ""

    def _end_attempt(self, killed: bool, broker_killed: bool = False) -> None:
        self._newest_version()
        view, attempt = self._view, Attempt(time.time_ns(), None, killed=killed, broker_killed=broker_killed)
        if view is not None:
            attempt = replace(attempt, ledger=view.ledger())
            if self.witness:
                attempt = replace(attempt, left_over=view.left_over(), in_flight=view.in_flight())
        self.attempts.append(attempt)
        self._drop_view()

    def _drop_view(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    def _note_left(self, before: Mapping[str, ProcessId], left: Sequence[ProcessId]) -> None:
        for slot, process in before.items():
            if process in left:
                self.left.append(f"{self.name}/{slot} (pid {process.pid}, {_what_it_does(process)})")
                kill(process)
        info = read_info(self.run_dir)
        if info is not None and private_folder(info.run_id).exists():
            self.left.append(f"{self.name}: {private_folder(info.run_id)}")

    def _newest_version(self) -> Version | None:
        version = self._saved_version() if self._view is None else self._view.version()
        if version is not None:
            self.furthest_n = max(self.furthest_n, version.n)
        return version

    def _saved_version(self) -> Version | None:
        """Without shared memory (single mode): the newest file in the store."""
        try:
            names = os.listdir(self.checkpoints)
        except OSError:
            return None
        versions = (Version(int(m[1]), int(m[2])) for m in map(_VERSION.fullmatch, names) if m)
        return max(versions, default=None)


def _await_gone(processes: Iterable[ProcessId], begun: float) -> list[ProcessId]:
    """Wait until all have ended; who is left `GONE_S` after `begun`, or `END_S` where the kernel holds one.

    A process that the kernel has released has `GONE_S` from then on.
    """
    left = await_gone(processes, max(0.0, begun + GONE_S - time.monotonic()))
    held = any(map(held_by_kernel, left))
    while held and left and time.monotonic() < begun + END_S:
        held = any(map(held_by_kernel, left))
        left = await_gone(left, GONE_S)
    return left


def _what_it_does(process: ProcessId) -> str:
    """State and kernel function, as `/proc` shows them."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8", errors="replace")
        state = re.search(r"^State:\s*(.*)$", status, re.MULTILINE)
        waits = Path(f"/proc/{process.pid}/wchan").read_text(encoding="utf-8")
    except OSError:
        return "it ended meanwhile"
    return f"{state[1] if state else 'unknown'} in {waits}"
