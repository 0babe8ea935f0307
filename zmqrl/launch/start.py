"""The start of a run, of every way in: from a `StartRequest` to a plan whose directory this process owns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zmqrl.config.codec import replace
from zmqrl.config.load import Loaded
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.planning.continuation import for_env_steps, reached, record_nothing_trained
from zmqrl.planning.directory_checks import check_new_directory, check_resume, check_run_directory
from zmqrl.planning.start_request import StartRequest
from zmqrl.run_files.run_directory import RunDirectory, default_directory

if TYPE_CHECKING:
    from zmqrl.launch.launcher import Launcher, Observer


@dataclass(frozen=True)
class NothingToTrain:
    """The run in `run_dir` has reached `condition`."""

    run_dir: Path
    config: Config
    condition: str


@dataclass(frozen=True)
class Prepared:
    """A run that has not begun, whose directory this process owns."""

    plan: RunPlan
    directory: RunDirectory

    def launcher(
        self,
        plain: bool = True,
        on_ready: Callable[[], None] = lambda: None,
        quiet: bool = False,
        observer: Observer | None = None,
    ) -> Launcher:
        """See `Launcher`. After an error the directory is as before the start."""
        from zmqrl.launch.launcher import Launcher
        from zmqrl.orchestrators.make import make_orchestrator

        with self.directory.discarded_on_error():
            orchestrator = make_orchestrator(self.plan)
            return Launcher(self.plan, orchestrator, self.directory, plain, on_ready, quiet, observer)


def prepare(request: StartRequest) -> Prepared | NothingToTrain:
    """Check everything that can be checked before the start, and own the run directory.

    Raises:
        ConfigError: The run directory is in use, the configuration is invalid, or a resume is refused. Nothing was
            started, and the directory is as before.
    """
    loaded = examined(request)
    if isinstance(loaded, NothingToTrain):
        record_nothing_trained(loaded.run_dir)
        return loaded
    import zmqrl.launch.launcher  # noqa: F401 - while the template of the check processes starts

    plan = replace(planned(request, loaded), may_continue=request.may_continue)
    directory = RunDirectory.own(plan)
    if plan.resume:
        from zmqrl.planning.resume import prepare_resume

        with directory.discarded_on_error():
            plan = prepare_resume(plan, directory, request.from_scratch)
    return Prepared(plan, directory)


def examined(request: StartRequest) -> Loaded | NothingToTrain:
    """The configuration of a run that may start in its directory."""
    if request.resume is None:
        loaded = configured(request)
        check_new_directory(request.directory)
        return loaded
    check_run_directory(request.resume)
    loaded = configured(request)
    check_resume(request.resume, loaded.config, request.preset, loaded.sources)
    condition = reached(request.resume, loaded.config) if request.may_continue else None
    return loaded if condition is None else NothingToTrain(request.resume, loaded.config, condition)


def configured(request: StartRequest) -> Loaded:
    """The configuration, with the source of each key."""
    overrides, base = request.overrides, None if request.resume is not None else request.without_preset
    if request.resume is not None and request.for_env_steps is not None:
        more = for_env_steps(request.resume, request.for_env_steps)
        if isinstance(overrides, Mapping):
            overrides = {**more, **overrides}
        else:
            overrides = [*(f"{key}={json.dumps(value)}" for key, value in more.items()), *overrides]
    where, flags = (request.preset, request.hosts_file, overrides), (request.mode, request.workers, request.seed)
    return load(*where, *flags, request.resume, request.limit, request.init_from, base, request.trusted)


def planned(request: StartRequest, loaded: Loaded, is_here: bool = True, connects: bool = True) -> RunPlan:
    """See `checked_plan`."""
    is_resume = request.resume is not None
    arguments = request.directory, request.started_at, is_resume, loaded.sources, is_here, connects
    return checked_plan(loaded.config, *arguments)


@contextmanager
def new_directory(request: StartRequest) -> Iterator[Path]:
    """The directory of a new run: `run_dir`, or one that no other run takes."""
    if request.run_dir is not None:
        yield request.run_dir
    else:
        with default_directory(configured(request).config.run.name) as directory:
            yield directory
