"""What a resume trains: N more env steps, or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.raising import raises
from tests.support.stored_runs import summary_data
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load, load_config
from zmqrl.planning.continuation import for_env_steps, nothing_to_train, reached, record_nothing_trained
from zmqrl.run_files.stored_config import stored_config

SUMMARY = summary_data(env_steps=72_910, updates=900, train_return_mean_100=476.0)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run of cartpole-ppo that ended by `run.stop_at_return`."""
    config = load_config("cartpole-ppo", overrides=["run.stop_at_updates=5000", "run.max_wall_s=9"])
    (tmp_path / "config.json").write_text(json.dumps(stored_config(config)))
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "condition"),
    [
        ([], "run.stop_at_return (475)"),
        (["run.stop_at_return=null"], None),
        (["run.stop_at_return=null", "run.total_env_steps=72000"], "run.total_env_steps (72,000)"),
        (["run.stop_at_return=null", "run.stop_at_updates=900"], "run.stop_at_updates (900)"),
    ],
)
def test_what_was_reached_is_judged_under_the_new_conditions(
    run_dir: Path, flags: list[str], condition: str | None
) -> None:
    assert reached(run_dir, load_config("cartpole-ppo", overrides=flags)) == condition


def test_a_run_without_a_readable_summary_has_reached_nothing(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = ("", "[]", "3", "{}", *(json.dumps({**SUMMARY, name: "x"}) for name in ("env_steps", "updates")))
    for content in damaged:
        caplog.clear()
        (run_dir / "summary.json").write_text(content)
        assert reached(run_dir, load_config("cartpole-ppo")) is None
        assert f"{run_dir}/summary.json is damaged" in caplog.text


def test_more_env_steps_are_counted_from_those_of_the_run_and_no_other_condition_ends_it(run_dir: Path) -> None:
    config = load(stored=run_dir, overrides=for_env_steps(run_dir, 1000)).config
    run = config.run
    assert (run.total_env_steps, run.schedule_env_steps) == (73_910, 250_000)
    assert (run.stop_at_return, run.stop_at_updates, run.max_wall_s) == (None, None, None)
    assert reached(run_dir, config) is None


def test_the_horizon_of_the_schedules_grows_with_the_total(run_dir: Path) -> None:
    run = load(stored=run_dir, overrides=for_env_steps(run_dir, 300_000)).config.run
    assert run.schedule_env_steps == run.total_env_steps == 372_910


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with raises(
        ConfigError, value=str(tmp_path), what=f"is not a run directory: {tmp_path}/config.json does not exist"
    ):
        for_env_steps(tmp_path, 1)


def test_nothing_trained_is_recorded_and_named(run_dir: Path) -> None:
    text = nothing_to_train(run_dir, "run.stop_at_return (475)")
    assert "has reached run.stop_at_return (475) at 72,910 env steps" in text and "--for 100000" in text
    record_nothing_trained(run_dir)
    assert json.loads((run_dir / "summary.json").read_text()) == {**SUMMARY, "trained_env_steps": 0}
    assert sorted(path.name for path in run_dir.iterdir()) == ["config.json", "summary.json"]
