"""`train`, `launch` and `presets`: what is planned, what is refused, and what seeds do."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.cli.commands import RUN, Command
from tests.support.extras import missing_extra
from tests.support.raising import compare
from tests.support.runs import command_runs
from tests.support.stored_runs import summary_data
from zmqrl.algorithms.ppo import PPO
from zmqrl.cli.start.start_options import Steps
from zmqrl.config.plan import RunPlan
from zmqrl.config.presets import presets
from zmqrl.launch.start import Prepared
from zmqrl.queue.folder import QueueFolder
from zmqrl.queue.hosts import RunnerHosts
from zmqrl.queue.records import JobEnd, JobNeeds
from zmqrl.queue.schedule import Capacity
from zmqrl.run_files.run_directory import default_directory

ROOT = Path(__file__).parents[2]
UNSCORED = (*RUN, "--set", "evaluator.episodes=0")
"""Without the evaluator's process."""


def test_presets_are_listed_with_env_algorithm_mode_and_limits(zmqrl: Command) -> None:
    head, *rows = [re.split(r" {2,}", line.strip()) for line in zmqrl("presets").out.splitlines()]
    assert head == ["PRESET", "ENV", "ALGORITHM", "MODE", "ENV STEPS", "STOP AT RETURN", "SCORE", "MINUTES"]
    assert [row[0] for row in rows] == presets()
    assert ["cartpole-ppo", "CartPole-v1", "ppo", "sync", "250,000", "475", "500"] in [row[:7] for row in rows]
    assert ["cartpole-dqn", "CartPole-v1", "dqn", "async", "500,000", "475"] in [row[:6] for row in rows]
    assert ["pendulum-ppo", "Pendulum-v1", "ppo", "sync", "300,000", "-", "-", "-"] in rows


def test_presets_as_json(zmqrl: Command) -> None:
    found = {preset["name"]: preset for preset in json.loads(zmqrl("presets", "--json").out)}
    assert list(found) == presets()
    assert found["pendulum-ppo"] == {
        "name": "pendulum-ppo", "env": "Pendulum-v1", "algorithm": "ppo", "mode": "sync",
        "total_env_steps": 300_000, "stop_at_return": None, "score": None, "scored_env_steps": None, "minutes": None,
    }  # fmt: skip


def test_dry_run_shows_processes_arena_and_configuration(zmqrl: Command) -> None:
    shown = zmqrl("train", "cartpole-ppo", "--dry-run", "--workers", "2", "--seed", "7", "--set", "algorithm.clip=0.1")
    assert shown.code == 0
    head, _, config = shown.out.partition("\n\n")
    assert "processes on local: broker, learner, worker-0, worker-1, evaluator" in head
    assert "arena: " in head
    resolved = yaml.safe_load(config)
    assert resolved["run"]["seed"] == 7
    assert resolved["algorithm"]["clip"] == 0.1
    assert resolved["run"]["mode"] == "sync"
    assert os.listdir() == []


def test_dry_run_of_the_example_in_single_mode(zmqrl: Command) -> None:
    shown = zmqrl("launch", ROOT / "hosts.example.yaml", "--mode", "single", "--dry-run")
    assert shown.code == 0
    assert "processes on local: learner" in shown.out
    assert "worker-0" not in shown.out


LAB = """
run: {preset: cartpole-ppo}
defaults: {user: rl, jump: gw.lab}
hosts:
  local: {workers: 1}
  node[1:2]: {groups: [cpu]}
  old: {ssh: 10.0.3.7, user: ann, port: 2222, workers: 1}
  far: {manual: true, workers: 1}
"""


def test_dry_run_shows_how_each_host_is_reached(zmqrl: Command) -> None:
    Path("hosts.yaml").write_text(LAB)
    shown = zmqrl("launch", "hosts.yaml", "--dry-run", "--mode", "async")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert "processes on node2: workers: physical cores - 1" in lines
    assert "processes on old: workers: 1" in lines
    old = next(line for line in lines if line.startswith("host old: "))
    assert old.startswith("host old: ann@10.0.3.7:2222 via ")
    assert "@gw.lab:22; user ann (hosts.yaml:7), port 2222 (hosts.yaml:7), " in old
    assert "jump gw.lab (hosts.yaml:3), python ~/venvs/zmqrl/bin/python, workdir ~/zmqrl, workers 1" in old
    assert "host far: joins by `zmqrl worker --connect FILE`, workers 1" in lines
    assert not [line for line in lines if line.startswith("host local")]


def test_dry_run_of_some_hosts(zmqrl: Command) -> None:
    Path("hosts.yaml").write_text(LAB)
    shown = zmqrl("launch", "hosts.yaml", "--dry-run", "--limit", "old", "--limit", "far,local", "--mode", "async")
    assert shown.code == 0, shown.err
    assert [line for line in shown.out.splitlines() if line.startswith("processes on")] == [
        "processes on local: broker, learner, worker-0, evaluator",
        "processes on old: worker-1",
        "processes on far: worker-2",
    ]
    ended = zmqrl("launch", "hosts.yaml", "--dry-run", "--limit", "gpu")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    compare(
        ended.error,
        key=("--limit",),
        value="gpu",
        fix="did you mean 'cpu'? hosts: local, node1, node2, old, far; groups: cpu",
    )


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_planned_or_names_its_extra(zmqrl: Command, name: str) -> None:
    shown = zmqrl("train", name, "--dry-run")
    extra = missing_extra(name)
    if extra is not None:
        assert shown.code == 2
        compare(shown.error, key=("env", "id"), fix=f"run in the checkout of zmqrl: pip install '.[{extra}]'")
    else:
        assert shown.code == 0, shown.err
    assert os.listdir() == []


@pytest.mark.parametrize("mode", sorted(PPO.modes))
def test_the_preset_of_the_examples_is_planned(zmqrl: Command, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.chdir(ROOT / "examples")
    shown = zmqrl("train", "./own_preset.yaml", "--dry-run", "--mode", mode)
    assert shown.code == 0, shown.err
    assert f"{mode}, ppo on own_env:Corridor" in shown.out


@pytest.mark.whole
def test_seeds_are_run_in_turn(finished: Path) -> None:
    summaries = [json.loads((finished / f"seed-{n}" / "summary.json").read_text()) for n in (1, 2)]
    assert [s["seed"] for s in summaries] == [1, 2]
    assert [s["status"] for s in summaries] == ["done", "done"]
    assert summaries[0]["weights_sha256"] != summaries[1]["weights_sha256"]
    assert all(s["ledger"]["balanced"] and s["env_steps"] >= 2048 for s in summaries)


def stub_launcher(monkeypatch: pytest.MonkeyPatch, launch: Callable[[RunPlan], int]) -> None:
    """In place of `Launcher.run`."""

    def launcher(prepared: Prepared, *_: object) -> SimpleNamespace:
        prepared.directory.release()
        return SimpleNamespace(run=lambda: launch(prepared.plan))

    monkeypatch.setattr("zmqrl.launch.start.Prepared.launcher", launcher)


@pytest.mark.parametrize(("codes", "worst"), [((0, 3, 1), 1), ((0, 3, 0), 3), ((0, 0, 0), 0), ((0, 4, 1), 4)])
def test_the_worst_of_the_seeds_is_the_exit_code(
    zmqrl: Command, monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], worst: int
) -> None:
    left = list(codes)
    stub_launcher(monkeypatch, lambda _: left.pop(0))
    assert zmqrl(*RUN, "--seeds", len(codes), "--run-dir", "here").code == worst
    assert left == []


@pytest.mark.parametrize(
    ("flags", "evaluated", "trained", "line"),
    [
        ((), (8.0, 10.0, 9.0), (1.0, 2.0, 3.0), "3 seeds: evaluated 9.0, standard deviation 1.0 (8.0, 10.0, 9.0)"),
        ((), (None, 480.0), (20.0, 24.0), "2 seeds: return 22.0, standard deviation 2.8 (20.0, 24.0)"),
        ((), (5.0,), (20.0,), None),
        (("--json",), (480.0, 500.0), (1.0, 2.0), None),
    ],
)  # fmt: skip
def test_the_last_line_is_of_all_seeds(
    zmqrl: Command,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    evaluated: tuple[float | None, ...],
    trained: tuple[float | None, ...],
    line: str | None,
) -> None:
    left = list(zip(evaluated, trained, strict=True))

    def launch(plan: RunPlan) -> int:
        run_dir, values = Path(plan.run_dir), left.pop(0)
        (run_dir / "run.json").write_text('{"run_id": "a"}')
        summary = summary_data(**dict(zip(("eval_return_mean", "train_return_mean_100"), values, strict=True)))
        (run_dir / "summary.json").write_text(json.dumps(summary))
        return 0

    stub_launcher(monkeypatch, launch)
    ended = zmqrl(*RUN, "--seeds", len(evaluated), "--run-dir", "here", *flags)
    assert ended.code == 0, ended.err
    written = ended.out.splitlines()
    assert written[-1:] == [line] if line is not None else not any("seeds:" in each for each in written)
    assert not flags or len(written) == len(evaluated), "JSON alone"


def test_an_interrupted_seed_is_the_last(zmqrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def launch(plan: RunPlan) -> int:
        seen.append(plan.config.run.seed)
        return 130

    stub_launcher(monkeypatch, launch)
    assert zmqrl(*RUN, "--seeds", 3, "--seed", 5, "--run-dir", "here").code == 130
    assert seen == [5]


@pytest.fixture
def ended_jobs(monkeypatch: pytest.MonkeyPatch) -> dict[int, JobEnd]:
    """Ends of the jobs of the queue `here/queue`, by number, in place of a runner, on a machine of 3 cores, 1 GPU."""
    queue, ends = QueueFolder(Path("here/queue")), dict[int, JobEnd]()

    def serve(step: object, has_ended: Callable[[], bool], show: object) -> None:
        for number, job in queue.read().jobs.items():
            if job.end is None:
                assert not has_ended()
                queue.end_job(number, ends[number])
        assert has_ended()

    monkeypatch.setattr("zmqrl.queue.runner.serve", serve)
    monkeypatch.setattr(RunnerHosts, "of", lambda _: RunnerHosts({"a": Capacity(3, 1)}))
    return ends


IN_PARALLEL = ("--seeds", 2, "--seed", 5, "--parallel", "--run-dir", "here")


def test_parallel_seeds_are_jobs_of_a_queue_in_their_folder(zmqrl: Command, ended_jobs: dict[int, JobEnd]) -> None:
    ended_jobs.update({1: JobEnd("done", 0), 2: JobEnd("failed", 3)})
    words = ("--workers", 1, "--mode", "sync", "--set", "algorithm.clip=0.1", *IN_PARALLEL)
    ended = zmqrl("train", "cartpole-ppo", *words)
    assert ended.code == 3, ended.err
    shown = "1 of 2 seeds at a time: each needs 2 cores, and this machine has 3 cores, 1 GPU"
    assert ended.out.splitlines()[0] == shown
    jobs = [job.record for job in QueueFolder(Path("here/queue")).read().jobs.values()]
    assert [job.run_dir for job in jobs] == [str(Path("here", f"seed-{seed}").absolute()) for seed in (5, 6)]
    pairs = ("algorithm.clip=0.1", 'run.mode="sync"', "hosts.local.workers=1", "run.seed=6")
    assert (jobs[1].preset, jobs[1].overrides, jobs[1].needs) == ("cartpole-ppo", pairs, JobNeeds(2))


@pytest.mark.parametrize(
    ("preset", "device", "gpus"),
    [
        ("cartpole-ppo", "auto", 0),
        ("cartpole-ppo", "cuda", 1),
        ("pong-ppo", "auto", 1),
        ("pong-ppo", "cpu", 0),
    ],
)
def test_a_parallel_seed_takes_a_gpu_where_its_learner_looks_for_one(
    zmqrl: Command,
    ended_jobs: dict[int, JobEnd],
    monkeypatch: pytest.MonkeyPatch,
    preset: str,
    device: str,
    gpus: int,
) -> None:
    ended_jobs.update({1: JobEnd("done", 0), 2: JobEnd("done", 0)})
    monkeypatch.setattr(RunnerHosts, "of", lambda _: RunnerHosts({"a": Capacity(4, 1)}))
    ended = zmqrl("train", preset, "--set", f"learner.device={device}", *IN_PARALLEL)
    assert (ended.code, "at a time" in ended.out) == (0, gpus == 1)
    assert {job.record.needs for job in QueueFolder(Path("here/queue")).read().jobs.values()} == {JobNeeds(2, gpus)}


def test_parallel_seeds_are_repeated_once_their_jobs_have_ended(
    zmqrl: Command, ended_jobs: dict[int, JobEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = QueueFolder(Path("here/queue"))
    ended_jobs.update({1: JobEnd("failed", 2), 2: JobEnd("failed", -9), 3: JobEnd("done", 0), 4: JobEnd("done", 0)})
    assert zmqrl("train", "cartpole-ppo", *IN_PARALLEL).code == 2
    assert zmqrl("train", "cartpole-ppo", "--set", "algorithm.clip=0.1", *IN_PARALLEL).code == 0
    assert [job.record.overrides[:-1] for job in queue.read().jobs.values()] == [(), (), *[("algorithm.clip=0.1",)] * 2]
    ended_jobs.update({5: JobEnd("failed", -9), 6: JobEnd("stopped")})
    assert zmqrl("train", "cartpole-ppo", *IN_PARALLEL).code == 1
    monkeypatch.setattr("zmqrl.queue.runner.serve", lambda *_: None)
    assert zmqrl("train", "cartpole-ppo", *IN_PARALLEL).code == 1
    Path("here/seed-5/logs").mkdir(parents=True)
    Path("here/seed-5/run.json").touch()
    refused = zmqrl("train", "cartpole-ppo", "--set", "algorithm.clip=0.1", *IN_PARALLEL)
    assert refused.code == 2
    compare(refused.error, value=str(queue.path.absolute()), what="has jobs that have not ended")
    assert len(queue.read().jobs) == 8


@pytest.mark.usefixtures("ended_jobs")
@pytest.mark.parametrize(
    "words",
    [
        ("--parallel",),
        (*IN_PARALLEL, "--json"),
        (*IN_PARALLEL, "--limit", "local"),
        (*IN_PARALLEL, "--set", "hosts.a.workers=1"),
        (*IN_PARALLEL, "--set", "webhook=https://hooks.lab/SECRET"),
    ],
)
def test_what_parallel_seeds_cannot_have_is_refused(zmqrl: Command, words: tuple[object, ...]) -> None:
    assert zmqrl("train", "cartpole-ppo", *words).code == 2
    assert not Path("here/queue").exists()


@pytest.mark.long
def test_two_seeds_are_trained_in_parallel(zmqrl: Command) -> None:
    ended = zmqrl(*RUN, "--seeds", 2, "--parallel", "--run-dir", "here")
    assert ended.code == 0, ended.err
    assert [row["state"] for row in json.loads(zmqrl("runs", "here", "--json").out)] == ["done", "done"]


def test_no_seed_is_begun_when_one_of_their_directories_is_taken(
    zmqrl: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_launcher(monkeypatch, lambda _: pytest.fail("a run was begun"))
    taken = Path("here/seed-2")
    taken.mkdir(parents=True)
    (taken / "thesis.txt").write_text("mine")
    ended = zmqrl(*RUN, "--seeds", 2, "--run-dir", "here")
    assert ended.code == 2
    compare(ended.error, value="run directory here/seed-2", what="exists and is not empty")
    assert os.listdir("here") == ["seed-2"]


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_directory_in_use_is_refused(zmqrl: Command, finished: Path, flags: tuple[str, ...]) -> None:
    before = sorted(os.listdir(finished / "seed-1"))
    ended = zmqrl(*RUN, "--run-dir", finished / "seed-1", *flags)
    assert ended.code == 2
    compare(ended.error, fix=f"to continue its run: --resume {finished}/seed-1")
    assert sorted(os.listdir(finished / "seed-1")) == before


@pytest.fixture
def ended_run(finished: Path, tmp_path: Path) -> Path:
    """A run that has reached its total, to be continued."""
    return Path(shutil.copytree(finished / "seed-1", tmp_path / "ended"))


def test_a_resume_with_nothing_to_train_reports_so_in_message_and_summary(zmqrl: Command, ended_run: Path) -> None:
    before = json.loads((ended_run / "summary.json").read_text())
    assert before["trained_env_steps"] == before["env_steps"] >= 2048
    ended = zmqrl("train", "--resume", ended_run)
    assert ended.code == 0
    assert ended.out.startswith(f"nothing was trained: {ended_run} has reached run.total_env_steps (2,048) at 2,")
    assert f"zmqrl train --resume {ended_run} --for " in ended.out
    assert json.loads((ended_run / "summary.json").read_text()) == {**before, "trained_env_steps": 0}
    assert json.loads(zmqrl("train", "--resume", ended_run, "--json").out)["trained_env_steps"] == 0


@pytest.mark.parametrize("flags", [(), ("--detach",)], ids=["here", "detached"])
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_refused_resume_prints_no_result_of_the_attempt_before(
    zmqrl: Command, ended_run: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], has_begun: bool
) -> None:
    """Exit code 4 is also that of a run which has begun, and one that has not, as its learner's host is unreachable."""

    def end_early(*_: object) -> int:
        if has_begun:
            info = json.loads((ended_run / "run.json").read_text())
            (ended_run / "run.json").write_text(json.dumps({**info, "run_id": "next"}))
        return 4

    monkeypatch.setattr("zmqrl.cli.start.train._run_and_show", end_early)
    ended = zmqrl("train", "--resume", ended_run, "--json", *flags)
    assert ended.code == 4
    assert ("run_id" in ended.out, ended.out == "") == (has_begun, not has_begun)


def test_an_algorithm_of_the_package_may_be_in_capitals(zmqrl: Command) -> None:
    shown = zmqrl("train", "--env", "CartPole-v1", "--algo", "DQN", "--dry-run")
    assert shown.code == 0, shown.err
    assert "kind: dqn" in shown.out


@pytest.mark.parametrize("steps", ["1e5", "100_000", "1E+5", "100000"])
def test_for_takes_whole_numbers_as_set_does(steps: str) -> None:
    given = Steps(1).convert(steps, None, None)
    assert (given, type(given)) == (100_000, int)


def test_for_refuses_other_numbers(zmqrl: Command, tmp_path: Path) -> None:
    for wrong, message in (
        ("1M", "write a whole number such as 100000 or 1e5"),
        ("1.5e0", "or 1e5"),
        ("inf", "or 1e5"),
        ("0", "0 is not"),
    ):
        ended = zmqrl("train", "--resume", tmp_path, "--for", wrong)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert message in ended.err


def test_for_needs_a_run_to_continue_and_no_other_total(zmqrl: Command, ended_run: Path) -> None:
    for arguments, message in (
        (RUN, "--for requires --resume"),
        ((*RUN, "--run-dir", ended_run, "--resume", "auto"), "--resume auto"),
        (("train", "--resume", ended_run, "--set", "run.total_env_steps=4096"), "remove --set run.total_env_steps"),
    ):
        ended = zmqrl(*arguments, "--for", "1000")
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert message in ended.err


@pytest.mark.whole
def test_a_solved_run_is_continued_for_more_env_steps(zmqrl: Command, tmp_path: Path) -> None:
    first = zmqrl(
        *UNSCORED, "--run-dir", tmp_path / "run", "--set", "run.total_env_steps=9000", "--set", "run.stop_at_return=1"
    )
    assert first.code == 0, first.err
    before = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert before["env_steps"] < 9000
    resume = ("train", "--resume", tmp_path / "run", "--plain")
    assert "nothing was trained" in zmqrl(*resume, "--set", "run.total_env_steps=10000").out
    more = zmqrl(*resume, "--for", 9000)
    assert more.code == 0, more.err
    after = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert after["env_steps"] - before["env_steps"] == after["trained_env_steps"] >= 9000
    assert f"  {after['trained_env_steps']:,} env steps were trained since the resume" in more.out
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["run"]
    assert config["stop_at_return"] is None
    assert config["schedule_env_steps"] == config["total_env_steps"] == before["env_steps"] + 9000
    assert "the learning rate is 0" not in more.err


@pytest.mark.parametrize("written", ["~/a", "~nouser/a"])
def test_a_run_directory_in_the_home(
    zmqrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").touch()
    ended = zmqrl("train", "cartpole-ppo", f"--run-dir={written}", "--dry-run")
    assert ended.code == 2
    if written == "~/a":
        compare(ended.error, value=f"run directory {tmp_path}/a", what="exists and is not empty")
    else:
        compare(ended.error, key=("--run-dir",), value="'~nouser/a'", what="no user 'nouser' on this machine")


def test_runs_of_one_second_have_directories_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "now")
    with default_directory("a") as first, default_directory("a") as second, default_directory("a") as third:
        assert [path.name for path in (first, second, third)] == ["a-now", "a-now-2", "a-now-3"]
        (second / "run.json").touch()
    assert [path.name for path in Path("runs").iterdir()] == ["a-now-2"]


@pytest.mark.whole
def test_resume_auto_starts_a_run_and_then_continues_it(zmqrl: Command, tmp_path: Path) -> None:
    arguments = (*UNSCORED, "--run-dir", tmp_path / "run", "--resume", "auto")
    first = zmqrl(*arguments)
    assert first.code == 0, first.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["attempt"] == 1
    assert "nothing was trained" in zmqrl(*arguments).out
    more = zmqrl(*arguments, "--set", "run.total_env_steps=4096")
    assert more.code == 0, more.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["attempt"] == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] >= 4096


@pytest.mark.whole
def test_resume_auto_starts_where_a_launcher_was_killed_before_its_run_began(zmqrl: Command, tmp_path: Path) -> None:
    for name in ("logs", "checkpoints"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    arguments = (*UNSCORED, "--run-dir", tmp_path / "run", "--resume", "auto")
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    assert zmqrl(*arguments).code == 2
    (tmp_path / "run" / "thesis.txt").unlink()
    assert zmqrl(*arguments).code == 0


@pytest.mark.parametrize(
    ("flags", "why"),
    [((), "requires --run-dir"), (("--run-dir", "a", "--seeds", "2"), "cannot be combined with --seeds")],
)
def test_resume_auto_needs_one_run_directory(zmqrl: Command, flags: tuple[str, ...], why: str) -> None:
    ended = zmqrl(*RUN, "--resume", "auto", *flags)
    assert ended.code == 2 and f"--resume auto {why}" in ended.err


def test_a_resume_has_one_seed(zmqrl: Command) -> None:
    ended = zmqrl("train", "--resume", "run", "--seeds", 2)
    assert ended.code == 2 and "--seeds cannot be combined with --resume" in ended.err


def test_workers_have_no_effect_in_single(zmqrl: Command) -> None:
    shown = zmqrl("train", "cartpole-ppo", "--mode", "single", "--workers", "3", "--dry-run")
    assert shown.code == 0 and "--workers 3 has no effect: mode single has no rollout workers" in shown.err


def test_resume_auto_of_nothing_needs_a_preset(zmqrl: Command) -> None:
    ended = zmqrl("train", "--resume", "auto", "--run-dir", "new", "--dry-run")
    assert ended.code == 2 and "new holds no run: a preset or --env ID is required" in ended.err


def test_a_resumed_run_keeps_its_env(zmqrl: Command, finished: Path) -> None:
    ended = zmqrl("train", "--resume", finished / "seed-1", "--set", "env.id=Acrobot-v1")
    assert ended.code == 2
    compare(ended.error, key=("env", "id"), value="'Acrobot-v1'", source="--set")


def test_an_unknown_key_of_a_kind_is_exit_code_2_with_file_and_line(zmqrl: Command, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "run: {preset: cartpole-ppo}\norchestrator:\n  kind: slurm\n  partitoin: cpu\n"
    )
    ended = zmqrl("launch", "hosts.yaml", "--dry-run")
    assert ended.code == 2
    fields = {"what": "unknown key (value 'cpu')", "fix": "did you mean 'partition'?", "source": "hosts.yaml:4"}
    compare(ended.error, key=("orchestrator", "partitoin"), **fields)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a copy of a short run. Tests only read it: a continued run writes to the place of the first."""
    folder = tmp_path_factory.mktemp("copied")
    arguments = (*UNSCORED, "--run-dir", folder / "run", "--set", f"store.mirror=file://{folder}/mirror")
    command_runs.zmqrl(*arguments, at=folder)
    (mirrored,) = (folder / "mirror").iterdir()
    shutil.copytree(mirrored, folder / "copies" / mirrored.name)
    return f"file://{folder}/copies/{mirrored.name}"


@pytest.mark.whole
def test_a_copy_is_continued_in_a_new_directory(zmqrl: Command, copied: str) -> None:
    resumed = zmqrl("train", "--resume", copied, "--plain", "--set", "run.total_env_steps=4096")
    assert resumed.code == 0, resumed.err
    (directory,) = Path("runs").iterdir()
    assert directory.name.startswith(f"{Path(copied).name}-")
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["env_steps"] >= 4096 and summary["resumed_from"]["env_steps"] >= 2048
    shown = zmqrl("eval", copied, "--episodes", 1, "--json")
    assert json.loads(shown.out)["run_dir"] == copied
    assert zmqrl("export", copied, "exported", "--to", "numpy").code == 0 and Path("exported/policy.py").exists()


@pytest.mark.whole
def test_a_copy_that_is_not_continued_leaves_no_directory(zmqrl: Command, copied: str) -> None:
    resume = ("train", "--resume", copied, "--run-dir", "again")
    refused = zmqrl(*resume, "--set", "run.seed=99")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    compare(refused.error, key=("run", "seed"), value="99", source="--set")
    assert zmqrl(*resume, "--dry-run", "--set", "run.total_env_steps=4096").code == 0
    assert os.listdir() == []
    Path("taken").mkdir()
    Path("taken", "results").touch()
    taken = zmqrl("train", "--resume", copied, "--run-dir", "taken")
    assert taken.code == 2
    compare(taken.error, value="run directory taken", what="exists and is not empty")
    assert os.listdir("taken") == ["results"]


@pytest.mark.parametrize("begins", [False, True])
def test_an_interrupt_removes_what_was_fetched_only_before_the_attempt_begins(
    zmqrl: Command, copied: str, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    def launch(plan: RunPlan) -> int:
        if begins:
            Path(plan.run_dir, "run.json").write_text("of the new attempt")
        raise KeyboardInterrupt

    stub_launcher(monkeypatch, launch)
    sets = ("run.total_env_steps=4096", "store.mirror=null")  # another test continues the run at the first place
    ended = zmqrl("train", "--resume", copied, "--run-dir", "again", *(word for key in sets for word in ("--set", key)))
    assert ended.code == 130
    assert Path("again", "checkpoints").exists() == begins


def test_a_finished_copy_is_fetched_and_named(zmqrl: Command, copied: str) -> None:
    finished = zmqrl("train", "--resume", copied, "--run-dir", "again")
    assert finished.code == 0
    assert finished.out.startswith("nothing was trained: again has reached run.total_env_steps")
    assert Path("again", "summary.json").exists()
