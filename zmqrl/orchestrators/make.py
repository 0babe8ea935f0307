"""Orchestrator of a configuration: what a run is started with, and what reaches its hosts without a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zmqrl.config.hosts import LOCAL, is_remote
from zmqrl.config.kinds import options_of
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, HostSection
from zmqrl.data_stores.make import is_shared
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.plugins import load

AUTO, SSH = "auto", "ssh"


def kind_of(run: Config, hosts: Iterable[str]) -> tuple[type[Orchestrator], Any]:
    """The class of `orchestrator.kind`, and its own configuration; `auto`: ssh where one of `hosts` is remote."""
    kind = run.orchestrator.kind
    if kind == AUTO:
        kind = SSH if any(is_remote(host, run.hosts.get(host, HostSection())) for host in hosts) else LOCAL
    cls: type[Orchestrator] = load(kind, "zmqrl.orchestrators", Orchestrator)
    return cls, options_of(cls.Config, "orchestrator", run.orchestrator.options)


def access_of(run: Config, hosts: Iterable[str]) -> HostAccess:
    """What reaches `hosts` of `run` without a run of this machine."""
    kind, options = kind_of(run, hosts)
    return kind.access(options, run)


def is_by_ssh(run: Config) -> bool:
    """Whether remote hosts are reached by SSH."""
    return run.orchestrator.kind in (AUTO, SSH)


def check_by_ssh(run: Config, otherwise: str) -> None:
    """ConfigError with `otherwise` when remote hosts are not reached by SSH."""
    if not is_by_ssh(run):
        raise ConfigError(otherwise, key=("orchestrator", "kind"), value=repr(run.orchestrator.kind))


def make_orchestrator(plan: RunPlan) -> Orchestrator:
    """The orchestrator of the plan.

    Raises:
        ConfigError: Its kind cannot carry out the plan; what the engine reported is part of the message.
    """
    learner = plan.config.learner.host
    kind, options = kind_of(plan.config, [learner, *(host for host, workers in plan.workers.items() if workers)])
    if learner != LOCAL and not kind.returns_checkpoints and not is_shared(plan.config.store):
        raise ConfigError(
            f"orchestrator.kind {plan.config.orchestrator.kind!r} does not copy its checkpoints to this "
            "machine: set store.path to a directory that both can access, or learner.host: local",
            key=("learner", "host"),
            value=repr(learner),
            others=(
                ("orchestrator", "kind"),
                ("store", "path"),
            ),
        )
    try:
        return kind(options, plan)
    except HostFailed as error:
        raise ConfigError(
            str(error), key=("orchestrator", "kind"), value=repr(plan.config.orchestrator.kind)
        ) from error
