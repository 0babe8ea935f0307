"""What must hold before a run is started, and what a resumed run may change. Nothing is written here."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zmqrl.acting.layers import make_layers
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import to_json
from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import INITIAL, RunPlan
from zmqrl.config.sections import Config
from zmqrl.data_stores import files
from zmqrl.data_stores.base import DataStore
from zmqrl.data_stores.make import kind_of
from zmqrl.errors import ConfigError, key_of
from zmqrl.evaluator.rendering import IMAGES, RenderedEpisode
from zmqrl.evaluator.videos import video_suffix
from zmqrl.launch.checked import call
from zmqrl.launch.run_directory import RESERVED, read_config, read_info
from zmqrl.launch.url_mirror import check_mirror
from zmqrl.networks.build import check_section
from zmqrl.networks.kinds.base import check_layer
from zmqrl.networks.kinds.module import check_gradients
from zmqrl.networks.spec import NetworkSpec
from zmqrl.orchestrators.handshake import processor_refusal
from zmqrl.segment_transports.make import BUS, make_transport
from zmqrl.supervision.check_process import Subject
from zmqrl.supervision.gpus import VISIBLE, choose, has_nvidia_smi, query, torch_fault, visible_gpus
from zmqrl.supervision.run_owner import FOLDER
from zmqrl.types import EnvSpec

if TYPE_CHECKING:
    from zmqrl.config.load import Sources

NVIDIA = Path("/dev/nvidia0")
MADE = frozenset({FOLDER, "logs", "checkpoints", RESERVED, INITIAL, "config.json", "job.sh", "slurm.out"})
TEMPORARY = (".config.json.", ".run.json.", f".{INITIAL}.")
"""What a launcher makes in a run directory before `run.json`."""


def check_parts(config: Config) -> None:
    """Raise `ConfigError` when a kind that is named is unknown, or cannot serve several processes."""
    store, options = kind_of(config.store)
    store.check_mode(options, config.run.mode)
    if config.store.keep_every is not None and store.keep is DataStore.keep:
        raise ConfigError(
            f"store.kind {config.store.kind!r} has no method `keep` (docs/extending.md)",
            key=("store", "keep_every"),
            value=str(config.store.keep_every),
            fix="remove the key",
            others=(("store", "kind"),),
        )
    if config.memory_backend.kind == "inproc":
        what, fix = "cannot be set", "remove the key. Mode single uses inproc automatically"
        raise ConfigError(what, key=("memory_backend", "kind"), value="'inproc'", is_subject=True, fix=fix)
    check_section(config.network)


def check_layers(network: NetworkSpec, acting: ActingSpec) -> None:
    """Raise `ConfigError` when a layer cannot be made, in the learner or in the runtime of the workers, or trained."""
    for layers in (*(layers for _, layers in network.towers), acting.layers):
        for layer in layers:
            check_layer(layer)
            if layer.module is not None:
                check_gradients(layer.module)
    if acting.runtime == "numpy":
        make_layers(acting.layers, 1)


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

    Args:
        config: Resolved.
        run_dir: Where the run will write.
        is_here: The host `local` will be this machine.
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


def check_frames(plan: RunPlan) -> None:
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


def check_transport(plan: RunPlan) -> None:
    """Raise `ConfigError` when the configured segment transport cannot be used. Nothing is connected."""
    if plan.config.segment_transport.kind != BUS:  # a plan for this machine alone is made without zmq
        make_transport(plan)


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


def check_new_directory(run_dir: Path) -> None:
    """Raise `ConfigError` when `run_dir` is in use or holds anything: a run's results are never written over."""
    check_not_live(run_dir)
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"run directory {run_dir} is not a directory")
    if run_dir.is_dir() and any(run_dir.iterdir()) and not _is_left_before_begin(run_dir):
        fix, python_fix = "it holds no run; choose another directory", ""
        if holds_run(run_dir):
            ways = f"--resume {run_dir}", f"zmqrl.resume({str(run_dir)!r})"
            fix, python_fix = (f"to continue its run: {way}" for way in ways)
        raise ConfigError(f"run directory {run_dir} exists and is not empty", fix=fix, python_fix=python_fix)


def holds_run(run_dir: Path) -> bool:
    """Whether a run has begun in `run_dir`: `run.json` is written last, before anything is started."""
    return (run_dir / "run.json").exists()


def _is_left_before_begin(run_dir: Path) -> bool:
    """Whether a launcher that was killed before its run began made all that is in `run_dir`."""
    names = {path.name for path in run_dir.iterdir()}
    made = {name for name in names if name in MADE or name.startswith(TEMPORARY)}
    results = any(any((run_dir / name).iterdir()) for name in ("logs", "checkpoints") if name in names)
    return made == names and not results and not holds_run(run_dir)


def check_not_live(run_dir: Path) -> None:
    """Raise `ConfigError` when a live run uses `run_dir`."""
    info = read_info(run_dir)
    if info is not None and info.live:
        raise ConfigError(
            f"run directory {run_dir} is in use by run {info.run_id} (pid {info.pid}); stop it: `zmqrl stop {run_dir}`"
        )


def check_run_directory(run_dir: Path) -> None:
    """Raise `ConfigError` unless `run_dir`, which a resume names, is a directory."""
    if run_dir.is_file():
        raise ConfigError("is a file", key=("--resume",), value=str(run_dir), fix="give the run directory")
    if not run_dir.is_dir():
        what = "run directory not found, and not the id of a run that is active or in runs/"
        raise ConfigError(what, key=("--resume",), value=str(run_dir))


def check_resume(run_dir: Path, config: Config, preset: str | None = None, sources: Sources | None = None) -> None:
    """Raise `ConfigError` unless the run in `run_dir` can continue with `config`.

    Mode, seed, env, algorithm, executor, replay and store must be the stored ones, and so must `preset`, if given.
    Totals, stop conditions, workers and hosts may change. With `sources` the message names the place of the key.
    """
    from zmqrl.config.load import preset_name, was_started_with  # a check process has no parser of YAML
    from zmqrl.config.yaml_source import shown

    check_run_directory(run_dir)
    check_not_live(run_dir)
    stored = read_config(run_dir)
    if preset is not None and preset_name(preset) != stored.run.preset:
        what = f"the run in {run_dir} {was_started_with(stored.run.preset)}"
        raise ConfigError(what, key=("run", "preset"), value=repr(preset), fix="omit the preset")
    pairs = (
        ("run.mode", config.run.mode, stored.run.mode),
        ("run.seed", config.run.seed, stored.run.seed),
        ("run.init_from", config.run.init_from, stored.run.init_from),
        *_changed("env", to_json(config.env), to_json(stored.env), ("recovery", "check")),
        *_changed("network", to_json(config.network), to_json(stored.network), ("runtime",)),  # for workers
        *_changed("algorithm", *_completed(config, stored)),
        *_changed("replay", to_json(config.replay), to_json(stored.replay)),
        # Elsewhere there is no FULL checkpoint, and the run would start from scratch without a message.
        ("store.kind", config.store.kind, stored.store.kind),
        *_changed("store", config.store.options, stored.store.options, ("mirror",)),
    )
    if config.env.recovery != "restart_episode":  # FULL has actions, states, or neither, of the running episodes
        pairs = (*pairs, ("env.recovery", config.env.recovery, stored.env.recovery))
    executors = config.learner.executor, stored.learner.executor
    if "auto" not in executors:  # else the learner compares: the plan resolves the key, and FULL has what it was
        pairs = (*pairs, ("learner.executor", *executors))
    for key, requested, before in pairs:
        if requested != before:
            what = f"the run in {run_dir} has {shown(before)}, and a resumed run must keep it"
            error = ConfigError(what, key=key_of(key), value=shown(requested))
            raise error if sources is None else sources.place(error)


def _completed(config: Config, stored: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The sections `algorithm`, with their defaults where they differ."""
    own, before = config.algorithm, stored.algorithm
    if own != before:
        subject, limit_s = Subject(repr(own["kind"]), ("algorithm", "kind")), config.limits.start_s
        own, before = call("completed", [own, before], subject=subject, limit_s=limit_s)
    return own, before


def _changed(
    section: str, requested: Mapping[str, object], before: Mapping[str, object], free: Sequence[str] = ()
) -> list[tuple[str, object, object]]:
    """The keys of a section but those that a resume may change; `kind` is the first, on which the others depend."""
    keys = sorted({*requested, *before}.difference(free), key=lambda key: (key != "kind", key))
    return [(f"{section}.{key}", requested.get(key), before.get(key)) for key in keys]
