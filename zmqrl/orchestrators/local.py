"""This machine: the host agent is a child of the launcher, in a session of its own."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.supervision.process_table import ProcessId, await_gone, kill, session_members

SENTINEL = "ZMQRL-AGENT 1 "
HOST = "local"
KILL_WAIT_S = 3.0
DEATH_SIGNAL_S = 1.0
"""How long the kernel may take to kill the children of a killed agent."""
READER_END_S = 2.0


class LocalOrchestrator(Orchestrator):
    """Starts the agent with this interpreter, in this working directory."""

    def __init__(self, agent_command: Sequence[str] = (sys.executable, "-m", "zmqrl.entry")) -> None:
        """`agent_command`: what stands before `zmqrl.agent RUN 0`."""
        self._agent_command = tuple(agent_command)
        self._agent: subprocess.Popen[bytes] | None = None
        self._events: queue.Queue[HostEvent] = queue.Queue()
        self._reader: threading.Thread | None = None
        self._processes: dict[ProcessId, str] = {}
        self._finished: Mapping[str, Any] | None = None
        self._writing = threading.Lock()

    def deploy(self, plan: RunPlan) -> None:
        log = Path(plan.run_dir) / "logs" / f"{HOST}-agent-0.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._agent = subprocess.Popen(
                [*self._agent_command, "zmqrl.agent", plan.run_id, "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._send(to_json(Boot("agent", 0, 0, HOST, plan)))
        self._reader = threading.Thread(target=self._read, args=(self._agent,), name="agent events", daemon=True)
        self._reader.start()

    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        events = []
        try:
            events.append(self._events.get(timeout=timeout_s))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def command(self, host: str | None, command: Mapping[str, Any]) -> None:
        if host in (None, HOST):
            self._send(command)

    def undeploy(self, grace_s: float) -> Teardown:
        agent = self._agent
        if agent is None:
            return Teardown(0)
        killed = self._end_agent(agent, grace_s)
        if self._reader is not None:
            self._reader.join(READER_END_S)
        for process in session_members(agent.pid):
            self._processes.setdefault(process, f"{HOST}/stray (pid {process.pid})")
        orphans = await_gone(self._processes, DEATH_SIGNAL_S)
        killed += self._kill(orphans)
        left = await_gone(self._processes, KILL_WAIT_S)
        self._close(agent)
        finished = self._finished or {}
        return Teardown(
            ended=int(finished.get("ended", 0)),
            killed=(*finished.get("killed", ()), *killed),
            left=tuple(self._processes[process] for process in left),
        )

    def _end_agent(self, agent: subprocess.Popen[bytes], grace_s: float) -> list[str]:
        for command, wait_s in (({"command": "stop"}, grace_s), ({"command": "kill"}, KILL_WAIT_S)):
            if agent.poll() is None:
                self._send(command)
            try:
                agent.wait(wait_s)
                return []
            except subprocess.TimeoutExpired:
                continue
        agent.kill()
        agent.wait(KILL_WAIT_S)
        return [f"{HOST}/agent-0 (pid {agent.pid})"]

    def _kill(self, processes: Sequence[ProcessId]) -> list[str]:
        return [self._processes[process] for process in processes if kill(process)]

    def _send(self, data: Mapping[str, Any]) -> None:
        agent = self._agent
        if agent is None or agent.stdin is None or agent.stdin.closed:
            return
        try:
            with self._writing:
                agent.stdin.write(json.dumps(data, separators=(",", ":")).encode() + b"\n")
                agent.stdin.flush()
        except BrokenPipeError:
            pass  # it ended: the reader tells

    def _close(self, agent: subprocess.Popen[bytes]) -> None:
        for pipe in (agent.stdin, agent.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass
        self._agent = None

    def _read(self, agent: subprocess.Popen[bytes]) -> None:
        """The reader thread: lines to events until the agent's stdout ends."""
        assert agent.stdout is not None
        for raw in agent.stdout:
            line = raw.decode(errors="replace").strip()
            if line.startswith(SENTINEL):
                self._put("agent", json.loads(line.removeprefix(SENTINEL)))
            elif line.startswith("{"):
                data = json.loads(line)
                self._put(data.pop("event", "unknown"), data)
        self._put("agent_exit", {"code": agent.wait()})

    def _put(self, name: str, data: dict[str, Any]) -> None:
        if name == "started":
            process = ProcessId(int(data["pid"]), int(data["start_time"]))
            self._processes[process] = f"{HOST}/{data['role']}-{data['index']} (pid {process.pid})"
        elif name == "finished":
            self._finished = data
        self._events.put(HostEvent(HOST, name, data))
