"""What a run directory must be for a new run, and for a resume, which may change a part of the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zmqrl.config.codec import to_json
from zmqrl.config.plan import INITIAL
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError, key_of
from zmqrl.planning.checked import call
from zmqrl.run_files.run_directory import RESERVED
from zmqrl.run_files.run_info import has_launcher_here, read_info
from zmqrl.run_files.stored_config import read_config
from zmqrl.supervision.owner_record import FOLDER
from zmqrl.supervision.run_owner import in_use
from zmqrl.supervision.served_call import Subject

if TYPE_CHECKING:
    from zmqrl.config.load import Sources

MADE = frozenset({FOLDER, "logs", "checkpoints", RESERVED, INITIAL, "config.json", "job.sh", "slurm.out"})
TEMPORARY = (".config.json.", ".run.json.", f".{INITIAL}.")
"""What a launcher makes in a run directory before `run.json`."""


def check_new_directory(run_dir: Path) -> None:
    """Raise `ConfigError` when `run_dir` is in use or holds anything: a run's results are never written over."""
    check_not_live(run_dir)
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError.about(f"run directory {run_dir}", "is not a directory")
    if run_dir.is_dir() and any(run_dir.iterdir()) and not _is_left_before_begin(run_dir):
        fix, python_fix = "it holds no run; choose another directory", ""
        if holds_run(run_dir):
            ways = f"--resume {run_dir}", f"zmqrl.resume({str(run_dir)!r})"
            fix, python_fix = (f"to continue its run: {way}" for way in ways)
        what, value = "exists and is not empty", f"run directory {run_dir}"
        raise ConfigError(what, key=(), value=value, is_subject=True, fix=fix, python_fix=python_fix)


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
    if info is not None and has_launcher_here(run_dir, info):
        raise in_use(run_dir, f"run {info.run_id} (pid {info.pid})")


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
    from zmqrl.config.load import was_started_with
    from zmqrl.config.presets import preset_name
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
        ("learner.precision", config.learner.precision, stored.learner.precision),
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
