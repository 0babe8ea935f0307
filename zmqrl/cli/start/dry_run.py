"""What `--dry-run` prints: the processes of every host, how each host is reached, and the whole configuration."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import click
import yaml

from zmqrl.config.codec import to_json
from zmqrl.config.hosts import AUTO, LOCAL, filled
from zmqrl.config.kinds import flat
from zmqrl.config.load import Sources
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.config.webhook import without_secrets
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.make import access_of, is_by_ssh
from zmqrl.shared_memory.arena import layout_of
from zmqrl.ssh.config import Target, resolve

SHOWN = ("user", "port", "identity", "jump", "python", "workdir", "workers", "nice", "prologue", "wrap", "tunnel")
SHOWN_HERE = ("python", "workers")
"""Keys of hosts that are this machine: all else is that of the launcher."""
TOGETHER = 8


def print_plan(plan: RunPlan, sources: Sources) -> None:
    """The plan on stdout; nothing is started or written."""
    config = plan.config
    click.echo(f"run {plan.run_id}: {config.run.mode}, {config.algorithm['kind']} on {plan.env.id}")
    for host, roles in _processes(plan).items():
        click.echo(f"processes on {host}: {', '.join(roles) or 'none'}")
    others = [name for name in config.hosts if name != LOCAL]
    access = access_of(config, others)
    with ThreadPoolExecutor(TOGETHER) as pool:
        for line in pool.map(lambda name: _host_line(name, access, sources), others):
            click.echo(line)
    nbytes = layout_of(plan).nbytes
    size = f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.0f} kB"
    click.echo(f"arena: {plan.slots} slots, {size}")
    click.echo(f"run directory: {plan.run_dir}\ncheckpoints: {plan.store_path}\n")
    click.echo(
        yaml.safe_dump(flat(to_json(without_secrets(config))), sort_keys=False, default_flow_style=None).rstrip()
    )


def _processes(plan: RunPlan) -> dict[str, list[str]]:
    config, first = plan.config, 0
    single = config.mode.in_process
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
    return "workers: physical cores - 1" if count == AUTO else f"workers: {count}"


def _host_line(name: str, access: HostAccess, sources: Sources) -> str:
    """`host NAME: user@address:port via JUMP`, then each value that is used with the place it was written at."""
    config, host = access.run, access.section(name)
    listed = config.hosts[name]
    if listed.manual:
        return f"host {name}: joins by `zmqrl worker --connect FILE`, workers {host.workers}"
    in_file, shown = filled(listed, config.defaults), SHOWN_HERE if config.orchestrator.kind == LOCAL else SHOWN
    used = {key: getattr(host, key) for key in shown if getattr(host, key)}
    places = {key: _written(name, key, sources) for key in used if used[key] == getattr(in_file, key)}
    values = [f"{key} {value}{places.get(key, '')}" for key, value in used.items()]
    if not is_by_ssh(config):
        return f"host {name}: by orchestrator.kind {config.orchestrator.kind}; {', '.join(values)}"
    try:
        login = _login(resolve(name, listed, config.defaults))
    except HostFailed as failed:
        login = f"unreachable: {failed.cause}"
    return f"host {name}: {login}; {', '.join(values)}"


def _login(target: Target) -> str:
    hops, jump = [], target.jump
    while jump is not None:
        hops.append(f"{jump.user}@{jump.address}")
        jump = jump.jump
    through = f" via {', '.join(reversed(hops))}" if hops else " via ProxyCommand" if target.proxy_command else ""
    return f"{target.user}@{target.address}{through}"


def _written(name: str, key: str, sources: Sources) -> str:
    for place in (("hosts", name, key), ("defaults", key)):
        if place in sources.by_key:
            return f" ({sources.by_key[place]})"
    return ""
