"""The store fails: the run says so, waits or goes on with what is whole, and comes to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stand_ins.slow_store import FULL_S
from tests.support.marks import long
from tests.support.runs.references import References
from tests.support.runs.system_plans import IDLE, IDLE_DQN, SLOW_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, assert_same, limit_files, newest_n
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, EvaluatorSection, LimitsSection
from zmqrl.types import ModeName

Begin = Callable[[RunPlan], PlanRun]
STEPS = 6000
FEW_BYTES = 512
DISK_BYTES = 4 << 20
SLEEPING = EnvSection(
    id="tests.stand_ins.slow_envs:Slow",
    num_envs=2,
    vector_envs=4,
    segment_steps=32,
    kwargs={"step_s": 0.002},
    max_episode_steps=50,
)
"""For runs that wait for a clock: they hardly use a CPU meanwhile."""


def _plan(run_dir: Path, **more: Any) -> RunPlan:
    return system_plan(run_dir, "sync", 2, SLOW_TALLY, steps=STEPS, schedule_steps=STEPS, **more)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, reference: References) -> Mapping[str, Any]:
    return reference(_plan(tmp_path_factory.mktemp("undisturbed") / "run"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of `DISK_BYTES`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "zmqrl-test", folder]).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def _status(run: PlanRun) -> dict[str, Any]:
    status: dict[str, Any] = json.loads((run.run_dir / "status.json").read_text())
    return status


def _problems(run: PlanRun) -> str:
    try:
        return "\n".join(_status(run)["problems"])
    except (OSError, ValueError):
        return ""


def _ended_well(run: PlanRun) -> tuple[dict[str, Any], str]:
    code, out, err = run.end()
    assert code == 0, f"exit {code}\n{out}\n{err}"
    return run.summary(), out + err


def _newest(run: PlanRun, kind: str) -> list[Path]:
    paths = Path(run.plan.store_path).glob(f"{kind}0-*.safetensors")
    return sorted(paths, key=lambda path: int(path.stem.rpartition("-")[2]))


def test_a_disk_that_is_full_for_a_while(
    tmp_path: Path, disk: Path, begin: Begin, undisturbed: Mapping[str, Any]
) -> None:
    plan = replace(_plan(tmp_path / "run"), store_path=str(disk / "checkpoints"))
    run = begin(plan)
    run.wait_for_updates(4)
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    run.wait_for(lambda: "No space left" in _problems(run) and "the run waits" in _problems(run))
    filler.unlink()
    summary, told = _ended_well(run)
    assert "the current version could not be written" in told
    assert_same(summary, undisturbed)


@pytest.mark.long
def test_a_store_that_is_read_only_for_a_while(
    tmp_path: Path, disk: Path, begin: Begin, undisturbed: Mapping[str, Any]
) -> None:
    run = begin(replace(_plan(tmp_path / "run"), store_path=str(disk / "checkpoints")))
    run.wait_for_updates(4)

    def remount(how: str) -> bool:  # refused while a file is open for writing
        command = ["mount", "-o", f"remount,{how}", str(disk)]
        return subprocess.run(command, capture_output=True).returncode == 0

    run.wait_for(lambda: remount("ro"))
    run.wait_for(lambda: "Read-only file system" in _problems(run))
    assert remount("rw")
    summary, told = _ended_well(run)
    assert "the current version could not be written" in told
    assert_same(summary, undisturbed)


@pytest.mark.long
def test_a_learner_whose_files_may_not_grow(tmp_path: Path, begin: Begin, undisturbed: Mapping[str, Any]) -> None:
    run = begin(_plan(tmp_path / "run"))
    run.wait_for_updates(4)
    learner = run.processes()["learner-0"]
    limit_files(learner, FEW_BYTES)
    run.wait_for(lambda: "File too large" in _problems(run) and "the run waits" in _problems(run))
    limit_files(learner, None)
    summary, told = _ended_well(run)
    assert "the current version could not be written" in told
    assert_same(summary, undisturbed)


@pytest.mark.long
def test_a_full_that_cannot_be_written_does_not_stop_the_run(
    tmp_path: Path, begin: Begin, undisturbed: Mapping[str, Any]
) -> None:
    run = begin(_plan(tmp_path / "run"))
    run.wait_for_updates(4)
    learner = run.processes()["learner-0"]
    between = (_newest(run, "v")[-1].stat().st_size + _newest(run, "full-")[-1].stat().st_size) // 2
    limit_files(learner, between)
    before = _newest(run, "v")[-1]
    run.wait_for(lambda: "the previous full checkpoint is kept" in _problems(run))
    run.wait_for(lambda: _newest(run, "v")[-1] not in (before, _newest(run, "v")[0]))
    limit_files(learner, None)
    summary, told = _ended_well(run)
    assert_same(summary, undisturbed)
    assert told.count("writes succeed again") == 1, "once, not with every version in between"
    n = int(_newest(run, "v")[-1].stem.rpartition("-")[2])
    assert _newest(run, "full-")[-1].name == f"full-0-{n}.safetensors", "FULL again when there was room"


def test_a_store_that_stays_full_fails_the_run_in_the_end(tmp_path: Path, begin: Begin) -> None:
    plan = _plan(tmp_path / "run")
    config = replace(plan.config, store=replace(plan.config.store, wait_s=0.5))
    run = begin(replace(plan, config=replace(config, restart=replace(config.restart, max=0))))
    run.wait_for_updates(4)
    limit_files(run.processes()["learner-0"], FEW_BYTES)
    code, _, err = run.end()
    assert code == 1
    assert "store.path" in err
    assert run.summary()["ledger"]["balanced"]


def test_a_damaged_full_is_passed_over(tmp_path: Path, begin: Begin, undisturbed: Mapping[str, Any]) -> None:
    run = begin(_plan(tmp_path / "run"))
    run.wait_for_updates(6)
    learner = run.processes()["learner-0"]
    os.kill(learner.pid, signal.SIGSTOP)
    newest = _newest(run, "full-")[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    os.kill(learner.pid, signal.SIGKILL)
    summary, told = _ended_well(run)
    assert_same(summary, undisturbed)
    assert newest.name in told and "not loaded" in told
    assert summary["restarts"] == 1


@pytest.mark.parametrize(("mode", "start"), [
    long("async", "continues from the weights of version 0-"),
    ("sync", "continues from full checkpoint 0-0"),
])  # fmt: skip
def test_before_the_second_full_there_was_the_first(tmp_path: Path, begin: Begin, mode: ModeName, start: str) -> None:
    """With replay FULL is written by the clock: for a while there is only one beside that of version 0.

    In async what was learned since is in the versions; in sync the bits of the run are those from its beginning.
    """
    plan = system_plan(tmp_path / "run", mode, 2, IDLE_DQN, SLEEPING, checkpoint_every_s=3.0, steps=10_000_000)
    run = begin(plan)
    run.wait_for(lambda: len(_newest(run, "full-")) == 2)
    learner = run.processes()["learner-0"]
    os.kill(learner.pid, signal.SIGSTOP)
    first, only = _newest(run, "full-")
    assert first.name == "full-0-0.safetensors"
    only.write_bytes(only.read_bytes()[:-9])
    os.kill(learner.pid, signal.SIGKILL)
    published = int(_newest(run, "v")[-1].stem.rpartition("-")[2])
    run.wait_for(lambda: f"the run {start}" in _problems(run))
    first_n = 1 if mode == "sync" else published + 1
    at_once = only.with_name(f"full-1-{first_n}.safetensors")  # not when its time has come
    run.wait_for(at_once.exists)
    run.process.send_signal(signal.SIGTERM)
    code, _, err = run.end()
    assert code == 130, err
    assert only.name in err and run.summary()["ledger"]["balanced"]


@pytest.mark.parametrize("mode", ["sync", long("async")])
def test_a_learner_that_is_replaced_while_the_store_is_away_waits_for_it(
    tmp_path: Path, begin: Begin, mode: ModeName
) -> None:
    """It began at env step 0 otherwise, in a directory that it made in the place of the other."""
    run = begin(system_plan(tmp_path / "run", mode, 2, IDLE, steps=10_000_000))
    run.wait_for_updates(8)
    store = Path(run.plan.store_path)
    learner = run.processes()["learner-0"]
    os.kill(learner.pid, signal.SIGSTOP)
    store.rename(store.with_name("away"))
    os.kill(learner.pid, signal.SIGKILL)
    run.wait_for(lambda: "the store is unavailable" in _problems(run))
    assert not store.exists()
    store.with_name("away").rename(store)
    newest = newest_n(store, "v0-")
    run.wait_for(lambda: newest_n(store, "v1-") > newest)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    assert newest_n(store, "v1-0") == -1 and run.summary()["ledger"]["balanced"]


def test_nothing_to_resume_from_is_reported(tmp_path: Path, begin: Begin) -> None:
    plan = _plan(tmp_path / "run")
    run = begin(plan)
    run.wait_for_updates(6)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    fulls = _newest(run, "full-")
    assert len(fulls) >= 2
    for full in fulls:
        full.write_bytes(b"")
    config = replace(plan.config, restart=replace(plan.config.restart, max=0))
    again = begin(replace(plan, run_id=f"{plan.run_id}-b", resume=True, config=config))
    code, _, err = again.end()
    assert code == 1
    assert "no full checkpoint can be loaded" in err and all(full.name in err for full in fulls)


def test_a_version_damaged_before_its_first_read(tmp_path: Path, begin: Begin, undisturbed: Mapping[str, Any]) -> None:
    run = begin(_plan(tmp_path / "run"))
    run.wait_for_updates(4)
    agent = run.processes()["agent-0"]
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        # nobody can get on to the version after the one that the workers have
        names: list[str] = []

        def rests() -> bool:
            names.append(_newest(run, "v")[-1].name)
            return names[-1:] * 50 == names[-50:]

        run.wait_for(rests)
        newest = _newest(run, "v")[-1]
        newest.write_bytes(newest.read_bytes()[:-5] + b"wrong")
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    summary, told = _ended_well(run)
    assert newest.name in told and "written and announced again" in told
    assert_same(summary, undisturbed)


@pytest.mark.long
def test_a_best_that_cannot_be_written_is_reported(tmp_path: Path, begin: Begin) -> None:
    plan = system_plan(
        tmp_path / "run", "sync", 2, SLOW_TALLY, steps=10_000_000, evaluator=EvaluatorSection(episodes=2)
    )
    run = begin(plan)
    run.wait_for(lambda: "evaluator-0" in run.processes())
    evaluator = run.processes()["evaluator-0"]
    limit_files(evaluator, FEW_BYTES)
    run.wait_for(lambda: "the previous best version is kept" in _problems(run))
    limit_files(evaluator, None)
    run.wait_for(lambda: _newest(run, "best-"))
    run.process.send_signal(signal.SIGUSR1)
    summary, _ = _ended_well(run)
    assert summary["restarts"] == 0


@pytest.mark.timed
def test_a_full_that_takes_longer_than_the_grace(tmp_path: Path, begin: Begin) -> None:
    """It is written less often, which status and summary show; the last one is written to its end."""
    limits = LimitsSection(heartbeat_s=0.2, grace_s=2.5)
    plan = system_plan(
        tmp_path / "run", "sync", 2, IDLE_DQN, SLEEPING, steps=10_000_000, limits=limits, checkpoint_every_s=2.0
    )
    plan = replace(
        plan, config=replace(plan.config, store=replace(plan.config.store, kind="tests.stand_ins.slow_store:SlowFulls"))
    )
    run = begin(plan)
    run.wait_for(lambda: "more than a fifth of run.checkpoint_every_s (2 s)" in _problems(run))
    run.wait_for(lambda: _status(run)["metrics"]["checkpoint_interval_s"] >= 5 * FULL_S)
    run.process.send_signal(signal.SIGTERM)
    code, out, err = run.end()
    assert code == 130, err
    assert "killed" not in out and "0 left" in out
    summary = run.summary()
    assert summary["checkpoint_interval_s"] >= 5 * FULL_S
    assert newest_n(Path(plan.store_path), "full-") == newest_n(Path(plan.store_path), "v")
    recorded = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert {2.0, summary["checkpoint_interval_s"]} & {line.get("checkpoint_interval_s") for line in recorded}
