"""This machine: the host agent is a child of the launcher, in a separate session."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot
from zmqrl.messages.agent import Command, Handshake
from zmqrl.messages.lines import line_of
from zmqrl.orchestrators._agents import KILL_WAIT_S, Agent, AgentsOrchestrator, Ended
from zmqrl.supervision.process_table import ProcessId, await_gone, kill, session_members

ENTRY = (sys.executable, "-m", "zmqrl.entry")
DEATH_SIGNAL_S = 1.0
"""How long the kernel may take to kill the children of a killed agent."""


class LocalAgent(Agent):
    """Runs with this interpreter, in this working directory."""

    def __init__(self, boot: Boot, agent_command: Sequence[str] = ENTRY) -> None:
        super().__init__(boot)
        log = Path(boot.plan.run_dir) / "logs" / f"{boot.host}-agent-0.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*agent_command, "zmqrl.agent", boot.plan.run_id, "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._writing = threading.Lock()
        self._killed: list[str] = []
        self._write(json.dumps(to_json(boot)).encode() + b"\n")

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            yield raw.decode(errors="replace").strip()

    def introduced(self, handshake: Handshake) -> None:
        """It is of this version."""

    def send(self, command: Command) -> None:
        self._write(line_of(command))

    def _write(self, line: bytes) -> None:
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            return
        try:
            with self._writing:
                stdin.write(line)
                stdin.flush()
        except BrokenPipeError:
            pass  # it ended: the reader tells

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(KILL_WAIT_S)
        self._killed.append(f"{self.host}/agent-0 (pid {self._process.pid})")

    def end(self) -> Ended:
        killed = self._killed
        processes = {ProcessId(*process): who for process, who in self.told.started.items()}
        for process in session_members(self._process.pid):
            processes.setdefault(process, f"{self.host}/stray (pid {process.pid})")
        orphans = await_gone(processes, DEATH_SIGNAL_S)
        killed += [processes[process] for process in orphans if kill(process)]
        left = await_gone(processes, KILL_WAIT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass
        return Ended(tuple(killed), tuple(processes[process] for process in left))


class LocalOrchestrator(AgentsOrchestrator):
    """Every host is this machine: a run has one, tests have several."""

    def __init__(self, agent_command: Sequence[str] = ENTRY) -> None:
        """`agent_command`: the command before `zmqrl.agent RUN 0`."""
        super().__init__()
        self._agent_command = tuple(agent_command)

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        for boot in boots.values():
            self.adopt(LocalAgent(boot, self._agent_command))
