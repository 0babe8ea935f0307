"""Other hosts: one SSH connection and one channel each; the host `local`, where it takes part, as ever."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zmqrl.config.codec import to_json
from zmqrl.config.hosts import LOCAL, filled
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed, ZmqrlError
from zmqrl.orchestrators._agents import KILL_WAIT_S, Agent, AgentsOrchestrator, Ended, json_line
from zmqrl.orchestrators.introduction import versions
from zmqrl.orchestrators.local import LocalAgent
from zmqrl.orchestrators.ssh_config import resolve
from zmqrl.orchestrators.ssh_connection import Channel, Connection, open_all
from zmqrl.orchestrators.versions import refusals, warnings

REAP_S = 15.0
REAP_GRACE_S = 5.0
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class SshAgent(Agent):
    """On the far end of a channel."""

    def __init__(self, boot: Boot, section: HostSection, connection: Connection, warn: Any) -> None:
        """Starts it. HostFailed when the connection does not take it."""
        super().__init__(boot)
        self.section, self.connection, self._warn = section, connection, warn
        self._log = Path(boot.plan.run_dir)
        self._channel: Channel | None = None

    def start(self, log: Path) -> None:
        """Its stderr goes to `log`, here."""
        self._log = log
        self._channel = self.connection.start(agent_command(self.section, self.boot.plan.run_id), log)

    def lines(self) -> Iterable[str]:
        assert self._channel is not None, "started"
        return self._channel.lines()

    def introduced(self, sentinel: Mapping[str, Any]) -> None:
        here, there = versions(), sentinel.get("versions", {})
        wrong = refusals(here, there)
        if wrong:
            mend = f"install this version there: zmqrl setup HOSTS.yaml --limit {self.host}"
            raise HostFailed(self.host, f"another zmqrl: {', '.join(wrong)}", mend)
        for difference in warnings(here, there):
            self._warn(self.host, difference)
        self.send(to_json(self.boot))

    def silent_end(self, code: int | None) -> ZmqrlError | None:
        python, setup = self.section.python, f"zmqrl setup HOSTS.yaml --limit {self.host}"
        said = self._log.read_text(errors="replace").strip().splitlines()[-5:] if self._log.is_file() else []
        if code in (NOT_FOUND, NOT_EXECUTABLE):
            return HostFailed(self.host, f"there is no {python}", f"set hosts.{self.host}.python, or: {setup}")
        if any("No module named" in line and "zmqrl" in line for line in said):
            return HostFailed(self.host, f"{python} has no zmqrl", setup)
        cause = f"its agent ended before it said a word (exit {code})"
        return HostFailed(self.host, ": ".join([cause, *said[-1:]]), f"look at {self._log}")

    def send(self, data: Mapping[str, Any]) -> None:
        if self._channel is not None:
            self._channel.write(json_line(data))

    def wait(self, timeout_s: float) -> int | None:
        return self._channel.exit_status(timeout_s) if self._channel is not None else None

    def kill(self) -> None:
        """With its stdin closed it ends within 3 s; what does not is the reaper's."""
        if self._channel is not None:
            self._channel.close()

    def end(self) -> Ended:
        command = reaper_command(self.section, self.boot.plan.run_id, self.host)
        try:
            done = self._alive().run(command, REAP_S)
            said = json.loads(done.stdout)
        except (ZmqrlError, ValueError) as error:
            return Ended(left=(f"{self.host}/? (it cannot be asked: {error})",))
        finally:
            self.connection.close()
        killed = tuple(f"{self.host}/{who}" for who in said["killed"])
        return Ended(killed, tuple(f"{self.host}/{who}" for who in said["left"]))

    def _alive(self) -> Connection:
        """The connection, made anew when it was cut."""
        if not self.connection.is_alive():
            self.connection = self.connection.reopened()
        return self.connection


class SshOrchestrator(AgentsOrchestrator):
    """Hosts are connected to side by side; one that fails is named, and the others are unaffected."""

    def __init__(self, plan: RunPlan) -> None:
        super().__init__()
        config = plan.config
        self._plan, self._ssh = plan, config.ssh
        self._sections = {name: filled(host, config.defaults) for name, host in config.hosts.items() if name != LOCAL}
        self._tunnels: dict[str, list[int]] = {}
        self._connector: threading.Thread | None = None
        self._cancelled = threading.Event()

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        if LOCAL in boots:
            self.adopt(LocalAgent(boots[LOCAL]))
        far_boots = {host: boot for host, boot in boots.items() if host != LOCAL}
        self._connector = threading.Thread(target=self._connect, args=(far_boots,), name="connector", daemon=True)
        self._connector.start()

    def _connect(self, boots: Mapping[str, Boot]) -> None:
        """The connector thread: hosts as they answer."""
        targets = []
        for host in boots:
            try:
                targets.append(resolve(host, self._plan.config.hosts[host], self._plan.config.defaults))
            except ZmqrlError as error:
                self.put(host, "host_failed", cause=str(error))
        for host, found in open_all(targets, self._ssh):
            if isinstance(found, HostFailed):
                self.put(host, "host_failed", cause=str(found))
            elif self._cancelled.is_set():
                found.close()
            else:
                self._begin(boots[host], found)

    def _begin(self, boot: Boot, connection: Connection) -> None:
        agent = SshAgent(boot, self._sections[boot.host], connection, self._warn)
        try:
            agent.start(Path(self._plan.run_dir) / "logs" / f"{boot.host}-agent-0.log")
        except ZmqrlError as error:
            connection.close()
            self.put(boot.host, "host_failed", cause=str(error))
        else:
            self.adopt(agent)

    def _warn(self, host: str, text: str) -> None:
        self.put(host, "warning", text=text)

    def reach(self, host: str, addresses: Sequence[str], ports: Sequence[int]) -> tuple[list[str], list[int]]:
        agent = self.agents.get(host)
        if not isinstance(agent, SshAgent) or not agent.section.tunnel:
            return list(addresses), list(ports)
        learner_here = self._plan.config.learner.host == LOCAL
        address = "127.0.0.1" if learner_here or not addresses else addresses[0]
        if host not in self._tunnels:
            self._tunnels[host] = [agent.connection.forward_back((address, port)) for port in ports]
        return ["127.0.0.1"], self._tunnels[host]

    def undeploy(self, grace_s: float) -> Any:
        self._cancelled.set()
        if self._connector is not None:
            self._connector.join(KILL_WAIT_S)
        return super().undeploy(grace_s)


def agent_command(section: HostSection, run_id: str) -> str:
    """The far shell's command line. Its words can be seen there by `ps`: nothing secret is among them."""
    start = f"{_environment(section)}{far(section.python)} -m zmqrl.entry zmqrl.agent {shlex.quote(run_id)} 0"
    return f"{_in_workdir(section)} && exec nice -n {section.nice or 0} {start}"


def reaper_command(section: HostSection, run_id: str, host: str, grace_s: float = REAP_GRACE_S) -> str:
    """Ends what is left of the run there; makes no folder."""
    start = f"{_environment(section)}{far(section.python)} -m zmqrl.agent.reaper"
    return f"cd {far(section.workdir)} 2>/dev/null; {start} {shlex.quote(run_id)} {grace_s:g} {shlex.quote(host)}"


def far(path: str | None) -> str:
    """Quoted for the far shell, which knows what `~` is there."""
    path = path or ""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def _in_workdir(section: HostSection) -> str:
    return f"mkdir -p {far(section.workdir)} && cd {far(section.workdir)}"


def _environment(section: HostSection) -> str:
    words = [f"{name}={shlex.quote(value)}" for name, value in section.env.items()]
    return f"env {' '.join(words)} " if words else ""
