"""The plan of a run, and what else needs the user's code, for a command: the user's code runs in check processes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.config.hosts import AUTO, LOCAL, is_remote, with_cores
from zmqrl.config.paths import expanded
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, LimitsSection
from zmqrl.errors import ArenaTooLarge, ConfigError
from zmqrl.messages.check import data_of
from zmqrl.supervision import check_process
from zmqrl.supervision.served_call import Subject
from zmqrl.supervision.template import CALLS
from zmqrl.types import EnvSpec

if TYPE_CHECKING:
    from zmqrl.config.load import Sources


def checked_plan(
    config: Config,
    run_dir: Path,
    started_at: float,
    resume: bool = False,
    sources: Sources | None = None,
    is_here: bool = True,
    connects: bool = False,
) -> RunPlan:
    """Check the env and plan the run as `plan_run`, without its `env` and `notes`. No check process is left.

    `sources`: from the `load` of `config`; with it an error names file and line. `connects`: hosts with
    `workers: auto` report their cores, once no other fault is left; else the plan has workers of this machine in their
    place.

    Raises:
        ConfigError: One message that names key, value and fix.
    """
    from zmqrl.planning.logins import check_participants
    from zmqrl.planning.own_code import check_own_code
    from zmqrl.planning.planned_env import planned_env

    with located(sources), check_process.none_left():
        check_own_code(config)
        plan_of, start_s = Subject("the plan of the run"), config.limits.start_s
        call("settings", to_json(config), is_here, subject=plan_of, limit_s=start_s)
        config, env, notes = planned_env(config, run_dir, resume, sources, is_here)
        path = str(expanded(run_dir, "run directory").absolute())
        arguments = path, started_at, resume, is_here, to_json(env), notes

        def plan(config: Config) -> RunPlan:
            return from_json(RunPlan, call("plan", to_json(config), *arguments, subject=plan_of, limit_s=start_s))

        first = plan(config)
        if not connects:
            return first
        check_participants(config)
        resolved = resolve_auto_workers(config)
        return first if resolved is config else replace(plan(resolved), warnings=first.warnings)


def checked_env(config: Config, is_here: bool = True) -> EnvSpec:
    """Properties of the env, and a check of its first steps where it is to be stepped here.

    `is_here`: the host `local` will be this machine.
    """
    if not config.env.check:
        from zmqrl.planning.env_elsewhere import env_elsewhere

        return env_elsewhere(config)
    local = config.hosts.get(LOCAL)
    has_workers = local is not None and local.workers != 0
    # Envs of other hosts may run there alone.
    is_stepped = config.learner.host == LOCAL if config.mode.in_process else has_workers
    seed = config.run.seed if is_here and is_stepped else None
    recovery: Any = "state" if config.env.recovery == "state" else "exact"
    section = replace(config.env, num_envs=1, vector_envs=1, segment_steps=1, recovery=recovery)
    subject, limit_s = Subject(repr(config.env.id), ("env", "id")), config.limits.start_s
    key = data_of([to_json(section), seed])
    found = call("env", to_json(config.env), seed, subject=subject, limit_s=limit_s, key=key)
    return from_json(EnvSpec, found)


def initial_file(plan: RunPlan) -> bytes | None:
    """What the run directory keeps as `initial.safetensors`: a restart from scratch has the same bits.

    None: version 0 is random, or an earlier attempt has written the file.

    Raises:
        ConfigError: As `initial_weights_of`.
    """
    source = plan.config.run.init_from
    if source is None or plan.resume:
        return None
    subject, limit_s = Subject(repr(source), ("run", "init_from")), plan.config.limits.start_s
    with check_process.none_left():
        return base64.b64decode(call("initial", to_json(plan), source, subject=subject, limit_s=limit_s))


def call(
    function: str, *arguments: Any, subject: Subject, limit_s: float = LimitsSection().start_s, key: str | None = None
) -> Any:
    """A function of `zmqrl.planning.check_calls`; see `check_process.call`."""
    return check_process.call(f"{CALLS}:{function}", *arguments, subject=subject, limit_s=limit_s, key=key)


def resolve_auto_workers(config: Config) -> Config:
    """`config` with the cores of hosts with `workers: auto`; waits for them, at most the limit of a connection.

    Raises:
        ConfigError: The kind of orchestrator cannot be loaded.
    """
    from zmqrl.orchestrators.make import access_of

    remote = [name for name, host in config.hosts.items() if is_remote(name, host) and host.workers == AUTO]
    unknown = [name for name in remote if config.hosts[name].cores is None]
    return with_cores(config, access_of(config, unknown).cores(unknown) if unknown else {}) if remote else config


@contextmanager
def located(sources: Sources | None) -> Iterator[None]:
    """A `ConfigError` that is raised inside names file and line of its key."""
    try:
        yield
    except ArenaTooLarge:
        raise
    except ConfigError as error:
        if sources is None:
            raise
        raise sources.place(error) from error.__cause__
