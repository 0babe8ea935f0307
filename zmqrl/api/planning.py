"""From the arguments of `train`, `start` and `resume` to a launcher whose directory this process owns."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zmqrl.algorithms.base import Algorithm
from zmqrl.api.arguments import algorithm_name, dotted, for_python, without_preset
from zmqrl.api.callbacks import Callbacks, RunObserver
from zmqrl.config.codec import from_json, replace
from zmqrl.config.load import Loaded
from zmqrl.config.paths import expanded
from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError
from zmqrl.launch.checked import checked_plan, resolve_auto_workers
from zmqrl.launch.checks import check_new_directory, check_resume
from zmqrl.launch.configure import load
from zmqrl.launch.continuation import EXAMPLE_STEPS, nothing_to_train, reached, record_nothing_trained
from zmqrl.launch.continuation import for_env_steps as more_env_steps
from zmqrl.launch.launcher import Launcher
from zmqrl.launch.own_code import plain
from zmqrl.launch.resume import prepare_resume
from zmqrl.launch.run_directory import SUMMARY, RunDirectory, default_directory
from zmqrl.launch.summary import Summary
from zmqrl.orchestrators.make import make_orchestrator
from zmqrl.supervision import check_process
from zmqrl.types import ModeName

_planning = threading.Lock()
"""Of several threads one plans a run, and owns its directory when the next one looks for a name."""


@dataclass(frozen=True)
class RunArguments:
    """The arguments that `train`, `start` and `resume` have in common."""

    preset: str | None
    algo: str | type[Algorithm] | None
    run_dir: str | Path | None
    resume: str | Path | None
    for_env_steps: int | None
    mode: ModeName | None
    workers: int | None
    seed: int | None
    init_from: str | Path | None
    overrides: Mapping[str, Any]
    callbacks: Callbacks
    quiet: bool
    trust: bool = False


@dataclass(frozen=True)
class PreparedRun:
    """Planned, and not begun."""

    launcher: Launcher | None
    """None: nothing remains to train."""
    observer: RunObserver
    run_dir: Path
    run_id: str
    until_the_end: ExitStack = field(default_factory=ExitStack)
    """Closed after the run: a default directory in which it left nothing is removed."""


def prepared(asked: RunArguments) -> PreparedRun:
    """A run that is planned, and whose directory this process owns. ConfigError names arguments of Python."""
    try:
        with _planning, check_process.none_left():
            check_process.start()
            return _prepared(asked)
    except ConfigError as error:
        raise for_python(error) from None  # its sentence has the cause


def _prepared(asked: RunArguments) -> PreparedRun:
    started_at = time.time()
    if asked.resume is not None:
        return _resumed(asked, expanded(asked.resume, "resume"), started_at)
    if asked.for_env_steps is not None:
        raise ConfigError("for_env_steps continues a run: give resume=DIR; a new run has run__total_env_steps")
    loaded = loaded_for(asked)
    if asked.run_dir is not None:
        return _new(asked, loaded, expanded(asked.run_dir, "run_dir"), started_at)
    with ExitStack() as until_the_end:
        directory = until_the_end.enter_context(default_directory(loaded.config.run.name))
        planned = _new(asked, loaded, directory, started_at)
        return replace(planned, until_the_end=until_the_end.pop_all())


def _new(asked: RunArguments, loaded: Loaded, directory: Path, started_at: float) -> PreparedRun:
    check_new_directory(directory, f"zmqrl.resume({str(directory)!r})")
    plan = _planned(loaded, directory, started_at, False)
    observer, orchestrator = RunObserver(plan, asked.callbacks), make_orchestrator(plan)
    owned = RunDirectory.own(plan)
    launcher = Launcher(plan, orchestrator, plain=True, directory=owned, quiet=asked.quiet, observer=observer)
    return PreparedRun(launcher, observer, Path(plan.run_dir), plan.run_id)


def loaded_for(asked: RunArguments) -> Loaded:
    """The configuration of a new run."""
    source = None if asked.init_from is None else str(expanded(asked.init_from, "init_from").absolute())
    given = dotted(asked.overrides)
    base = without_preset(asked.preset, algorithm_name(asked.algo), asked.overrides.get("env"), given)
    flags = (asked.mode, plain(asked.workers), plain(asked.seed))
    return load(asked.preset, None, given, *flags, init_from=source, without_preset=base, trusted=asked.trust)


def _resumed(asked: RunArguments, directory: Path, started_at: float) -> PreparedRun:
    kept = ("algo", "run_dir", "mode", "seed", "init_from")
    wrong = [name for name in kept if getattr(asked, name) is not None]
    if wrong:
        raise ConfigError("a resumed run keeps its own", key=(wrong[0],), fix="remove the argument")
    if not directory.is_dir():
        raise ConfigError("run directory not found", key=("resume",), value=str(directory))
    more = {} if asked.for_env_steps is None else more_env_steps(directory, plain(asked.for_env_steps))
    overrides = {**more, **dotted(asked.overrides)}
    loaded = load(overrides=overrides, workers=plain(asked.workers), stored=directory, trusted=asked.trust)
    check_resume(directory, loaded.config, asked.preset, loaded.sources)
    plan = _planned(loaded, directory, started_at, True)
    observer = RunObserver(plan, asked.callbacks)
    condition = reached(directory, loaded.config)
    if condition is not None:
        record_nothing_trained(directory)
        observer.finish(stored_summary(directory))
        if not asked.quiet:
            call = f"zmqrl.resume({str(directory)!r}, for_env_steps={EXAMPLE_STEPS})"
            print(nothing_to_train(directory, condition, call))
        return PreparedRun(None, observer, Path(plan.run_dir), plan.run_id)
    owned = RunDirectory.own(plan)
    try:
        plan = prepare_resume(plan, owned)
        orchestrator = make_orchestrator(plan)
        launcher = Launcher(plan, orchestrator, plain=True, directory=owned, quiet=asked.quiet, observer=observer)
    except BaseException:
        owned.discard()
        raise
    return PreparedRun(launcher, observer, Path(plan.run_dir), plan.run_id)


def _planned(loaded: Loaded, directory: Path, started_at: float, resume: bool) -> RunPlan:
    arguments = directory, started_at, resume, loaded.sources
    plan = checked_plan(loaded.config, *arguments)
    config = resolve_auto_workers(loaded.config)  # a fault of the configuration has been reported by now
    return plan if config is loaded.config else checked_plan(config, *arguments, before=plan)


def stored_summary(run_dir: Path) -> Summary:
    """`summary.json` of a run. ConfigError: it cannot be read."""
    try:
        return from_json(Summary, json.loads((run_dir / SUMMARY).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{run_dir / SUMMARY} cannot be read: {error}") from error
