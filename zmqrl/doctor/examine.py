"""`zmqrl doctor`: from a configuration to measurements of every host. Nothing is started there that stays."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import Config, HostSection
from zmqrl.doctor.check_up import ANSWER_S, CheckUp
from zmqrl.doctor.examination import Examination
from zmqrl.doctor.links import MODULE, Link, ShellLink, link_here
from zmqrl.doctor.measurement import Measurement
from zmqrl.doctor.questions import examined_hosts, questions
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.host_commands import module_command
from zmqrl.orchestrators.make import kind_of
from zmqrl.ssh.code_sync import pack

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


def _opening(run: Config, hosts: Mapping[str, HostSection]) -> Iterator[tuple[str, Callable[[], Link] | HostFailed]]:
    if LOCAL in hosts:
        yield LOCAL, partial(link_here, hosts[LOCAL].env)
    others = [name for name in hosts if name != LOCAL]
    if others:
        kind, config = kind_of(run, others)
        here = run.learner.host == LOCAL
        for name, found in kind.shells(config, run, others):
            if isinstance(found, HostFailed):
                yield name, found
            else:
                command = module_command(hosts[name], MODULE)
                yield name, partial(ShellLink, found, command, hosts[name].tunnel, here)
