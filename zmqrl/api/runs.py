"""Runs from Python: `train` and `resume` wait for the end, `start` returns a handle."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from zmqrl.algorithms.base import Algorithm
from zmqrl.api.arguments import check_names, errors_of_python, request_of
from zmqrl.api.callbacks import Callbacks, Checkpoint, Progress, RunObserver, Score
from zmqrl.config.codec import from_json, replace
from zmqrl.errors import ConfigError, TrainingFailed
from zmqrl.launch.launcher import Launcher
from zmqrl.launch.start import NothingToTrain, new_directory, prepare
from zmqrl.launch.stop_signals import StopRequest
from zmqrl.planning.continuation import EXAMPLE_STEPS, nothing_to_train
from zmqrl.planning.start_request import StartRequest
from zmqrl.run_files.records import read_summary
from zmqrl.summary import Summary
from zmqrl.supervision import check_process
from zmqrl.types import ModeName

END_S, KILL_S = 60.0, 15.0
"""At the exit of this process: until a run that still trains is stopped with a checkpoint, and then killed."""
_running: set[Run] = set()
_preparing = threading.Lock()
"""Lock of threads: one prepares a run, and owns its directory when the next one looks for a name."""


class Run:
    """A run that trains in the background, from `start`. Its methods may be called from any thread."""

    def __init__(self, request: StartRequest, callbacks: Callbacks, quiet: bool) -> None:
        """Use `start`. The run is prepared, and not begun."""
        self._launcher: Launcher | None = None
        self._stored: Summary | None = None
        """Where nothing remains to train."""
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        """Event in place of `Thread.join`, after which an interrupted thread counts as ended (Python 3.10 to 3.12)."""
        self._error: BaseException | None = None
        self._code = 0
        with errors_of_python(), _preparing, check_process.none_left(), ExitStack() as until_the_end:
            check_process.start()
            if request.resume is None:
                request = replace(request, run_dir=until_the_end.enter_context(new_directory(request)))
            found = prepare(request)
            if isinstance(found, NothingToTrain):
                self._stored = from_json(Summary, read_summary(found.run_dir))
                self.run_dir, self.run_id = found.run_dir.absolute(), self._stored.run_id
                self._observer = RunObserver(found.config, self.run_dir, callbacks)
                self._observer.finish(self._stored)
                if not quiet:
                    more = f"zmqrl.resume({str(found.run_dir)!r}, for_env_steps={EXAMPLE_STEPS})"
                    print(nothing_to_train(found.run_dir, found.condition, more))
            else:
                self.run_dir, self.run_id = Path(found.plan.run_dir), found.plan.run_id
                with found.directory.discarded_on_error():
                    self._observer = RunObserver(found.plan.config, Path(found.plan.store_path), callbacks)
                self._launcher = found.launcher(quiet=quiet, observer=self._observer)
            self._until_the_end = until_the_end.pop_all()

    @property
    def progress(self) -> Progress:
        """Progress as of the last second."""
        return self._observer.progress

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest row of training metrics; empty before the first."""
        return self._observer.metrics

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._thread is not None and not self._ended.is_set()

    @property
    def summary(self) -> Summary | None:
        """The summary, once the run has ended."""
        if self._launcher is None:
            return self._stored
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
        if self._thread is not None and not self._ended.wait(timeout_s):
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
        """Execute the run in its thread, until its end."""
        assert self._launcher is not None
        try:
            try:
                with self._until_the_end:
                    self._code = self._launcher.run()
            finally:
                self._observer.finish(self._launcher.summary)
        except BaseException as error:  # noqa: BLE001 - raised where the run is waited for
            self._error = error
        finally:
            _running.discard(self)
            self._ended.set()

    def _start(self) -> None:
        if self._launcher is not None:
            _running.add(self)
            self._thread = threading.Thread(target=self._execute, name=f"run {self.run_id}", daemon=True)
            self._thread.start()

    def _end_with_process(self) -> None:
        if self._launcher is None or self._thread is None:
            return
        for request, limit_s in ((StopRequest.INTERRUPT, END_S), (StopRequest.KILL, KILL_S)):
            self._launcher.request_stop(request)
            self._ended.wait(limit_s)


@atexit.register
def _end_all() -> None:
    """No run outlives the process that holds it."""
    for run in list(_running):
        run._end_with_process()


def train(
    preset: str | None = None,
    *,
    algo: str | type[Algorithm] | None = None,
    run_dir: str | Path | None = None,
    mode: ModeName | None = None,
    workers: int | None = None,
    seed: int | None = None,
    init_from: str | Path | None = None,
    trust: bool = False,
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
        preset: A name of `zmqrl presets`, or a path of a YAML file; None: `env` names an env to train in.
        algo: Without a preset: the algorithm, or its class; default ppo. Its settings for the env are those of
            `zmqrl train --env`.
        run_dir: Run directory; default `runs/<name>-<time>`.
        mode: single, sync, pipelined or async.
        workers: Rollout workers.
        seed: Seed of all random streams.
        init_from: Run directory or checkpoint file with the initial weights; None: random weights.
        trust: Import what the run of `init_from` names, if another user made it.
        on_metrics: Called with each row of training metrics, about once a second. False stops the run, as for the next
            two. They are called in the thread of the run: one that waits delays the launcher.
        on_score: Called with each score of the evaluator.
        on_checkpoint: Called with each new full or best checkpoint.
        quiet: Print nothing.
        check: Raise where the training failed; else its summary is returned.
        overrides: As for `--set`: `run__total_env_steps=10_000` for `run.total_env_steps`, a section as a mapping,
            `run={"total_env_steps": 10_000}`, or a dotted key by `**{"run.total_env_steps": 10_000}`. None resets. A
            class at the top level of a module is its dotted path: `env__id=my_envs.Walk`. `env="CartPole-v1"` and
            `env=my_envs.Walk` are short for its `id`.

    Raises:
        ConfigError: The run cannot be started with these arguments; nothing was written.
        TrainingFailed: The training failed; its `summary` is that of the run.
    """
    check_names(train, overrides)
    request = request_of(preset, algo, run_dir, None, None, mode, workers, seed, init_from, trust, overrides)
    return _run_here(request, Callbacks(on_metrics, on_score, on_checkpoint), quiet, check)


def resume(
    run_dir: str | Path,
    *,
    for_env_steps: int | None = None,
    workers: int | None = None,
    trust: bool = False,
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
        trust: Import what the run names, if another user made it.
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
    check_names(resume, overrides)
    request = request_of(None, None, None, run_dir, for_env_steps, None, workers, None, None, trust, overrides)
    return _run_here(request, Callbacks(on_metrics, on_score, on_checkpoint), quiet, check)


def start(
    preset: str | None = None,
    *,
    algo: str | type[Algorithm] | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    for_env_steps: int | None = None,
    mode: ModeName | None = None,
    workers: int | None = None,
    seed: int | None = None,
    init_from: str | Path | None = None,
    trust: bool = False,
    on_metrics: Callable[[Mapping[str, float]], object] | None = None,
    on_score: Callable[[Score], object] | None = None,
    on_checkpoint: Callable[[Checkpoint], object] | None = None,
    quiet: bool = True,
    **overrides: Any,
) -> Run:
    """Start a run in the background. It is stopped with a checkpoint when this process exits.

    Its arguments are those of `train` without `check` (`Run.wait` has it), and of `zmqrl.resume` where `resume` is the
    directory of a run to continue; `trust` then concerns what this run names. `quiet` is on by default.

    Raises:
        ConfigError: The run cannot be started with these arguments; nothing was written.
    """
    check_names(start, overrides)
    request = request_of(preset, algo, run_dir, resume, for_env_steps, mode, workers, seed, init_from, trust, overrides)
    run = Run(request, Callbacks(on_metrics, on_score, on_checkpoint), quiet)
    run._start()
    return run


def _run_here(request: StartRequest, callbacks: Callbacks, quiet: bool, check: bool) -> Summary:
    run = Run(request, callbacks, quiet)
    if run._launcher is not None:
        run._execute()
    return run._result(check)
