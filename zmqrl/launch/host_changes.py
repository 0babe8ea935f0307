"""The changes that a live run needs to have the hosts of a file. Pure, but for `reach`, which connects to new hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from zmqrl.config.codec import names_of, replace, to_json
from zmqrl.config.hosts import AUTO, LOCAL, is_remote, with_cores
from zmqrl.config.kinds import flat
from zmqrl.config.load import Loaded
from zmqrl.config.sections import Config, HostSection
from zmqrl.config.webhook import without_secrets
from zmqrl.config.yaml_source import shown
from zmqrl.errors import ConfigError, key_of
from zmqrl.messages.orchestrator import Handshake
from zmqrl.orchestrators.agent import INSTALL_RUNTIME
from zmqrl.orchestrators.handshake import missing_runtime, refusals, versions
from zmqrl.orchestrators.host_start import INSTALL
from zmqrl.orchestrators.make import access_of
from zmqrl.orchestrators.on_hosts import handshakes_over
from zmqrl.views.problem import counted

ABSENT = ("failed", "drained", "ended")
"""States of hosts that get their workers by a request only; one that is lost may be on its way back."""
LIVE_KEYS = ("workers", "groups")
"""Keys of a host that do not require another agent."""
NOT_OF_THE_RUN = ("hosts", "defaults.workers", "inventory")


@dataclass(frozen=True)
class HostNow:
    """One host of the run, as `status.json` has it."""

    state: str
    workers: int


@dataclass(frozen=True)
class Changes:
    """What a request states."""

    scale: Mapping[str, int | Literal["auto"]]
    """Workers from now on."""
    joining: Mapping[str, HostSection]
    """Sections of the hosts in `scale` that the run does not have, or that get another section."""

    def lines(self, now: Mapping[str, HostNow]) -> Iterator[str]:
        """One for each host, for the user."""
        for host, workers in self.scale.items():
            before = now.get(host)
            if host in self.joining or before is None or (before.state in ABSENT and workers):
                yield f"{host}: joins with {counted(workers, 'worker')}"
            elif not workers:
                yield f"{host}: drains, {counted(before.workers, 'worker')}"
            else:
                yield f"{host}: {before.workers} to {counted(workers, 'worker')}"


def hosts_now(status: Mapping[str, Any]) -> dict[str, HostNow]:
    """The hosts in `status.json`."""
    return {row["host"]: HostNow(row["state"], row["workers"]) for row in status["hosts"]}


def changes_to(loaded: Loaded, running: Config, now: Mapping[str, HostNow]) -> Changes:
    """Changes from the configuration `running` of a run, with the hosts `now`, to that of the file.

    `loaded`: of the file, on top of the run's configuration.

    Raises:
        ConfigError: Another key has changed, which a live run cannot take over; the message names it.
    """
    wanted = loaded.config
    _refuse_others(wanted, running)
    scale: dict[str, int | Literal["auto"]] = {host: 0 for host in now if host not in wanted.hosts}
    scale = {host: 0 for host in scale if now[host].workers}
    joining = {}
    for host, section in wanted.hosts.items():
        row, before = now.get(host), running.hosts.get(host, HostSection())
        changed = [key for key in _changed(section, before) if key not in LIVE_KEYS]
        workers = section.workers if section.workers is not None else 0
        if changed and row is not None and row.state not in (*ABSENT, "lost"):
            key = f"hosts.{host}.{changed[0]}"
            raise _refusal(key, getattr(section, changed[0]), getattr(before, changed[0]), f"zmqrl drain {host} first")
        if workers and (row is None or (changed and row.state in (*ABSENT, "lost"))):
            joining[host] = section
        if host in joining or (row is not None and _differs(row, workers, loaded.is_auto_here and host == LOCAL)):
            scale[host] = workers
    return Changes(scale, joining)


def _differs(row: HostNow, workers: int | Literal["auto"], is_auto: bool) -> bool:
    """Whether the host is to be scaled; one that is away is left to its window and its other users."""
    if row.state == "away":
        return False
    if row.state in ABSENT:
        return workers != 0
    return not row.workers if is_auto or workers == AUTO else workers != row.workers


def _refuse_others(wanted: Config, running: Config) -> None:
    before, after = dict(_leaves(running)), dict(_leaves(wanted))
    for key in sorted({*before, *after}):
        if after.get(key) != before.get(key) and not (key == "learner.executor" and after[key] == AUTO):
            fix = "repeat the options of the launch (--set), or `zmqrl stop` the run, and resume it with the file"
            raise _refusal(key, after.get(key), before.get(key), fix)


def _refusal(key: str, value: object, before: object, fix: str) -> ConfigError:
    what = f"the live run has {shown(before)}, and cannot change it"
    return ConfigError(what, key=key_of(key), value=shown(value), fix=fix)


def _leaves(config: Config) -> Iterator[tuple[str, object]]:
    """The dotted keys that a live run keeps."""
    stack: list[tuple[str, object]] = [("", flat(to_json(without_secrets(config))))]
    while stack:
        path, value = stack.pop()
        if path in NOT_OF_THE_RUN:
            continue
        if isinstance(value, Mapping) and value:
            stack += [(f"{path}.{key}".lstrip("."), inner) for key, inner in value.items()]
        else:
            yield path, value


def _changed(section: HostSection, before: HostSection) -> list[str]:
    return [key for key in names_of(HostSection) if getattr(section, key) != getattr(before, key)]


def with_numbers_of(
    changes: Changes, wanted: Config, now: Mapping[str, HostNow], found: Mapping[str, Handshake]
) -> dict[str, int]:
    """`changes.scale` with numbers for `auto`, by the cores of the hosts."""
    counts: Mapping[str, int | Literal["auto"]] = {**{host: row.workers for host, row in now.items()}, **changes.scale}
    hosts = {host: replace(wanted.hosts.get(host, HostSection()), workers=count) for host, count in counts.items()}
    config = with_cores(replace(wanted, hosts=hosts), {host: answer.free_cores for host, answer in found.items()})
    resolved = {host: config.hosts[host].workers for host in changes.scale}
    return {host: count if isinstance(count, int) else 1 for host, count in resolved.items()}


def reach(config: Config, hosts: Sequence[str]) -> dict[str, Handshake]:
    """The handshakes of these hosts of `config`, which are connected to as a launch would; nothing stays there.

    Hosts whose engine has a queue are left out, unless their number of workers depends on the answer.

    Raises:
        ConfigError: A host cannot be reached, or has another zmqrl; each such host is named.
    """
    remote = [host for host in hosts if is_remote(host, config.hosts[host])]
    if not remote:
        return {}
    access = access_of(config, remote)
    if access.queues:
        remote = [host for host in remote if config.hosts[host].workers == AUTO]
    found: dict[str, Handshake] = {}
    failed = []
    for host, answer in handshakes_over(access.shells(remote), access.sections(remote)):
        if not isinstance(answer, Handshake):
            failed.append(str(answer))
        elif wrong := refusals(versions(), answer.versions):
            failed.append(
                f"{host}: the host has another version of zmqrl: {', '.join(wrong)}\n   {INSTALL.format(host=host)}"
            )
        elif missing := missing_runtime(config, answer.versions):
            failed.append(f"{host}: {missing}\n   {INSTALL_RUNTIME.format(host=host)}")
        else:
            found[host] = answer
    if failed:
        raise ConfigError("\n".join(sorted(failed)), key=())
    return found
