"""What `--dry-run` prints: the processes of every host, how each host is reached, and the whole configuration."""

from __future__ import annotations

import click
import yaml

from zmqrl.config.codec import to_json
from zmqrl.config.hosts import AUTO, LOCAL, filled
from zmqrl.config.load import Sources
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.shared_memory.arena import layout_of

SHOWN = ("user", "port", "identity", "jump", "python", "workdir", "workers", "nice", "tunnel")


def print_plan(plan: RunPlan, sources: Sources) -> None:
    """The plan on stdout; nothing is started or written."""
    config = plan.config
    click.echo(f"run {plan.run_id}: {config.run.mode}, {config.algorithm['kind']} on {plan.env.id}")
    for host, roles in _processes(plan).items():
        click.echo(f"processes on {host}: {', '.join(roles) or 'none'}")
    for name in config.hosts:
        if name != LOCAL:
            click.echo(_host_line(name, config, sources))
    click.echo(f"arena: {plan.slots} slots, {layout_of(plan).nbytes / 1e6:.1f} MB")
    click.echo(f"run directory: {plan.run_dir}\ncheckpoints: {plan.store_path}\n")
    click.echo(yaml.safe_dump(to_json(config), sort_keys=False, default_flow_style=None).rstrip())


def _processes(plan: RunPlan) -> dict[str, list[str]]:
    config, first = plan.config, 0
    single = config.run.mode == "single"
    found: dict[str, list[str]] = {config.learner.host: ["learner"] if single else ["broker", "learner"]}
    known = all(host.workers != AUTO for host in config.hosts.values())  # else indexes are not yet given out
    for host, count in plan.workers.items():
        names = [f"worker-{index}" for index in range(first, first + count)]
        found.setdefault(host, []).extend(names if known or single else [_counted(config, host)])
        first += count
    if config.evaluator.episodes:
        found[config.learner.host].append("evaluator")
    return found


def _counted(config: Config, host: str) -> str:
    count = config.hosts[host].workers
    return "a worker for each physical core but one" if count == AUTO else f"workers: {count}"


def _host_line(name: str, config: Config, sources: Sources) -> str:
    """`host NAME: user@address:port via JUMP`, then each value with the place it was written at, if anywhere."""
    listed = config.hosts[name]
    host = filled(listed, config.defaults)
    if listed.manual:
        return f"host {name}: joins by `zmqrl worker --connect FILE`, workers {host.workers}"
    user = f"{host.user}@" if host.user else ""
    port = f":{host.port}" if host.port else ""
    via = f" via {host.jump}" if host.jump else ""
    values = [f"{key} {getattr(host, key)}{_written(name, key, sources)}" for key in SHOWN if getattr(host, key)]
    return f"host {name}: {user}{host.ssh or name}{port}{via}; {', '.join(values)}"


def _written(name: str, key: str, sources: Sources) -> str:
    for place in (f"hosts.{name}.{key}", f"defaults.{key}"):
        if place in sources.by_key:
            return f" ({sources.by_key[place]})"
    return ""
