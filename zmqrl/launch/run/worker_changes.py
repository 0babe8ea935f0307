"""Which workers a host has from now on: by requests, windows, other users and returns. Pure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from zmqrl.config.codec import replace
from zmqrl.config.host_checks import check_hosts
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import ConfigError
from zmqrl.launch.run import staffing
from zmqrl.launch.run.actions import Action, Deploy, RecordConfig, RemoveInvitation, Send
from zmqrl.launch.run.boots import boot_of
from zmqrl.launch.run.host_records import HostRecord
from zmqrl.launch.run.hosts import Hosts
from zmqrl.launch.run.scaling import check_counts
from zmqrl.messages.command import SetWorkers
from zmqrl.messages.files import ScaleRequest
from zmqrl.views.problem import counted

Refusal: TypeAlias = Callable[[str, HostSection], str | None]
"""`Orchestrator.refusal`: why a host cannot be added."""
WITHOUT_VECTOR_ENVS = (
    "with env.recovery: restart_episode an added worker has no vector envs until another worker leaves; "
    "to redistribute them, stop the run and resume it"
)


def moves_vector_envs(config: Config) -> bool:
    """Whether a worker gets vector envs while others have them."""
    return not config.mode.deterministic or config.env.recovery != "restart_episode"


class WorkerChanges:
    """Changes the records of hosts and their agents."""

    def __init__(self, plan: RunPlan, hosts: Hosts, refusal: Refusal) -> None:
        self._plan, self._hosts, self._refusal = plan, hosts, refusal

    def check(self, path: Path, request: ScaleRequest) -> RecordConfig | None:
        """Change nothing. What is to be done before `admit`; None: the request adds no host.

        `zmqrl down` finds the hosts of a run in `config.json`, so they are recorded before anything starts there.

        Raises:
            ConfigError: The request is refused.
        """
        admitted = self._sections_to_admit(request)
        for host, workers in request.scale.items():
            self._check_manual(host, workers)
        spent = [host for host in request.scale if self._has_used_its_token(host)]
        check_counts(self._plan, self._hosts, request.scale, spent, admitted, self._plan.config.min_workers)
        if not admitted:
            return None
        listed = {host: replace(section, workers=request.scale[host]) for host, section in admitted.items()}
        config = replace(self._plan.config, hosts={**self._plan.config.hosts, **listed})
        return RecordConfig(path, request, admitted, config)

    def admit(self, recorded: RecordConfig) -> None:
        """Hosts become part of the run, without workers yet."""
        counts = {host: recorded.request.scale[host] for host in recorded.sections}
        self._plan = replace(self._plan, config=recorded.config, workers={**self._plan.workers, **counts})
        for host in recorded.sections:
            record = self._hosts.admit(boot_of(self._plan, host, ()))
            record.rule = staffing.rule_of(record.section, counts[host])

    def carry_out(self, request: ScaleRequest) -> tuple[list[Action], dict[str, str]]:
        """A request that was checked. Returns the answer for each host too."""
        total, actions, lines = self._hosts.total_workers, list[Action](), dict[str, str]()
        for host in sorted(request.scale, key=lambda host: request.scale[host] - self._held(host)):  # room first
            record, line = self._hosts.get(host), "not part of this run"
            if record is not None:
                done, line = self._change(record, request.scale[host])
                actions += done
                record.away = ""  # until its window opens or closes, or its other users come or go
            lines[host] = f"{host}: {line}"
        if self._hosts.total_workers > total and not moves_vector_envs(self._plan.config):
            lines[""] = WITHOUT_VECTOR_ENVS
        return actions, lines

    def change(self, record: HostRecord, workers: int, stays: bool) -> list[Action]:
        """Change a host's number of workers, as the launcher has decided. `stays`: the agent stays without workers.

        Raises:
            ConfigError: The run has no room for them; nothing was changed.
        """
        check_counts(self._plan, self._hosts, {record.host: workers}, least=0)
        return self._change(record, workers, stays)[0]

    def _change(self, record: HostRecord, workers: int, stays: bool = False) -> tuple[list[Action], str]:
        """Returns the actions, and the answer to the user."""
        host, some = record.host, counted(workers, "worker")
        if record.section.manual:
            if workers:
                return self._invite(record, workers), f"{some}, once it joins with its new connection file"
            return self._invite(record, 0), "removed from the run; env steps that it has not delivered are dropped"
        indexes = self._hosts.assign(host, workers)
        record.is_kept = stays
        if not record.is_gone and record.state != "leaving":
            command = Send(host, SetWorkers(list(indexes), stays))
            return [command], some if workers else "workers leave at the end of their segments"
        if not workers and not stays:
            return [], "not part of this run"
        record.state = "connecting"
        how = "reconnecting" if record.incarnation else "connecting"
        return [Deploy({host: replace(record.boot, workers=indexes)})], f"{how}, {some}"

    def _invite(self, record: HostRecord, workers: int) -> list[Action]:
        """The workers of a manual host are in its connection file; that of before, and its key, are void."""
        record.is_revoked = record.is_revoked or self._has_used_its_token(record.host)
        record.invitation = ""
        self._hosts.assign(record.host, workers)
        if workers:
            record.state, record.is_uninvited = "connecting", True
        else:
            record.drain()
        return [RemoveInvitation(record.host)]

    def _held(self, host: str) -> int:
        record = self._hosts.get(host)
        return 0 if record is None or self._has_used_its_token(host) else len(record.held)

    def _sections_to_admit(self, request: ScaleRequest) -> dict[str, HostSection]:
        """Sections of hosts that the run admits. ConfigError: one is part of it already, or cannot become that."""
        hosts = self._plan.config.hosts
        idle = {
            host for host, workers in request.scale.items() if workers and host in hosts and not self._hosts.get(host)
        }
        found = {**{host: hosts[host] for host in idle}, **request.hosts}
        for host, section in found.items():
            if host not in request.scale:
                raise ConfigError(f"{host}: a request that adds a host states its number of workers")
            record = self._hosts.get(host)
            if record is not None and not record.is_gone:
                raise ConfigError(f"{host} is part of this run already ({record.state}); use `zmqrl scale`")
            self._check_way(host, section)
        if found:
            check_hosts(replace(self._plan.config, hosts={**hosts, **found}))
        return found

    def _check_way(self, host: str, section: HostSection) -> None:
        """ConfigError when the host could not connect to the broker of the run, or not be started."""
        resume = f"stop the run with `zmqrl stop` and resume it with workers on {host}"
        listen = self._hosts.learner.boot.listen
        why = None if section.manual else self._refusal(host, section)
        if why is None and listen is None:
            why = "the run was started on one host, and its broker does not accept connections from other hosts"
        if why is not None:
            raise ConfigError(f"{host} cannot join this run: {why}; {resume}")
        if listen is not None and listen.address != "*" and not section.tunnel:
            raise ConfigError(
                f"{host} cannot join this run: the broker listens only on {listen.address}, because all initial hosts "
                f"use tunnels; set hosts.{host}.tunnel: true, or {resume}"
            )

    def _check_manual(self, host: str, workers: int) -> None:
        """ConfigError for a host that has joined by a connection file: no command reaches its agent."""
        record = self._hosts.get(host)
        if record is None or not record.section.manual or record.state != "ready":
            return
        if workers:
            raise ConfigError(
                f"{host}={workers}: the number of workers of a manual host is fixed by its connection file; "
                f"run `zmqrl drain {host}`, then `zmqrl scale {host}={workers}`, which writes a new file"
            )
        if self._plan.config.security.curve == "off":
            raise ConfigError(
                f"{host}=0: the run is not encrypted, so the launcher cannot remove a manual host; press Ctrl-C in "
                f"`zmqrl worker` on {host}"
            )

    def _has_used_its_token(self, host: str) -> bool:
        record = self._hosts.get(host)
        return record is not None and record.section.manual and record.state == "joining"
