"""A resume that would lose a run is refused and changes nothing there; `--from-scratch` allows it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.runs.command_runs import PLAIN, resume, summary, zmqrl
from tests.support.yardstick import within
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.supervision.owner_record import FOLDER as OWNERS

pytestmark = pytest.mark.timed
STEPS = 4_096
SETS = [word for pair in (f"run.total_env_steps={STEPS}", *PLAIN) for word in ("--set", pair)]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests take copies of it."""
    run_dir = tmp_path_factory.mktemp("once") / "run"
    words = ("train", "cartpole-ppo", "--mode", "single", "--plain", "--run-dir", run_dir)
    zmqrl(*words, *SETS, at=run_dir.parent)
    return run_dir


@pytest.fixture
def run_dir(once: Path, tmp_path: Path) -> Path:
    shutil.copytree(once, tmp_path / "run")
    return tmp_path / "run"


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(3_000)
        file.write(b"garbage")


def fulls(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("full-*"), key=lambda path: int(path.stem.rpartition("-")[2]))


def contents(folder: Path) -> dict[str, bytes]:
    """All but who owned the directory last: a resume owns it before it looks."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != OWNERS)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def refused(run_dir: Path, code: int = 2) -> str:
    """What is said; within the time of a configuration fault, and nothing is written."""
    before = contents(run_dir)
    with within(10.0):
        said = resume(run_dir, 2 * STEPS, code=code)
    assert contents(run_dir) == before
    assert "--from-scratch" in said and "Traceback" not in said
    return said


@pytest.mark.long
def test_a_single_damaged_full_is_not_a_start_state(run_dir: Path) -> None:
    for path in fulls(run_dir)[:-1]:
        path.unlink()
    (last,) = fulls(run_dir)
    damage(last)
    said = refused(run_dir)
    newest = max((run_dir / "checkpoints").glob("v*"), key=lambda path: int(path.stem.rpartition("-")[2]))
    assert last.name in said and f"--init-from {newest}" in said
    resume(run_dir, 2 * STEPS, "--from-scratch")
    begun_again = summary(run_dir)
    assert begun_again["ledger"]["stored"] == begun_again["env_steps"] >= 2 * STEPS
    assert begun_again["resumed_from"] is None


@pytest.mark.parametrize("record", ["summary.json", "status.json", "metrics.jsonl"])
def test_a_run_that_had_env_steps_by_any_record_is_not_begun_again(run_dir: Path, record: str) -> None:
    shutil.rmtree(run_dir / "checkpoints")
    data = {"env_steps": STEPS} if record.endswith("json") else {"wall_s": 1.0, "env_steps": STEPS}
    for name in ("summary.json", "status.json", "metrics.jsonl"):
        (run_dir / name).unlink()
    (run_dir / record).write_text(json.dumps(data) + "\n")
    assert f"the {STEPS:,} env steps of the run would be lost" in refused(run_dir)


@pytest.mark.long
def test_damaged_fulls_are_given_up_only_from_scratch(run_dir: Path) -> None:
    for path in fulls(run_dir):
        damage(path)
    assert len(fulls(run_dir)) == 3 and all(path.name in refused(run_dir) for path in fulls(run_dir))
    resume(run_dir, 2 * STEPS, "--from-scratch")
    assert summary(run_dir)["resumed_from"] is None


def test_from_scratch_takes_no_result_of_the_old_attempts_for_its_own(run_dir: Path) -> None:
    """They are kept, under a name that says what they are."""
    store = DirectoryStore(str(run_dir / "checkpoints"), 3)
    newest = store.newest()
    assert newest is not None
    store.save_best(*newest, 1e9)
    metrics = run_dir / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"wall_s": 9.0, "env_steps": 999999}\n')
    rows, events = metrics.read_text(), [path.name for path in (run_dir / "tensorboard").iterdir()]
    old, names = summary(run_dir), {path.name for path in (run_dir / "checkpoints").glob("*.safetensors")}
    for path in fulls(run_dir):
        damage(path)
    said = resume(run_dir, 2 * STEPS, "--from-scratch")
    kept = run_dir / "checkpoints" / "before-attempt-2"
    assert {path.name for path in kept.iterdir()} == names
    aside = run_dir / "before-attempt-2"
    assert json.loads((aside / "summary.json").read_text()) == old
    assert (aside / "metrics.jsonl").read_text() == rows and "999999" not in metrics.read_text()
    assert metrics.read_text() and [path.name for path in (aside / "tensorboard").iterdir()] == events
    assert [str(kept) in line and "env step 0" in line for line in said.splitlines()].count(True) == 1
    assert store.best() is None and summary(run_dir)["ledger"]["stored"] >= 2 * STEPS


def test_from_scratch_that_is_refused_puts_everything_back(run_dir: Path) -> None:
    for path in fulls(run_dir):
        damage(path)
    before = contents(run_dir)
    (run_dir / "status.json").rename(run_dir / "other")
    (run_dir / "status.json").mkdir()  # it cannot be written
    said = resume(run_dir, 2 * STEPS, "--from-scratch", code=2)
    assert "are kept in" in said and "cannot be written" in said
    (run_dir / "status.json").rmdir()
    (run_dir / "other").rename(run_dir / "status.json")
    assert contents(run_dir) == before


def test_a_total_below_what_is_there_is_warned_of(run_dir: Path) -> None:
    env_steps = summary(run_dir)["env_steps"]
    (run_dir / "summary.json").unlink()  # as after the death of the launcher
    said = resume(run_dir, STEPS // 2)
    warned = [line for line in said.splitlines() if "remains to train" in line]
    assert len(warned) == 1 and f"{env_steps:,}" in warned[0] and f"{STEPS // 2:,}" in warned[0], said
    assert summary(run_dir)["env_steps"] == env_steps


def test_a_run_without_env_steps_begins(run_dir: Path) -> None:
    for name in ("summary.json", "status.json", "metrics.jsonl"):
        (run_dir / name).unlink()
    shutil.rmtree(run_dir / "checkpoints")
    resume(run_dir, STEPS)
    assert summary(run_dir)["env_steps"] >= STEPS and summary(run_dir)["last_seen"] is None


def test_from_scratch_is_refused_where_a_full_can_be_loaded_and_auto_continues(run_dir: Path) -> None:
    before, newest = summary(run_dir), fulls(run_dir)[-1]
    started_at = json.loads((run_dir / "run.json").read_text())["started_at"]
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"wall_s": 2.0, "env_steps": 999}\n{"wall_s": 3.0, "env_')
    kept = contents(run_dir)
    said = resume(run_dir, 2 * STEPS, "--from-scratch", code=2)
    assert newest.stem in said and "remove --from-scratch" in said and "--run-dir" in said, said
    assert newest.stem in resume(run_dir, STEPS, "--from-scratch", code=2), "also where nothing remains to train"
    assert contents(run_dir) == kept
    flags = (*SETS, "--set", f"run.total_env_steps={2 * STEPS}", "--mode", "single", "--plain", "--from-scratch")
    said = zmqrl("train", "cartpole-ppo", "--run-dir", run_dir, "--resume", "auto", *flags, at=run_dir.parent)
    assert said.count("keeps its configuration; the preset cartpole-ppo is not read again") == 1, said
    after = summary(run_dir)
    assert after["resumed_from"]["env_steps"] == before["env_steps"]
    assert f"full-{after['resumed_from']['version']}.safetensors" == newest.name
    assert after["last_seen"] == {"env_steps": 999, "at": round(started_at + 2.0, 3)}
    assert started_at < after["resumed_from"]["written_at"] < started_at + before["wall_s"]
    assert before["resumed_from"] is None and before["last_seen"] is None


@pytest.mark.parametrize("copies", [True, False], ids=["copies", "none"])
def test_a_learners_host_that_is_not_there_yet_can_be_waited_for(run_dir: Path, copies: bool) -> None:
    """After a power cut a unit starts the launcher again, and the learner's host may boot later."""
    stored = json.loads((run_dir / "config.json").read_text())
    stored["config"]["run"]["mode"], stored["config"]["learner"]["host"] = "sync", "h1"
    stored["config"]["hosts"] = {"h1": {"workers": 1, "ssh": "127.0.0.1", "port": 1}}
    (run_dir / "config.json").write_text(json.dumps(stored))
    if not copies:
        shutil.rmtree(run_dir / "checkpoints")
    said = refused(run_dir, code=4)
    assert "h1, the previous learner's host, is unreachable" in said


def test_the_flags_that_exclude_each_other(tmp_path: Path) -> None:
    assert "--resume" in zmqrl("train", "cartpole-ppo", "--from-scratch", at=tmp_path, code=2)
    words = ("train", "--resume", tmp_path, "--init-from", tmp_path)
    assert "--init-from" in zmqrl(*words, at=tmp_path, code=2)
