"""Runs from Python: `train` and `resume` wait for the end, `start` returns a handle."""

from __future__ import annotations

import atexit
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.api.callbacks import Callbacks, Checkpoint, Progress, RunObserver, Score
from zmqrl.config.codec import from_json
from zmqrl.errors import ConfigError, TrainingFailed
from zmqrl.launch.checks import check_new_directory, check_resume
from zmqrl.launch.configure import load
from zmqrl.launch.continuation import for_env_steps as more_env_steps
from zmqrl.launch.continuation import nothing_to_train, reached, record_nothing_trained
from zmqrl.launch.launcher import Launcher
from zmqrl.launch.own_code import with_paths
from zmqrl.launch.plan_run import plan_run
from zmqrl.launch.resume import prepare_resume
from zmqrl.launch.run_directory import SUMMARY, RunDirectory
from zmqrl.launch.stop_signals import Request
from zmqrl.launch.summary import Summary
from zmqrl.orchestrators.make import make_orchestrator
from zmqrl.types import ModeName

END_S, KILL_S = 60.0, 15.0
"""At the exit of this process: until a run that still trains is stopped with a checkpoint, and then killed."""
_planning = threading.Lock()
"""Of several threads one plans a run, and owns its directory when the next one looks for a name."""
_running: set[Run] = set()


class Run:
    """A run that trains in the background, from `start`. Its methods may be called from any thread."""

    def __init__(self, launcher: Launcher | None, observer: RunObserver, run_dir: Path, run_id: str) -> None:
        """Use `start`. `launcher`: None where nothing remained to train."""
        self.run_dir, self.run_id = run_dir, run_id
        self._launcher, self._observer = launcher, observer
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._code = 0

    @property
    def progress(self) -> Progress:
        """As of the last second."""
        return self._observer.progress

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest row of training metrics; empty before the first."""
        return self._observer.metrics

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def summary(self) -> Summary | None:
        """The summary, once the run has ended."""
        if self._launcher is None:
            return _stored_summary(self.run_dir)
        return None if self.is_running else self._launcher.summary

    def stop(self) -> None:
        """Request a stop at the next version boundary, with a checkpoint and a summary; `wait` for the end."""
        if self._launcher is not None:
            self._launcher.request_stop()

    def wait(self, timeout_s: float | None = None, check: bool = True) -> Summary:
        """The summary, once the run has ended.

        Args:
            timeout_s: None: no limit.
            check: Raise where the training failed; else its summary is returned.

        Raises:
            TimeoutError: The run has not ended; it continues.
            TrainingFailed: The training failed.
            ConfigError: A process of the run rejected the configuration; nothing is left of the run.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise TimeoutError(f"run {self.run_id} has not ended within {timeout_s:g} s")
        return self._result(check)

    def _result(self, check: bool) -> Summary:
        if self._error is not None:
            raise self._error
        if self._launcher is not None and self._launcher.refusal is not None:
            raise ConfigError(self._launcher.refusal)
        summary = self.summary
        if summary is None:
            raise TrainingFailed(f"the run in {self.run_dir} ended with exit code {self._code} before it started")
        if check and summary.status == "failed":
            raise TrainingFailed(f"run {self.run_id} failed: {summary.error}; see {self.run_dir}", summary)
        return summary

    def _execute(self) -> None:
        """In the thread of the run: until its end."""
        assert self._launcher is not None
        try:
            self._code = self._launcher.run()
        except BaseException as error:  # noqa: BLE001 - raised where the run is waited for
            self._error = error
        finally:
            self._observer.finish(self._launcher.summary)
            _running.discard(self)

    def _start(self) -> None:
        if self._launcher is not None:
            _running.add(self)
            self._thread = threading.Thread(target=self._execute, name=f"run {self.run_id}", daemon=True)
            self._thread.start()

    def _end_with_process(self) -> None:
        if self._launcher is None or self._thread is None:
            return
        for request, limit_s in ((Request.INTERRUPT, END_S), (Request.KILL, KILL_S)):
            self._launcher.request_stop(request)
            self._thread.join(limit_s)


@atexit.register
def _end_all() -> None:
    """No run outlives the process that holds it."""
    for run in list(_running):
        run._end_with_process()


@dataclass(frozen=True)
class _Asked:
    """The arguments that `train`, `start` and `resume` have in common."""

    preset: str | None
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


def train(
    preset: str | None = None,
    *,
    run_dir: str | Path | None = None,
    mode: ModeName | None = None,
    workers: int | None = None,
    seed: int | None = None,
    init_from: str | Path | None = None,
    on_metrics: Callable[[Mapping[str, float]], object] | None = None,
    on_score: Callable[[Score], object] | None = None,
    on_checkpoint: Callable[[Checkpoint], object] | None = None,
    quiet: bool = False,
    check: bool = True,
    **overrides: Any,
) -> Summary:
    """Train on this machine and return the content of `summary.json`.

    In the main thread Ctrl-C stops the run with a checkpoint, and again kills it. Other threads catch no signals.

    Args:
        preset: A name of `zmqrl presets`, or a path of a YAML file; None: the defaults.
        run_dir: Run directory; default `runs/<name>-<time>`.
        mode: single, sync or async.
        workers: Rollout workers.
        seed: Seed of all random streams.
        init_from: Run directory or checkpoint file with the initial weights; None: random weights.
        on_metrics: Called with each row of training metrics, about once a second. False stops the run, as for the next
            two. They are called in the thread of the run: one that waits delays the launcher.
        on_score: Called with each score of the evaluator.
        on_checkpoint: Called with each new full or best checkpoint.
        quiet: Print nothing.
        check: Raise where the training failed; else its summary is returned.
        overrides: As for `--set`: `run__total_env_steps=10_000` for `run.total_env_steps`, a section as a mapping,
            `run={"total_env_steps": 10_000}`, or a dotted key by `**{"run.total_env_steps": 10_000}`. None resets. A
            class at the top level of a module is its dotted path: `env__id=my_envs.Walk`.

    Raises:
        ConfigError: The run cannot be started with these arguments; nothing was written.
        TrainingFailed: The training failed; its `summary` is that of the run.
    """
    callbacks = Callbacks(on_metrics, on_score, on_checkpoint)
    asked = _Asked(preset, run_dir, None, None, mode, workers, seed, init_from, overrides, callbacks, quiet)
    return _run_here(asked, check)


def resume(
    run_dir: str | Path,
    *,
    for_env_steps: int | None = None,
    workers: int | None = None,
    on_metrics: Callable[[Mapping[str, float]], object] | None = None,
    on_score: Callable[[Score], object] | None = None,
    on_checkpoint: Callable[[Checkpoint], object] | None = None,
    quiet: bool = False,
    check: bool = True,
    **overrides: Any,
) -> Summary:
    """Continue the run in `run_dir`, as `zmqrl train --resume` does. `trained_env_steps` is 0 if nothing remained.

    Args:
        run_dir: Run directory.
        for_env_steps: Train so many more env steps; the stop conditions of the stored run are off.
        workers: Rollout workers; None: as before.
        on_metrics: See `train`, also for what follows.
        on_score: Called with each score of the evaluator.
        on_checkpoint: Called with each new full or best checkpoint.
        quiet: Print nothing.
        check: Raise where the training failed.
        overrides: As for `train`; totals, stop conditions and workers may change.

    Raises:
        ConfigError: The run cannot be continued with these arguments.
        TrainingFailed: The training failed.
    """
    callbacks = Callbacks(on_metrics, on_score, on_checkpoint)
    asked = _Asked(None, None, run_dir, for_env_steps, None, workers, None, None, overrides, callbacks, quiet)
    return _run_here(asked, check)


def start(
    preset: str | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    for_env_steps: int | None = None,
    mode: ModeName | None = None,
    workers: int | None = None,
    seed: int | None = None,
    init_from: str | Path | None = None,
    on_metrics: Callable[[Mapping[str, float]], object] | None = None,
    on_score: Callable[[Score], object] | None = None,
    on_checkpoint: Callable[[Checkpoint], object] | None = None,
    quiet: bool = True,
    **overrides: Any,
) -> Run:
    """Start a run in the background. It is stopped with a checkpoint when this process exits.

    Args:
        preset: As for `train`, like all arguments that are not listed here.
        run_dir: Run directory; default `runs/<name>-<time>`.
        resume: Continue the run in this directory instead; `for_env_steps` as for `resume`.
        for_env_steps: Train so many more env steps.
        mode: single, sync or async.
        workers: Rollout workers.
        seed: Seed of all random streams.
        init_from: Run directory or checkpoint file with the initial weights.
        on_metrics: Called in the thread of the run, as the next two.
        on_score: Called with each score of the evaluator.
        on_checkpoint: Called with each new full or best checkpoint.
        quiet: Print nothing.
        overrides: As for `train`.

    Raises:
        ConfigError: The run cannot be started with these arguments; nothing was written.
    """
    callbacks = Callbacks(on_metrics, on_score, on_checkpoint)
    asked = _Asked(preset, run_dir, resume, for_env_steps, mode, workers, seed, init_from, overrides, callbacks, quiet)
    run = _prepared(asked)
    run._start()
    return run


def _run_here(asked: _Asked, check: bool) -> Summary:
    run = _prepared(asked)
    if run._launcher is not None:
        run._execute()
    return run._result(check)


def _prepared(asked: _Asked) -> Run:
    """A run that is planned, and whose directory this process owns."""
    started_at = time.time()
    with _planning:
        if asked.resume is not None:
            return _resumed(asked, Path(asked.resume), started_at)
        if asked.for_env_steps is not None:
            raise ConfigError("for_env_steps continues a run: give resume=DIR; a new run has run__total_env_steps")
        source = None if asked.init_from is None else str(Path(asked.init_from).expanduser().absolute())
        loaded = load(
            asked.preset, None, _dotted(asked.overrides), asked.mode, asked.workers, asked.seed, init_from=source
        )
        directory = Path(asked.run_dir) if asked.run_dir is not None else _default_directory(loaded.config.run.name)
        check_new_directory(directory)
        plan = plan_run(loaded.config, directory, started_at, False, loaded.sources)
        observer, orchestrator = RunObserver(plan, asked.callbacks), make_orchestrator(plan)
        owned = RunDirectory.own(plan)
        launcher = Launcher(plan, orchestrator, plain=True, directory=owned, quiet=asked.quiet, observer=observer)
        return Run(launcher, observer, Path(plan.run_dir), plan.run_id)


def _resumed(asked: _Asked, directory: Path, started_at: float) -> Run:
    given = {"run_dir": asked.run_dir, "mode": asked.mode, "seed": asked.seed, "init_from": asked.init_from}
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise ConfigError(f"{wrong[0]}: a resumed run keeps its own; remove the argument")
    if not directory.is_dir():
        raise ConfigError(f"resume: {directory}: run directory not found")
    more = {} if asked.for_env_steps is None else more_env_steps(directory, asked.for_env_steps)
    overrides = {**more, **_dotted(asked.overrides)}
    loaded = load(overrides=overrides, workers=asked.workers, stored=directory)
    check_resume(directory, loaded.config, asked.preset)
    plan = plan_run(loaded.config, directory, started_at, True, loaded.sources)
    observer = RunObserver(plan, asked.callbacks)
    condition = reached(directory, loaded.config)
    if condition is not None:
        record_nothing_trained(directory)
        observer.finish(_stored_summary(directory))
        if not asked.quiet:
            print(nothing_to_train(directory, condition))
        return Run(None, observer, Path(plan.run_dir), plan.run_id)
    owned = RunDirectory.own(plan)
    try:
        plan = prepare_resume(plan, owned)
        orchestrator = make_orchestrator(plan)
        launcher = Launcher(plan, orchestrator, plain=True, directory=owned, quiet=asked.quiet, observer=observer)
    except BaseException:
        owned.discard()
        raise
    return Run(launcher, observer, Path(plan.run_dir), plan.run_id)


def _dotted(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return with_paths({name.replace("__", "."): value for name, value in overrides.items()})


def _default_directory(name: str) -> Path:
    """`runs/<name>-<time>`, and more where a run that started in the same second has it."""
    path = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return path if not path.exists() else path.with_name(f"{path.name}-{secrets.token_hex(2)}")


def _stored_summary(run_dir: Path) -> Summary:
    try:
        return from_json(Summary, json.loads((run_dir / SUMMARY).read_text()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{run_dir / SUMMARY} cannot be read: {error}") from error
