"""What the kinds of orchestrator share: agents by host, their lines as events, and an end that is verified."""

from __future__ import annotations

import json
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed, WireError, as_host_failed
from zmqrl.messages.agent import AgentEvent, HostFinished, LeaseLost, ProcessReport, Started, Unreachable, Warned
from zmqrl.messages.command import Command, KillAll, Stop
from zmqrl.messages.lines import agent_event, handshake, line_of
from zmqrl.messages.orchestrator import AgentExited, Event, Handshake, HostUnusable, LinesRefused
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.orchestrators.handshake import (
    SENTINEL,
    clock_warnings,
    missing_runtime,
    processor_refusal,
    refusals,
    versions,
    warnings,
)
from zmqrl.orchestrators.host_start import start_fault, unended_prologue
from zmqrl.orchestrators.piped import PipedProcess
from zmqrl.ssh.shell import OUTPUT_LINES, after_mark, printed

KILL_WAIT_S = 3.0
CANCEL_S, CANCEL_AGAIN_S = 10.0, 0.1
LOG_TAIL_BYTES = 16_000
RECORDS_END_S = 2.0
"""What an engine may take to record that a command has ended."""
Warn: TypeAlias = Callable[[str, str], None]
INSTALL = "install the zmqrl of this machine there (over SSH: zmqrl setup HOSTS.yaml --limit {host})"
INSTALL_RUNTIME = (
    'install it there: pip install "zmqrl[onnx]" (over SSH: zmqrl setup HOSTS.yaml --limit {host} --extras onnx)'
)


@dataclass(frozen=True)
class Ended:
    """What is known of a host after its agent has gone."""

    killed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass
class AgentProgress:
    """What an agent has reported so far; read by the main thread after the reader has seen it."""

    started: dict[tuple[int, int], str] = field(default_factory=dict)
    """(pid, start time) to `host/role-index (pid n)`."""
    finished: HostFinished | None = None
    refused: Counter[str] = field(default_factory=Counter)
    """Its lines that are not events, by reason."""
    output: deque[str] = field(default_factory=lambda: deque(maxlen=OUTPUT_LINES))
    """The last lines before its handshake: of a login shell."""


class Agent(ABC):
    """One host agent, however it was started. `lines` is read by a separate thread, the rest by the main thread.

    `send` is also called by the thread that renews the leases.
    """

    section = HostSection()
    """Of its host, where its command line was composed from one."""

    def __init__(self, boot: Boot, warn: Warn) -> None:
        """`warn` is called by the reader thread, with the host and a text for the user."""
        self.boot, self.host, self.warn = boot, boot.host, warn
        self.progress = AgentProgress()
        self._boot_lock = threading.Lock()
        self._is_booted = self._is_refused = self._is_stopped = False
        self.began = time.monotonic()
        """From when on its handshake is waited for."""

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """What it writes to stdout, until its end."""

    def unfinished(self) -> bytes:
        """What it has written after its last whole line."""
        return b""

    def stderr(self) -> str:
        """What it has written to stderr, as far as that is known."""
        return ""

    @abstractmethod
    def write(self, line: bytes) -> None:
        """To its stdin; never blocks; no error when it is gone."""

    def overdue(self) -> HostFailed | None:
        """Once, why it is not waited for any longer: `limits.start_s` have passed without a handshake."""
        limit_s = self.boot.plan.config.limits.start_s
        if self._is_booted or self._is_refused or time.monotonic() - self.began < limit_s or not self.refuse_boot():
            return None
        return self.no_handshake(f"within limits.start_s ({limit_s:g} s)")

    def no_handshake(self, when: str) -> HostFailed:
        """What is known of an agent that has sent no handshake, and still runs."""
        prologue = unended_prologue(self.host, self.section, self.stderr())
        if prologue is not None:
            fix = "log in and try the prologue; raise limits.start_s if it takes that long"
            return HostFailed(self.host, f"no handshake of the host agent {when}; {prologue}", fix)
        output = f"its login shell printed: {self.output}" if self.output else "its login shell printed nothing"
        return HostFailed(
            self.host,
            f"no handshake of the host agent {when}; {output}",
            "log in and look for a start-up file that waits (.bashrc, .profile), or a file server that does not answer",
        )

    @property
    def output(self) -> str:
        """What was printed before the handshake, at its end."""
        return printed([*self.progress.output, self.unfinished().decode(errors="replace")])

    def on_handshake(self, handshake: Handshake) -> None:
        """The handshake was received: compare versions, then send the boot. HostFailed when it cannot participate."""
        late = self.overdue()  # the main thread may not have looked since
        if late is not None:
            raise late
        here, there = versions(), handshake.versions
        wrong = refusals(here, there)
        if wrong:
            fix = INSTALL.format(host=self.host)
            raise HostFailed(self.host, f"the host has another version of zmqrl: {', '.join(wrong)}", fix)
        processor = processor_refusal(there.get("machine"), self.boot.plan.config.run.mode)
        if processor is not None:
            raise HostFailed(self.host, processor, "exclude it with --limit")
        missing = missing_runtime(self.boot.plan.config, there)
        if missing is not None:
            raise HostFailed(self.host, missing, INSTALL_RUNTIME.format(host=self.host))
        for difference in (*warnings(here, there), *clock_warnings(handshake.time, time.time())):
            self.warn(self.host, difference)
        with self._boot_lock:
            if self._is_refused:
                return
            boot = replace(self.boot, age_s=time.monotonic() - self.boot.plan.began)
            self.write(json.dumps(to_json(boot)).encode() + b"\n")
            self._is_booted = True  # after: a lease may be sent at any moment
        if self._is_stopped:  # `send` sets this before it reads the other: one of both sends the stop, or each
            self.write(line_of(Stop()))

    @property
    def is_booted(self) -> bool:
        """Whether it was accepted and has its boot; before that nothing of the run is on its host."""
        return self._is_booted

    def refuse_boot(self) -> bool:
        """Whether it has no boot; it gets none from now on."""
        with self._boot_lock:
            self._is_refused = True
            return not self._is_booted

    def send(self, command: Command) -> None:
        """A command, once it has its boot, which is the first line that it reads. An earlier stop follows the boot.

        Nothing is sent after its end: it would wait in memory for as long as the run lasts.
        """
        if isinstance(command, Stop):  # leases come from another thread, and set nothing
            self._is_stopped = True
        if self._is_booted and self.wait(0.0) is None:
            self.write(line_of(command))

    @abstractmethod
    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, None while it runs."""

    def silent_end(self, code: int | None) -> HostFailed | None:
        """Why it ended before its handshake, where known."""
        return None

    def cut_off(self) -> HostFailed | None:
        """Why its engine ended it after its handshake, where the engine reports that."""
        return None

    @abstractmethod
    def terminate(self) -> None:
        """It has no boot, and nothing to lose."""

    @abstractmethod
    def kill(self) -> None:
        """It does not end on its own."""

    def release(self) -> None:
        """Another agent of its host has been started: end this one and what leads to it. In a thread of its own."""
        return

    @abstractmethod
    def end(self) -> Ended:
        """It is gone, and read to its end: whatever is left of its processes is killed, and looked for again."""


class PipedAgent(Agent):
    """The host agent on the stdin and stdout of a command of this machine, which ends when the agent ends.

    A kind overrides `remaining` and `cancel` where its engine knows what is left of a host's part of the run.
    """

    def __init__(
        self,
        boot: Boot,
        warn: Warn,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `command`, with `environment` in place of that of this process; its stderr is appended to `log`.

        Raises:
            HostFailed: The command cannot be started.
        """
        super().__init__(boot, warn)
        self.log, self._log_start = log, size_of(log)
        self.process = PipedProcess(boot.host, command, log, environment)

    def remaining(self) -> Sequence[str]:
        """What the engine still has of this agent and its processes, by names that `cancel` takes. HostFailed."""
        return ()

    def cancel(self, names: Sequence[str]) -> None:
        """End these; `remaining` shows the result. HostFailed."""
        del names

    def lines(self) -> Iterator[str]:
        yield from self.process.lines()

    def unfinished(self) -> bytes:
        return self.process.unfinished

    def write(self, line: bytes) -> None:
        self.process.write(line)

    def wait(self, timeout_s: float) -> int | None:
        return self.process.exit_status(timeout_s)

    def stderr(self) -> str:
        return text_from(self.log, self._log_start)

    def silent_end(self, code: int | None) -> HostFailed | None:
        fault = start_fault(self.host, self.section, self.stderr())
        if fault is not None:
            return fault.of(self.host)
        tail = self.stderr().strip().splitlines()[-1:]
        cause = ": ".join([f"the host agent exited with code {code} before its handshake", *tail])
        return HostFailed(self.host, cause, f"see {self.log}")

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def release(self) -> None:
        self.process.close()

    def end(self) -> Ended:
        killed: tuple[str, ...] = ()
        left: Sequence[str] = ()
        cancel_at = time.monotonic() + RECORDS_END_S
        until = cancel_at + CANCEL_S
        try:
            while (left := self.remaining()) and time.monotonic() < until:
                if time.monotonic() >= cancel_at:
                    killed = killed or tuple(left)
                    self.cancel(left)
                time.sleep(CANCEL_AGAIN_S)  # an engine has no event for the end of a job
        except HostFailed as error:
            left = (f"? (unreachable: {error.cause})",)
        self.process.close()
        return Ended(tuple(f"{self.host}/{name}" for name in killed), tuple(f"{self.host}/{name}" for name in left))


class AgentsOrchestrator(Orchestrator, ABC):
    """Holds an agent per host; what starts one is the kind's."""

    def __init__(self, config: Any, plan: RunPlan | None) -> None:
        super().__init__(config, plan)
        self.agents: dict[str, Agent] = {}
        self._events: queue.Queue[HostEvent] = queue.Queue()
        self._threads: list[threading.Thread] = []
        """That run: readers of agents, and releases of those that were replaced."""
        self._threads_lock = threading.Lock()
        self._stopped: set[str | None] = set()
        """Hosts to which a stop was sent, whether they have an agent or not; None: to all."""

    def warn(self, host: str, text: str) -> None:
        """Any thread: a text for the user."""
        self.put(host, Warned(text))

    def put(self, host: str, event: Event) -> None:
        """Any thread: an event for `monitor`."""
        self._events.put(HostEvent(host, event))

    def adopt(self, agent: Agent) -> None:
        """Any thread: `agent` has been started. One that its host had before is released."""
        replaced = self.agents.get(agent.host)
        self.agents[agent.host] = agent
        if self._stopped & {None, agent.host}:
            agent.send(Stop())
        self._start(f"events of {agent.host}", partial(self._read, agent))
        if replaced is not None:
            self._start(f"release of {agent.host}", replaced.release)

    def _start(self, name: str, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, name=name, daemon=True)
        thread.start()
        with self._threads_lock:
            self._threads = [*(running for running in self._threads if running.is_alive()), thread]

    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        self._give_up_on_silent()
        events = []
        try:
            events.append(self._events.get(timeout=timeout_s))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def _give_up_on_silent(self) -> None:
        for agent in list(self.agents.values()):
            failure = agent.overdue()
            if failure is not None:
                self.put(agent.host, HostUnusable(failure.cause, failure.fix))
                agent.terminate()

    def command(self, host: str | None, command: Command) -> None:
        """The first error of an agent is raised once all were sent the command: it may be a lease."""
        if isinstance(command, Stop):
            self._stopped.add(host)
        errors = []
        for agent in list(self.agents.values()):
            if host in (None, agent.host):
                try:
                    agent.send(command)
                except Exception as error:  # noqa: BLE001 - of any kind of agent
                    errors.append(error)
        if errors:
            raise errors[0]

    def undeploy(self, grace_s: float) -> Teardown:
        agents = list(self.agents.values())
        for agent in agents:
            if agent.refuse_boot() and agent.wait(0.0) is None:
                agent.terminate()
        steps: tuple[tuple[Command, float], ...] = ((Stop(), grace_s), (KillAll(), KILL_WAIT_S))
        for command, wait_s in steps:
            running = [agent for agent in agents if agent.wait(0.0) is None]
            for agent in running:
                agent.send(command)
            until = time.monotonic() + wait_s
            for agent in running:
                agent.wait(max(0.0, until - time.monotonic()))
        for agent in agents:
            if agent.wait(0.0) is None:
                agent.kill()
        for thread in self._threads:
            thread.join(KILL_WAIT_S)
        for agent in agents:
            self.read_to_the_end(agent)
        ended = in_parallel([partial(_end, agent) for agent in agents])
        self.agents = {}
        finished = [agent.progress.finished for agent in agents if agent.progress.finished is not None]
        killed_by_agents = [who for done in finished for who in done.killed]
        return Teardown(
            ended=sum(done.ended for done in finished),
            killed=(*killed_by_agents, *(who for e in ended for who in e.killed)),
            left=tuple(who for e in ended for who in e.left),
        )

    def read_to_the_end(self, agent: Agent) -> None:
        """An agent has sent its last message, and its connection is open."""
        return

    def _read(self, agent: Agent) -> None:
        """The reader thread: lines to events until the agent's stdout ends."""
        has_handshake = False
        try:
            for line in agent.lines():
                text = None if has_handshake else after_mark(line, SENTINEL)
                if text is not None:
                    has_handshake = True
                    received = _handshake(agent.host, text)
                    agent.on_handshake(received)
                    self.put(agent.host, received)
                elif not has_handshake:
                    agent.progress.output.append(line)
                elif line.startswith("{"):
                    self._take_line(agent, line)
        except HostFailed as error:
            self.put(agent.host, HostUnusable(error.cause, error.fix))
        if agent.progress.refused:
            self.put(agent.host, LinesRefused(dict(agent.progress.refused)))
        code = agent.wait(KILL_WAIT_S)
        if self._is_superseded(agent):
            return
        why = agent.cut_off() if has_handshake else agent.silent_end(code)
        if why is not None:
            self.put(agent.host, HostUnusable(why.cause, why.fix))
        self.put(agent.host, AgentExited(code, has_handshake))

    def _take_line(self, agent: Agent, line: str) -> None:
        """A line that is not an event is counted; the counts are reported with each power of two, and at the end."""
        try:
            event = agent_event(line)
        except WireError as error:
            refused = agent.progress.refused
            refused[error.reason] += 1
            if refused[error.reason].bit_count() == 1:
                self.put(agent.host, LinesRefused(dict(refused)))
            return
        self._on_event(agent, event)

    def _is_superseded(self, agent: Agent) -> bool:
        """Another agent of its host has been started: its end is not the end of the host's part."""
        return self.agents.get(agent.host, agent) is not agent

    def _on_event(self, agent: Agent, event: AgentEvent) -> None:
        if self._is_superseded(agent) and isinstance(event, LeaseLost | Unreachable):
            return
        if not isinstance(event, ProcessReport):
            if isinstance(event, HostFinished):
                agent.progress.finished = event
            self.put(agent.host, event)
            return
        report = event.report
        if isinstance(report, Started):
            who = f"{agent.host}/{event.role}-{event.index} (pid {report.pid})"
            agent.progress.started[report.pid, report.start_time] = who
        self._events.put(HostEvent(agent.host, report, event.role, event.index))


def _end(agent: Agent) -> Ended:
    """An error of one host leaves the others verified."""
    try:
        with as_host_failed(agent.host):
            return agent.end()
    except HostFailed as error:
        return Ended(left=(f"{agent.host}/? (could not be verified: {error.cause})",))


def _handshake(host: str, line: str) -> Handshake:
    try:
        return handshake(line)
    except WireError as error:
        fix = INSTALL.format(host=host)
        raise HostFailed(host, f"the first line of the host agent is not a handshake ({error})", fix) from error


def size_of(log: Path) -> int:
    """Where the log of a new agent begins, in bytes."""
    return log.stat().st_size if log.is_file() else 0


def text_from(log: Path, start: int) -> str:
    """The last lines of a log from `start` on, in bytes."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(start)
        return file.read()[-LOG_TAIL_BYTES:].decode(errors="replace")


def in_parallel(calls: Sequence[Any]) -> list[Any]:
    """Results of bounded calls, each in a separate thread where there are several."""
    if len(calls) <= 1:
        return [call() for call in calls]
    try:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(calls)) as pool:
            futures = [pool.submit(call) for call in calls]
    except RuntimeError:  # the interpreter is about to exit, and starts no thread
        return [call() for call in calls]
    return [future.result() for future in futures]
