"""A runner with real runs: preemption, its own death, the takeover, the end of each job; and what it costs idle."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.commands import ENDLESS, IDLE, with_constant
from tests.cli.test_run_table import stored
from tests.queue.samples import attempt, job, record
from tests.support.clock import Clock
from tests.support.raising import raises
from tests.support.running import RUN_S, environment
from tests.support.waiting import WAIT_S, until
from tests.support.yardstick import cpu_s, loop_s
from zmqrl.agent.run_processes import processes_of
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.queue.folder import QueueFolder, open_queue
from zmqrl.queue.hosts import RunnerHosts, has_begun, has_launcher
from zmqrl.queue.hosts import environment as variables
from zmqrl.queue.records import AttemptEnd, AttemptRecord, Job, JobEnd, JobNeeds
from zmqrl.queue.runner import IDLE_SHARE, POLL_S, RETRY_S, JobRunner, RunnerActive, serve
from zmqrl.queue.schedule import Capacity
from zmqrl.run_files.run_info import has_launcher_here, read_info
from zmqrl.run_files.run_list import runs_below
from zmqrl.supervision.host_entry import user_name

ME = os.geteuid()
HERE = socket.gethostname()
SHORT = (*IDLE, "--set", "run.mode=single", "--set", "run.total_env_steps=2048")


def command(*words: str) -> list[str]:
    return [*with_constant("zmqrl.queue.runner", "LEASE_S", 0.5), "queue", *words]


def zmqrl_queue(folder: Path, *words: str) -> str:
    done = subprocess.run(
        command(*words), cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def runner(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    with (folder / "runner.log").open("a") as log:
        process = subprocess.Popen(
            command("run", *words), cwd=folder, stdout=log, stderr=log, text=True, env=environment()
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)


def job_when(queue: QueueFolder, number: int, what: Callable[[Job], object]) -> Job:
    def look() -> Job | None:
        job = queue.read().jobs[number]
        return job if what(job) else None

    found: Job = until(look, lambda: (queue.read().jobs[number], logs(queue)), RUN_S)
    return found


def logs(queue: QueueFolder) -> list[str]:
    return [path.read_text() for path in (queue.path.parent / "runner.log", *queue.path.glob("job-*/output"))]


def steps_of(job: Job) -> int:
    try:
        status = json.loads(Path(job.record.run_dir, "status.json").read_text())
    except FileNotFoundError:
        return 0
    return int(status["env_steps"])


@pytest.mark.whole
def test_jobs_outlive_preemption_and_the_death_of_their_runner(tmp_path: Path) -> None:
    """One slot: the second job preempts the first one, whose third attempt is of another runner."""
    (tmp_path / "hosts.yaml").write_text("hosts: {local: {capacity: {cores: 1}}}\n")
    endless = [word for word in ENDLESS if word not in ("--workers", "1")]
    zmqrl_queue(tmp_path, "add", "cartpole-ppo", "--needs", "cores=1", *endless)
    queue = open_queue(tmp_path / "queue")
    with runner(tmp_path, "hosts.yaml") as first:
        job_when(queue, 1, lambda job: job.live is not None and steps_of(job) > 0)
        zmqrl_queue(tmp_path, "add", "cartpole-ppo", "--needs", "cores=1", "--priority", "1", *SHORT)
        assert job_when(queue, 2, lambda job: job.end).end == JobEnd("done", 0)
        me, shown = user_name(ME), logs(queue)[0]
        assert f"job 2 requests the slots of job 1 of {me}\n" in shown
        assert f"job 1 yields to job 2 of {me}" in shown
        resumed = job_when(queue, 1, lambda job: job.live is not None and len(job.attempts) == 2)
        run_dir = Path(resumed.record.run_dir)
        before = json.loads((run_dir / "summary.json").read_text())
        assert (before["status"], resumed.attempts[0].end) == ("stopped", AttemptEnd("yielded", 0))
        until(lambda: (info := read_info(run_dir)) is not None and info.attempt == 2 and info.run_id, deadline_s=RUN_S)
        info = read_info(run_dir)
        assert info is not None
        first.kill()
        until(lambda: not has_launcher_here(run_dir, info) and not processes_of(info.run_id), deadline_s=RUN_S)
    assert queue.read().jobs[1].attempts[1].end is None
    with runner(tmp_path, "--until-empty") as second:
        later = job_when(queue, 1, lambda job: len(job.attempts) == 3 and steps_of(job) > before["env_steps"])
        assert [each.end and each.end.outcome for each in later.attempts[1:]] == ["yielded", None]
        with raises(ConfigError, key=("--queue",), value=str(queue.path)):  # a second runner of this user
            here(queue.path)
        zmqrl_queue(tmp_path, "stop", "1")
        assert second.wait(RUN_S) == 0, logs(queue)
    assert job_when(queue, 1, lambda job: job.end).end == JobEnd("stopped")
    assert [row.state for row in runs_below(tmp_path / "runs")] == ["stopped", "done"]


@pytest.mark.long
def test_a_preempted_job_has_the_bits_of_an_undisturbed_run(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: {local: {capacity: {cores: 1}}}\n")
    sync = ("--set", "run.mode=sync", "--set", "run.total_env_steps=60_000", "--set", "run.stop_at_return=null")
    for _ in range(2):
        zmqrl_queue(tmp_path, "add", "cartpole-ppo", "--needs", "cores=1", *sync)
    queue = open_queue(tmp_path / "queue")
    with runner(tmp_path, "hosts.yaml", "--until-empty") as process:
        job_when(queue, 1, lambda job: steps_of(job) > 0)
        zmqrl_queue(tmp_path, "add", "cartpole-ppo", "--needs", "cores=1", "--priority", "1", *SHORT)
        assert process.wait(RUN_S) == 0, logs(queue)
    jobs = queue.read().jobs
    assert [len(each.attempts) for each in jobs.values()] == [2, 1, 1]
    summaries = [json.loads(Path(jobs[n].record.run_dir, "summary.json").read_text()) for n in (1, 2)]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]


@pytest.mark.long
def test_an_interrupted_runner_ends_its_runs_and_the_next_one_continues_at_once(tmp_path: Path) -> None:
    zmqrl_queue(tmp_path, "add", "cartpole-ppo", "--needs", "cores=1", *ENDLESS[:-2])
    queue = open_queue(tmp_path / "queue")
    with runner(tmp_path) as process:
        live = job_when(queue, 1, lambda job: job.live is not None and steps_of(job) > 0)
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_S) == 0, logs(queue)
    info = read_info(Path(live.record.run_dir))
    assert info is not None and info.ended_at is not None
    assert not list(processes_of(info.run_id))
    assert [each.end for each in queue.read().jobs[1].attempts] == [AttemptEnd("yielded", 130)]


def here(tmp_path: Path, show: Callable[[str], None] = lambda _: None) -> JobRunner:
    return JobRunner(open_queue(tmp_path), RunnerHosts({HERE: Capacity(2)}), show)


def test_a_job_that_cannot_be_started_fails(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.add(replace(record(ME), folder=str(tmp_path / "none")))
    with here(tmp_path) as own:
        while own.step():
            pass
    assert queue.read().jobs[1].end == JobEnd("failed")


def test_a_job_that_cannot_be_started_now_is_started_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = open_queue(tmp_path)
    queue.add(record(ME))

    def none_left(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    monkeypatch.setattr(subprocess, "Popen", none_left)
    with here(tmp_path) as own:
        while own.step():
            pass
    job = queue.read().jobs[1]
    assert (job.end, [each.end for each in job.attempts]) == (None, [AttemptEnd("lost", has_begun=False)])


def test_the_pause_is_twice_as_long_after_each_lost_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, starts = Clock(), list[float]()
    open_queue(tmp_path).add(record(ME))

    def none_left(*_: object, **__: object) -> None:
        starts.append(clock.now)
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    monkeypatch.setattr(subprocess, "Popen", none_left)
    monkeypatch.setattr("zmqrl.queue.runner.time", clock)
    with here(tmp_path) as own:
        while len(starts) < 4:
            while own.step():
                pass
            clock.sleep(RETRY_S)
    assert starts == [0, RETRY_S, 3 * RETRY_S, 7 * RETRY_S]


def test_a_job_that_fits_no_host_is_named_once(tmp_path: Path) -> None:
    queue, shown = open_queue(tmp_path), list[str]()
    queue.add(replace(record(ME), needs=JobNeeds(cores=16, gpus=1)))
    with here(tmp_path, shown.append) as own:
        assert not own.step() and not own.step()
    assert shown == ["job 1 waits: it needs 16 cores, 1 GPU, which no host of this runner has"]


def test_a_launcher_of_the_last_runner_that_has_no_record_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.queue.runner.LEASE_S", 0.0)
    monkeypatch.setattr(RunnerHosts, "command", lambda *_: ["true"])
    queue = open_queue(tmp_path)
    job = queue.add(replace(record(ME), folder=str(tmp_path), run_dir=str(tmp_path / "run")))
    queue.create_attempt(1, AttemptRecord(ME, 1, HERE, (), "another"))
    words = [sys.executable, "-c", "input()", "--until-eof", "--run-dir", job.record.run_dir]
    with here(tmp_path) as own, subprocess.Popen(words, stdin=subprocess.PIPE) as launcher:
        try:
            until(lambda: has_launcher(Path(job.record.run_dir)))  # Popen returns before the kernel has set its words
            assert not own.step()
        finally:
            launcher.kill()
        launcher.wait(WAIT_S)
        assert own.step()
    assert queue.read().jobs[1].attempts[0].end == AttemptEnd("yielded", has_begun=False)


def test_a_launcher_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunnerHosts, "command", lambda *_: ["sleep", "600"])
    monkeypatch.setattr("zmqrl.queue.runner.stop_s_of", lambda _: 0)
    queue = open_queue(tmp_path)
    queue.add(replace(record(ME), folder=str(tmp_path), run_dir=str(tmp_path / "run")))
    with here(tmp_path) as own:
        while own.step():
            pass
    end = AttemptEnd("yielded", -signal.SIGKILL, has_begun=False)
    assert [each.end for each in queue.read().jobs[1].attempts] == [end]


def test_a_link_in_the_place_of_the_folder_of_a_runner_is_refused(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    folder = open_queue(tmp_path).runner_folder(ME)
    folder.symlink_to(tmp_path / "private")
    with raises(ConfigError, key=(), value=str(folder), what="is not a folder of yours"):
        here(tmp_path)
    assert not list((tmp_path / "private").iterdir())


def test_a_runner_that_was_replaced_starts_nothing(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    with here(tmp_path) as own:
        queue.add(record(ME))
        owners = queue.runner_folder(ME) / ".owner"
        (owners / "2").write_bytes((owners / "1").read_bytes())
        process = f"(pid {os.getpid()} on {HERE})"
        with raises(ConfigError, key=("--queue",), what=f"another runner of yours has taken over {process}"):
            own.step()
        (owners / "2").unlink()
    assert queue.read().last_attempt == 0


def test_a_second_runner_is_refused_and_names_the_process_of_the_first(tmp_path: Path) -> None:
    what = f"you have a runner already (pid {os.getpid()} on {HERE})"
    with here(tmp_path), raises(RunnerActive, key=("--queue",), value=str(tmp_path), what=what):
        here(tmp_path)


def test_a_runner_whose_record_cannot_be_written_now_writes_it_later(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.add(record(ME, cores=100))
    taken = queue.runner_folder(ME) / "runner"
    taken.mkdir(parents=True)
    queue.runner_folder(ME).chmod(0o755)
    with here(tmp_path) as own:
        with pytest.raises(IsADirectoryError):
            own.step()
        taken.rmdir()
        assert not own.step()
        assert [seen.hosts for _, seen, _ in queue.runners()] == [(HERE,)]


def test_a_runner_that_lost_the_number_of_an_attempt_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = open_queue(tmp_path)
    with here(tmp_path) as own:
        queue.add(record(ME))
        monkeypatch.setattr(QueueFolder, "create_attempt", lambda *_: False)
        assert not own.step()


@pytest.mark.timed
def test_an_idle_runner_takes_half_a_percent_of_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 200 jobs that have ended and 10 that wait for another one."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    queue = open_queue(tmp_path)
    for number in range(1, 201):
        queue.add(record(ME))
        queue.create_attempt(number, AttemptRecord(ME, number, HERE, (), "r"))
        queue.close_attempt(number, number, AttemptEnd("done", 0))
        queue.end_job(number, JobEnd("done", 0))
    for _ in range(10):
        queue.add(record(ME, cores=100))
    with here(tmp_path) as own:
        assert not own.step()
        assert cpu_s(own.step) < IDLE_SHARE * POLL_S / 0.001 * loop_s()


def test_a_runner_with_many_jobs_looks_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Enough(Exception):
        """End of the test."""

    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise Enough

    looks = iter((0.0, 0.02))
    clock = SimpleNamespace(monotonic=time.monotonic, process_time=lambda: next(looks), sleep=sleep)
    monkeypatch.setattr("zmqrl.queue.runner.time", clock)
    with pytest.raises(Enough):
        serve(lambda: False, lambda: False, lambda _: None)
    assert slept == [pytest.approx(4.0)]


@pytest.mark.parametrize(
    ("summary", "has"),
    [
        ({}, False),
        ({"first_env_step_s": 2.5}, True),
        ({"updates": 3}, True),
        ({"env_steps": 64}, True),
    ],
)
def test_a_run_without_a_step_and_an_update_has_not_begun(tmp_path: Path, summary: dict[str, Any], has: bool) -> None:
    """As one whose host is off, which knows no number of env steps."""
    assert not has_begun(tmp_path / "none")
    killed = stored(tmp_path / "killed", live=True)
    assert has_begun(killed)
    for env_steps in (None, 0):
        fields = {"env_steps": env_steps, "updates": None, "first_env_step_s": None, **summary}
        run = stored(tmp_path / f"run-{env_steps}", **fields)
        assert has_begun(run) == has
        (run / "summary.json").replace(killed / "summary.json")
        assert has_begun(killed), "the summary is that of an earlier attempt"


def test_a_queue_that_cannot_be_used_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, steps = list[str](), itertools.count()

    def step() -> bool:
        if next(steps) < 2:
            os.listdir(tmp_path / "away")
        return False

    monkeypatch.setattr("zmqrl.queue.runner.time", Clock())
    serve(step, lambda: True, shown.append)
    assert shown == [f"{tmp_path / 'away'} cannot be used: No such file or directory; it is tried again"]


def test_the_words_of_a_run_name_its_host_and_slots() -> None:
    hosts = RunnerHosts({"gpu1": Capacity(4, 4)}, Path("/hosts.yaml"))
    own, place = job(1, ME, cores=4, gpus=2), attempt(1, 1, ME, "gpu1", gpus=(1, 3))
    own = replace(own, record=replace(own.record, overrides=("hosts.local.workers=2", "run.seed=1")))
    words = hosts.command(own, place)
    assert words[:6] == [sys.executable, "-m", "zmqrl", "--until-eof", "launch", "/hosts.yaml"]
    assert [word for option, word in itertools.pairwise(words) if option == "--set"] == [
        "hosts.gpu1.cores=4",
        "hosts.gpu1.workers=auto",
        "run.preset=cartpole-ppo",
        "learner.host=gpu1",
        'hosts.gpu1.env.CUDA_VISIBLE_DEVICES="1,3"',
        "hosts.gpu1.workers=2",
        "run.seed=1",
    ]
    words = RunnerHosts({HERE: Capacity(4)}).command(job(1, ME, cores=4), attempt(1, 1, ME, HERE))
    limits = ["--set", "hosts.local.cores=4", "--set", "hosts.local.workers=auto"]
    assert words[4:] == ["train", "cartpole-ppo", *limits, *words[-5:]]
    assert words[-5:] == ["--run-dir", "/runs/x", "--resume", "auto", "--plain"]


def test_a_job_sees_the_gpus_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    given = {gpus: attempt(1, 1, ME, HERE, gpus=gpus) for gpus in ((), (1,), (0, 1))}
    assert [variables(each)["CUDA_VISIBLE_DEVICES"] for each in given.values()] == ["", "1", "0,1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")
    assert [variables(each)["CUDA_VISIBLE_DEVICES"] for each in given.values()] == ["", "GPU-7", "5,GPU-7"]
