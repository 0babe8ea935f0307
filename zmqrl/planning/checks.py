"""What must hold before a run is started. Nothing is written here."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, LimitsSection
from zmqrl.data_stores import files
from zmqrl.data_stores.base import DataStore
from zmqrl.data_stores.make import kind_of
from zmqrl.errors import ConfigError
from zmqrl.evaluator.rendering import IMAGES, RenderedEpisode
from zmqrl.evaluator.videos import video_suffix
from zmqrl.memory_backends.make import BUS, make_backend
from zmqrl.networks.build import check_section
from zmqrl.orchestrators.handshake import processor_refusal
from zmqrl.planning.env_recovery import check_recovery
from zmqrl.run_files.url_mirror import check_mirror
from zmqrl.shared_memory.arena import check_fits
from zmqrl.supervision.gpus import VISIBLE, choose, has_nvidia_smi, query, torch_fault, visible_gpus
from zmqrl.types import EnvSpec
from zmqrl.views.problem import counted

NVIDIA = Path("/dev/nvidia0")
HEARTBEATS = 2
"""Least number of heartbeats within a limit on silence."""


def check_parts(config: Config) -> None:
    """Raise `ConfigError` when a kind that is named is unknown, or cannot serve several processes."""
    store, options = kind_of(config.store)
    store.check_mode(options, config.run.mode)
    if config.store.keep_every is not None and store.keep is DataStore.keep:
        raise ConfigError(
            f"store.kind {config.store.kind!r} has no method `keep` (docs/extending/data-store.md)",
            key=("store", "keep_every"),
            value=str(config.store.keep_every),
            fix="remove the key",
            others=(("store", "kind"),),
        )
    check_section(config.network)


def check_processor(config: Config, workers: Mapping[str, int]) -> None:
    """Raise `ConfigError` when this machine participates in the run and its processor cannot share memory in its mode.

    Other hosts name their processors in the handshake.
    """
    refusal = processor_refusal(platform.machine(), config.run.mode)
    if refusal is not None and (config.learner.host == LOCAL or workers.get(LOCAL, 0) > 0):
        raise ConfigError(
            f"on this machine {refusal}", key=("run", "mode"), value=repr(config.run.mode), fix="write single"
        )


def check_machine(config: Config, run_dir: Path, is_here: bool = True) -> None:
    """Raise `ConfigError` when a device or a compiler is not there, or a directory cannot be written.

    What belongs to a learner on another host is that host's to check.

    `run_dir`: where the run will write. `is_here`: the host `local` will be this machine.
    """
    files.check_writable("run directory", run_dir)
    here = config.learner.host == LOCAL and is_here
    on_gpu = _check_device(config, here)
    if here and not on_gpu and config.learner.executor == "compiled":
        from zmqrl.learning.package_cache import check_first_compilation  # other runs start without

        check_first_compilation()
    store, options = kind_of(config.store)
    if here:
        store.check(options, run_dir)
    check_mirror(options)


def check_videos(config: Config, env: EnvSpec, is_here: bool = True) -> None:
    """Raise `ConfigError` when the evaluator cannot write the videos of `evaluator.video_every`."""
    every = config.evaluator.video_every
    if every is None:
        return
    key, value = ("evaluator", "video_every"), str(every)
    if config.learner.host != LOCAL:
        what = f"refused, since videos would be written on the learner's host, {config.learner.host!r}, not here"
        raise ConfigError(what, key=key, value=value, fix="remove the key and use `zmqrl eval RUN --video out.mp4`")
    if config.evaluator.episodes == 0:
        what, others = "the evaluator writes the videos, and evaluator.episodes is 0", (("evaluator", "episodes"),)
        raise ConfigError(what, key=key, value=value, fix="set at least 1", others=others)
    if is_here and config.env.check:
        try:
            video_suffix()
            RenderedEpisode(config.scored_env, env, config.run.seed, IMAGES).close()
        except ConfigError as error:
            raise error.of(key, value) from error.__cause__


def check_plan(plan: RunPlan, is_here: bool) -> None:
    """Raise `ConfigError` when the plan needs too much memory, or its segments cannot be sent."""
    if plan.config.learner.host == LOCAL and is_here:  # elsewhere that host's agent looks when it makes the arena
        check_fits(plan)
    _check_frames(plan)
    if plan.config.memory_backend.kind != BUS:  # a plan for this machine alone is made without zmq
        make_backend(plan)
    check_recovery(plan)


def _check_frames(plan: RunPlan) -> None:
    """Raise `ConfigError` when a worker of another host could not send a segment: each column is one frame."""
    config = plan.config
    if not any(count for host, count in plan.workers.items() if host != config.learner.host):
        return
    from zmqrl.wire.sockets import MAX_MESSAGE_BYTES  # a plan for this machine alone is made without zmq

    for column in plan.columns:
        if column.nbytes > MAX_MESSAGE_BYTES:
            one_env = column.nbytes // config.env.num_envs
            steps = (config.env.segment_steps + 1) * MAX_MESSAGE_BYTES // column.nbytes - 1
            fits = [f"env.segment_steps: {steps}"] if steps > 0 else []
            fits += [f"env.num_envs: {MAX_MESSAGE_BYTES // one_env}"] if one_env <= MAX_MESSAGE_BYTES else []
            raise ConfigError(
                f"column {column.name!r} of a segment has {column.nbytes / 1e6:,.0f} MB, and a worker on "
                f"another host sends at most {MAX_MESSAGE_BYTES / 1e6:,.0f} MB in one frame",
                key=("env", "segment_steps"),
                value=str(config.env.segment_steps),
                fix=f"{' or '.join(fits) or 'smaller observations or actions'} would fit",
                others=(("env", "num_envs"),),
            )


def _check_device(config: Config, here: bool) -> bool:
    """Whether the learner computes on a GPU of this machine."""
    device = config.learner.device
    kind, _, index = device.partition(":")
    known = (kind in ("auto", "cpu") and not index) or (kind == "cuda" and (index.isdigit() or device == "cuda"))
    if not known:
        raise ConfigError("write auto, cpu, cuda or cuda:0", key=("learner", "device"), value=repr(device))
    found = False
    if not here:
        return False
    if kind == "cuda" or (kind == "auto" and config.network.kind != "mlp"):
        found = _check_gpus(device, config.learner.share_gpu)
    if kind == "cuda" and not found and not NVIDIA.exists():
        raise ConfigError(
            "this machine has no NVIDIA device", key=("learner", "device"), value=repr(device), fix="write cpu or auto"
        )
    if kind == "cuda":
        start_s = config.limits.start_s
        fault = torch_fault(device, start_s, f"limits.start_s ({start_s:g} s)")
        if fault is not None:
            raise ConfigError(f"torch cannot use this device: {fault}", key=("learner", "device"), value=repr(device))
    return found or kind == "cuda"


def _check_gpus(device: str, share: bool) -> bool:
    """What the host agent would refuse: before anything starts. Whether nvidia-smi reports GPUs."""
    found = query() if has_nvidia_smi() else []
    gpus = visible_gpus(found, os.environ.get(VISIBLE)) if found else None
    if gpus is not None:
        choose("learner.device", device, gpus, share=share)
    return bool(found)


def check_settings(config: Config, is_here: bool) -> Mapping[str, int]:
    """Rollout workers per host. ConfigError for what is wrong whatever the env is."""
    workers = _workers(config)
    _check_limits(config.limits)
    _check_best_by(config)
    if config.run.episodes_csv and config.learner.host != LOCAL:
        what, fix = f"would be written on {config.learner.host}, the learner's host", "remove it"
        raise ConfigError(what, key=("run", "episodes_csv"), value="true", is_subject=True, fix=fix)
    check_parts(config)
    if is_here:
        check_processor(config, workers)
    return workers


def _workers(config: Config) -> Mapping[str, int]:
    """Rollout workers per host; none in single."""
    if config.mode.in_process:
        return {config.learner.host: 0}
    workers = {name: host.workers for name, host in config.hosts.items() if isinstance(host.workers, int)}
    open_hosts = [name for name in config.hosts if name not in workers]
    known, first = not open_hosts, next(iter(config.hosts), LOCAL)
    # `auto` of a host that has not reported its cores yet is one worker; in sync only while a vector env is left.
    left = config.env.vector_envs - sum(workers.values()) if config.mode.deterministic else len(open_hosts)
    counts = {**workers, **{name: int(place < left) for place, name in enumerate(open_hosts)}}
    workers = {name: counts[name] for name in config.hosts}
    total = sum(workers.values())
    if not config.hosts:
        raise ConfigError("lists no host", key=("hosts",), fix=f"write hosts: {{{LOCAL}: {{workers: 2}}}}")
    if total < 1:
        raise ConfigError(
            f"mode {config.run.mode} needs at least 1 worker", key=("hosts", first, "workers"), value=str(total)
        )
    if config.mode.deterministic and total > config.env.vector_envs:
        raise ConfigError(
            f"the {total} workers of all hosts exceed env.vector_envs {config.env.vector_envs}, and in "
            f"{config.run.mode} each worker needs at least one",
            key=("hosts", first, "workers"),
            fix="raise env.vector_envs or set fewer workers",
            others=(("env", "vector_envs"),),
        )
    if known and config.min_workers > total:
        what = f"all hosts together have {counted(total, 'worker')}"
        raise ConfigError(what, key=("min_workers",), value=str(config.min_workers), fix=f"set at most {total}")
    return workers


def _check_best_by(config: Config) -> None:
    name, known = config.evaluator.best_by, config.env.report
    if name is not None and name not in known:
        fix = f"set one of its names: {', '.join(known)}" if known else f"add it, for example {{{name}: mean}}"
        raise ConfigError("is not in env.report", key=("evaluator", "best_by"), value=name, is_subject=True, fix=fix)


def _check_limits(limits: LimitsSection) -> None:
    """A silence that ends a process or a host has to be longer than that between two heartbeats."""
    least = HEARTBEATS * limits.heartbeat_s
    for key in ("lost_after_s", "stalled_after_s", "host_lease_s"):
        value = getattr(limits, key)
        if value < least:
            raise ConfigError(
                f"must be at least {least:g}, which is {HEARTBEATS} x limits.heartbeat_s "
                f"({limits.heartbeat_s:g} s); with less, processes are ended between two heartbeats",
                key=("limits", key),
                value=f"{value:g}",
                others=(("limits", "heartbeat_s"),),
            )
