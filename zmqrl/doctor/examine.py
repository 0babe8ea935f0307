"""`zmqrl doctor`: from a configuration to measurements of every host. Nothing is started there that stays."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import Config, HostSection
from zmqrl.doctor.check_up import ANSWER_S, CheckUp
from zmqrl.doctor.examination import Examination
from zmqrl.doctor.links import Link, LocalLink
from zmqrl.doctor.measurement import Measurement
from zmqrl.doctor.questions import examined_hosts, questions
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.code_sync import pack

RESOLVERS = 8
"""`ssh -G` at once."""
MARGIN_S = 3.0


def examine(
    config: Config, accept_new_hosts: bool, env_limit_s: float, tell: Callable[[str], None]
) -> Mapping[str, Measurement]:
    """Ask every host everything, in parallel.

    Args:
        config: Resolved; only the hosts that `--limit` left.
        accept_new_hosts: Unknown host keys are accepted and written down; a changed one never.
        env_limit_s: How long each host looks at the env.
        tell: Given a line with the fingerprint of each accepted key, at once.
    """
    modules = pack(config.code)
    code = None if modules is None else base64.b64encode(modules.content).decode()
    hosts = examined_hosts(config)
    ssh = replace(config.ssh, host_keys="accept-new") if accept_new_hosts else config.ssh
    examination = Examination(questions(config, code, env_limit_s), config.learner.host)
    answer_s = max(ANSWER_S, env_limit_s + MARGIN_S)
    return CheckUp(examination, tell, answer_s).run(_opening(replace(config, ssh=ssh), hosts))


def _opening(config: Config, hosts: Mapping[str, HostSection]) -> Iterator[tuple[str, Callable[[], Link] | HostFailed]]:
    if LOCAL in hosts:
        yield LOCAL, partial(LocalLink, hosts[LOCAL].env)
    remote = {name: host for name, host in hosts.items() if name != LOCAL}
    if remote:
        yield from _over_ssh(config, remote)


def _over_ssh(
    config: Config, hosts: Mapping[str, HostSection]
) -> Iterator[tuple[str, Callable[[], Link] | HostFailed]]:
    from zmqrl.doctor.ssh_link import SshLink  # paramiko only where a host is remote
    from zmqrl.orchestrators.ssh_config import Target, resolve
    from zmqrl.orchestrators.ssh_connection import open_all

    def resolved(name: str) -> Target | HostFailed:
        try:
            return resolve(name, hosts[name], config.defaults)
        except HostFailed as error:
            return error

    targets = []
    with ThreadPoolExecutor(RESOLVERS, thread_name_prefix="ssh -G") as pool:
        for name, found in zip(hosts, pool.map(resolved, hosts), strict=True):
            if isinstance(found, HostFailed):
                yield name, found
            else:
                targets.append(found)
    here = config.learner.host == LOCAL
    for name, opened in open_all(targets, config.ssh):
        yield name, opened if isinstance(opened, HostFailed) else partial(SshLink, opened, hosts[name], here)
