"""The driver over real folders; the test ends the runs, and an evaluation is a value at once."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.support.raising import raises
from tests.sweeps.samples import RATES, made
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.queue.folder import QueueFolder
from zmqrl.queue.hosts import RunnerHosts
from zmqrl.queue.records import MOST_LOST, JobEnd, JobNeeds
from zmqrl.sweeps.driver import PRESET, SweepDriver, drive, request
from zmqrl.sweeps.folder import SweepFolder
from zmqrl.sweeps.report import SweepReport
from zmqrl.sweeps.trials import holds


class Evaluations:
    """`subprocess` with processes that end at once. `codes`: exit codes of the first ones."""

    PIPE, TimeoutExpired = subprocess.PIPE, subprocess.TimeoutExpired

    def __init__(self, *codes: int) -> None:
        self.codes, self.words = list(codes), list[Sequence[str]]()

    def Popen(self, words: Sequence[str], **_: object) -> Any:
        self.words.append(words)
        trial = int(Path(words[5]).parent.name.removeprefix("trial-"))
        score = {"return_mean": -abs(RATES[trial] - 0.2), "reports": {"x": float(trial)}, "version": "0-9"}
        code = self.codes.pop(0) if self.codes else 0
        content = json.dumps(score).encode()
        pipes = {"stdin": io.BytesIO(), "stdout": io.BytesIO()}
        ends: Any = {"poll": lambda: code, "wait": lambda _: code, "communicate": lambda: (content, None)}
        return SimpleNamespace(returncode=code, **pipes, **ends)


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Evaluations:
    found = Evaluations()
    monkeypatch.setattr("zmqrl.sweeps.driver.subprocess", found)
    monkeypatch.setattr("zmqrl.sweeps.driver.usable_cores", lambda: 1)
    return found


def driver(folder: SweepFolder, queue: QueueFolder) -> SweepDriver:
    return SweepDriver(folder, queue, lambda _: None)


def settle(own: SweepDriver) -> None:
    while own.step():
        pass


def interrupt(text: str) -> None:
    """End `drive` at the second job."""
    if text.endswith("job 5"):
        raise KeyboardInterrupt


def end_jobs(queue: QueueFolder) -> None:
    for number in queue.read().jobs:
        queue.end_job(number, JobEnd("done", 0))


def test_a_sweep_ends_with_the_best_trial_as_a_preset(tmp_path: Path, evaluations: Evaluations) -> None:
    folder, queue = made(
        tmp_path, seeds=2, max_parallel=4, set={"run": {"total_env_steps": 50, "stop_at_return": None}}, rungs=(10,)
    )
    with driver(folder, queue) as own:
        settle(own)
        jobs = [job.record for job in queue.read().jobs.values()]
        assert [job.run_dir for job in jobs] == [
            str(folder.run_dir(trial, seed)) for trial in (0, 1) for seed in (0, 1)
        ]
        assert jobs[1].overrides == (
            "run.total_env_steps=50",
            "run.stop_at_return=null",
            "algorithm.learning_rate=0.1",
            "run.seed=6",
            "store.keep_every=10",
        )
        assert (jobs[0].preset, jobs[0].folder, jobs[0].needs) == ("cartpole-ppo", str(tmp_path), JobNeeds(2, 0))
        with raises(ConfigError, value=str(folder.path)):
            driver(folder, queue)
        for _ in range(2):
            end_jobs(queue)
            assert not own.has_ended()
            settle(own)
        assert own.has_ended()
    assert {tuple(words[6:]) for words in evaluations.words} == {
        ("--checkpoint", "last", "--episodes", "20", "--seed", "1", "--json")
    }
    assert len(evaluations.words) == 3 * 2 * 2
    assert yaml.safe_load((folder.path / PRESET).read_text()) == {
        "run": {"preset": "cartpole-ppo", "total_env_steps": 50, "stop_at_return": None},
        "algorithm": {"learning_rate": 0.2},
    }


def test_the_next_driver_continues_from_the_records(tmp_path: Path, evaluations: Evaluations) -> None:
    folder, queue = made(tmp_path)
    for _ in range(20):  # each does two steps and is gone
        with driver(SweepFolder(folder.path), queue) as own:
            own.step()
            own.step()
            has_ended = own.has_ended()
        end_jobs(queue)
    assert has_ended and (folder.path / PRESET).exists()
    assert len(queue.read().jobs) == 3


def test_a_killed_evaluation_is_repeated_and_a_failed_one_fails_its_trial(
    tmp_path: Path, evaluations: Evaluations
) -> None:
    folder, queue = made(tmp_path)
    evaluations.codes = [-9, 130, 1]
    with driver(folder, queue) as own:
        settle(own)
        end_jobs(queue)
        settle(own)
    assert [trial.values[0, 0] is None for trial in folder.trials(queue.read())] == [True, False, False]


def test_an_evaluation_that_is_always_killed_fails_its_trial(tmp_path: Path, evaluations: Evaluations) -> None:
    folder, queue = made(tmp_path)
    evaluations.codes = [-9] * MOST_LOST
    with driver(folder, queue) as own:
        settle(own)
        end_jobs(queue)
        settle(own)
    assert [trial.values[0, 0] is None for trial in folder.trials(queue.read())] == [True, False, False]


def test_evaluations_that_ignore_the_end_of_their_stdin_are_killed_after_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, queue = made(tmp_path)
    started: list[subprocess.Popen[bytes]] = []
    waits: list[float] = []

    class Frozen(subprocess.Popen[bytes]):
        def __init__(self, words: Sequence[str], **options: Any) -> None:
            super().__init__(["sleep", "600"], **options)
            started.append(self)

        def wait(self, timeout: float | None = None) -> int:
            assert all(process.stdin is not None and process.stdin.closed for process in started)
            waits.append(timeout or 0.0)
            return super().wait(timeout)

    monkeypatch.setattr("zmqrl.sweeps.driver.subprocess.Popen", Frozen)
    monkeypatch.setattr("zmqrl.sweeps.driver.usable_cores", lambda: 8)
    with driver(folder, queue) as own:
        settle(own)
        end_jobs(queue)
        own.step()
        monkeypatch.setattr("zmqrl.sweeps.driver.END_S", 0.25)
    assert [process.returncode for process in started] == [-9, -9]
    assert waits[0] > 0.0 == waits[2]


def test_a_folder_that_is_away_is_named_once_and_does_not_stop_the_runner(
    tmp_path: Path, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, queue = made(tmp_path)
    away, shown = tmp_path / "away", list[str]()

    class Runner(contextlib.nullcontext[Any]):
        steps = 0

        def __init__(self, *_: object) -> None:
            super().__init__(self)

        def step(self) -> bool:
            self.steps += 1
            if self.steps in (2, 6):
                folder.path.rename(away)
            elif self.steps in (4, 9):
                away.rename(folder.path)
            elif self.steps == 10:
                end_jobs(queue)
            return False

    monkeypatch.setattr("zmqrl.sweeps.driver.JobRunner", Runner)
    monkeypatch.setattr("zmqrl.queue.runner.POLL_S", 0.0)
    monkeypatch.setattr("zmqrl.queue.runner.IDLE_SHARE", 1.0)
    drive(folder, queue, RunnerHosts({}), shown.append)
    assert sum(str(folder.path) in text for text in shown) == 2 and not any("the queue" in text for text in shown)
    assert (folder.path / PRESET).exists()


def test_the_jobs_of_a_sweep_are_known_by_any_of_its_paths(tmp_path: Path) -> None:
    folder, queue = made(tmp_path)
    (tmp_path / "link").symlink_to(folder.path)
    for path in (tmp_path / "link", folder.path / ".." / "s", folder.path):
        with driver(SweepFolder(path), queue) as own:
            for _ in range(10):
                own.step()
    assert len(queue.read().jobs) == len(RATES)


def test_jobs_of_a_removed_sweep_are_ended_and_not_used(tmp_path: Path, evaluations: Evaluations) -> None:
    folder, queue = made(tmp_path)
    with driver(folder, queue) as own:
        settle(own)
    queue.end_job(1, JobEnd("done", 0))
    queue.end_job(2, JobEnd("failed", 1))
    shutil.rmtree(folder.path)
    folder = SweepFolder.create(folder.path, replace(folder.sweep, jobs_before=3))
    assert SweepFolder.create(folder.path, replace(folder.sweep, jobs_before=6)).sweep.jobs_before == 3
    with pytest.raises(KeyboardInterrupt):
        drive(folder, queue, RunnerHosts({}), interrupt)
    jobs = queue.read().jobs
    assert [number for number, job in jobs.items() if job.is_stopped] == [3]
    assert [jobs[number].record.run_dir for number in (4, 5)] == [jobs[number].record.run_dir for number in (1, 2)]
    queue.end_job(3, JobEnd("stopped"))
    with driver(folder, queue) as own:
        settle(own)
    assert not evaluations.words and len(queue.read().jobs) == 6


def test_a_queue_that_was_made_again_is_refused(tmp_path: Path) -> None:
    folder, queue = made(tmp_path)
    folder.sweep = replace(folder.sweep, jobs_before=1)
    with driver(folder, queue) as own, raises(ConfigError, value=str(queue.path)):
        settle(own)
    assert [job.is_stopped for job in queue.read().jobs.values()] == [True]


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, queue = made(tmp_path)
    monkeypatch.setattr("zmqrl.sweeps.driver.is_own", lambda path: path != folder.path)
    with raises(ConfigError, value=str(folder.path)):
        driver(folder, queue)
    assert not (folder.path / ".owner").exists()


def test_what_cannot_be_evaluated_here_ends_the_driver_and_has_no_record(
    tmp_path: Path, evaluations: Evaluations
) -> None:
    folder, queue = made(tmp_path)
    evaluations.codes = [2]
    with driver(folder, queue) as own:
        settle(own)
        end_jobs(queue)
        with raises(ConfigError, value="trial 0, seed 5"):
            settle(own)
    assert [trial.values for trial in folder.trials(queue.read())] == [{}, {}, {}]


def test_a_number_of_the_env_may_be_the_value(tmp_path: Path, evaluations: Evaluations) -> None:
    folder, queue = made(tmp_path)
    folder.sweep = replace(folder.sweep, best_by="x")
    with driver(folder, queue) as own:
        settle(own)
        end_jobs(queue)
        settle(own)
    assert [trial.values for trial in folder.trials(queue.read())] == [{(0, 0): 0.0}, {(0, 0): 1.0}, {(0, 0): 2.0}]


def test_a_failed_trial_is_reported_once_with_its_reason(tmp_path: Path, evaluations: Evaluations) -> None:
    folder, queue = made(tmp_path, seeds=2)
    evaluations.codes = [1]
    shown = list[str]()
    with SweepDriver(folder, queue, shown.append) as own:
        settle(own)
        queue.end_job(2, JobEnd("failed", 1))  # of trial 0
        queue.end_job(4, JobEnd("stopped"))
        queue.end_job(5, JobEnd("done", 0))
        settle(own)
        queue.end_job(1, JobEnd("stopped"))
        settle(own)
    assert [text for text in shown if text.startswith("trial ") and " failed: " in text] == [
        "trial 0 failed: job 2 failed",
        "trial 1 failed: job 4 was stopped",
        "trial 2 failed: an evaluation failed",
    ]
    table = SweepReport(folder, queue).table()
    assert [row[1] for row in table[1:]] == [
        "failed (job 2 failed)",
        "failed (job 4 was stopped)",
        "failed (an evaluation failed)",
    ]


def test_a_stopped_sweep_holds_its_jobs(tmp_path: Path) -> None:
    folder, queue = made(tmp_path, max_parallel=1)
    with driver(folder, queue) as own:
        settle(own)
        folder.set_stopped(True)
        assert own.step()
        assert [job.is_held for job in queue.read().jobs.values()] == [True]
        assert not own.step() and own.has_ended()
    assert not (folder.path / PRESET).exists()


def test_a_pause_decided_before_a_resume_is_withdrawn(tmp_path: Path) -> None:
    folder, queue = made(tmp_path, max_parallel=1)
    with driver(folder, queue) as own:
        settle(own)
        (action,) = holds(folder.trials(queue.read()))
        request(folder, queue, action)
    assert [job.is_held for job in queue.read().jobs.values()] == [False]


def test_a_driver_that_was_replaced_does_nothing(tmp_path: Path) -> None:
    folder, queue = made(tmp_path)
    owners = folder.path / ".owner"
    with driver(folder, queue) as own:
        (owners / "2").write_bytes((owners / "1").read_bytes())
        with raises(ConfigError, value=str(folder.path)):
            own.step()
        (owners / "2").unlink()
    assert not folder.trials(queue.read())
