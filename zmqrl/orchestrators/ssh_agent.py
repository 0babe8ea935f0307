"""A host agent on the remote end of a channel of SSH."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from zmqrl.config.plan import Boot
from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed, as_host_failed
from zmqrl.orchestrators.agent import Agent, AgentLog, HostEnd
from zmqrl.orchestrators.host_commands import NOT_EXECUTABLE, NOT_FOUND, agent_command
from zmqrl.orchestrators.host_start import start_fault
from zmqrl.orchestrators.on_hosts import ended_over
from zmqrl.ssh.connection import Client, Connection


class AgentContext(NamedTuple):
    """What an agent's end here is made of."""

    client: Client
    """Makes its connection again."""
    log: Path
    """Its stderr."""
    warn: Callable[[str, str], None]
    """(host, text) for the user."""
    code: str | None
    """The remote folder of the user's own modules."""


class SshAgent(Agent):
    """On the remote end of a channel."""

    def __init__(self, boot: Boot, section: HostSection, connection: Connection, context: AgentContext) -> None:
        """Starts it. HostFailed when the connection does not take it."""
        super().__init__(boot, context.warn)
        self.section, self.connection = section, connection
        self._client, self._log = context.client, AgentLog(context.log)
        command = agent_command(section, boot.plan.run_id, self.host, context.code)
        self._channel = connection.start(command, self._log.path)

    def lines(self) -> Iterable[str]:
        return self._channel.lines()

    def unfinished(self) -> bytes:
        return self._channel.unfinished

    def silent_end(self, code: int | None) -> HostFailed | None:
        self._channel.close()  # so that the end of its output is in the log
        python, setup = self.section.python, f"zmqrl setup HOSTS.yaml --limit {self.host}"
        stderr = self.stderr()
        fault = start_fault(self.host, self.section, stderr)
        if fault is not None:
            return fault.of(self.host)
        tail = stderr.strip().splitlines()[-5:]
        if code in (NOT_FOUND, NOT_EXECUTABLE):
            where = "" if self.section.wrap is None else f" within hosts.{self.host}.wrap (`{self.section.wrap}`)"
            return HostFailed(self.host, f"{python} was not found{where}", f"set hosts.{self.host}.python, or: {setup}")
        if any("No module named" in line and "zmqrl" in line for line in tail):
            return HostFailed(self.host, f"zmqrl is not installed in {python}", setup)
        if any("No space left" in line for line in tail):
            fix = f"free disk space there, or set hosts.{self.host}.workdir to another disk"
            return HostFailed(self.host, f"No space left on device for {self.section.workdir}", fix)
        cause = f"the host agent exited with code {code} before its handshake"
        if not tail and self.output:
            fix = "another command than the agent has run there (ForceCommand?); use an account with a shell"
            return HostFailed(self.host, f"{cause}; it printed: {self.output}", fix)
        return HostFailed(self.host, ": ".join([cause, *tail[-1:]]), f"see {self._log.path}")

    def stderr(self) -> str:
        return self._log.text()

    def write(self, line: bytes) -> None:
        try:
            self._channel.write(line)
        except HostFailed as error:
            self.warn(self.host, str(error))  # its reader reports the rest

    def wait(self, timeout_s: float) -> int | None:
        return self._channel.exit_status(timeout_s)

    def terminate(self) -> None:
        if self.section.wrap is None:
            self.release()
        else:
            self._channel.close()  # `end` needs the connection

    def kill(self) -> None:
        """Close the agent's stdin, with which it ends within 3 s; the reaper ends what does not."""
        self._channel.close()

    def release(self) -> None:
        self._channel.close()
        self.connection.close()

    def end(self) -> HostEnd:
        if not self.is_booted and self.section.wrap is None:  # a wrap may wait, and ignore the end of its stdin
            self.connection.close()
            return HostEnd()  # it never began
        try:
            with as_host_failed(self.host):
                return ended_over(self._alive(), self.section, self.boot.plan.run_id, self.host)
        except HostFailed as error:
            return HostEnd(left=(f"{self.host}/? (unreachable: {error.cause})",))
        finally:
            self.connection.close()

    def _alive(self) -> Connection:
        """The connection, made again when it was cut."""
        if not self.connection.is_alive():
            self.connection.close()
            self.connection = self._client.open(self.connection.target)
        return self.connection
