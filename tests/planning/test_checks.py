"""Who may write into a run directory, and what a resumed run may change."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import fields, raises
from zmqrl.config.codec import to_json
from zmqrl.errors import ConfigError
from zmqrl.planning.checks import check_settings
from zmqrl.planning.configure import load as load_all
from zmqrl.planning.configure import load_config
from zmqrl.planning.directory_checks import check_new_directory, check_not_live, check_resume
from zmqrl.run_files.run_info import RunInfo
from zmqrl.run_files.stored_config import stored_config
from zmqrl.supervision.process_table import identify

KEPT = "the run in {} has {}, and a resumed run must keep it"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of cartpole-ppo whose launcher is gone."""
    stored = stored_config(load_config("cartpole-ppo", overrides=["learner.executor=manual"], workers=2))
    (tmp_path / "config.json").write_text(json.dumps(stored))
    return tmp_path


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    check_new_directory(tmp_path)
    check_new_directory(tmp_path / "new")
    (tmp_path / "a").write_text("")
    taken = {"value": f"run directory {tmp_path}", "what": "exists and is not empty"}
    with raises(ConfigError, **taken, fix="it holds no run; choose another directory"):
        check_new_directory(tmp_path)
    (tmp_path / "run.json").write_text("")
    with raises(ConfigError, **taken, fix=f"to continue its run: --resume {tmp_path}"):
        check_new_directory(tmp_path)


def test_a_live_run_keeps_its_directory(run_dir: Path) -> None:
    me = identify(os.getpid())
    assert me is not None
    info = RunInfo("r-1", me.pid, me.start_time, socket.gethostname(), time.time(), None)
    (run_dir / "run.json").write_text(json.dumps(to_json(info)))
    used = {"value": f"run directory {run_dir}", "what": f"is in use by run r-1 (pid {me.pid})"}
    with raises(ConfigError, **used, fix=f"stop it: `zmqrl stop {run_dir}`"):
        check_not_live(run_dir)
    with raises(ConfigError, **used):
        check_resume(run_dir, load_config("cartpole-ppo"))


def test_a_resumed_run_takes_its_configuration_from_there(run_dir: Path) -> None:
    flags = ["run.total_env_steps=300000", "run.stop_at_return=null"]
    loaded = load_all(stored=run_dir, overrides=flags, workers=1)
    run = loaded.config.run
    assert (run.total_env_steps, run.schedule_env_steps, run.stop_at_return) == (300_000, 250_000, None)
    assert run.preset == "cartpole-ppo" and loaded.config.hosts["local"].workers == 1
    check_resume(run_dir, loaded.config, "cartpole-ppo")


@pytest.mark.parametrize(
    ("flag", "fault", "was"),
    [
        ("run.seed=9", fields("run.seed", "9"), "1"),
        ("run.mode=single", fields("run.mode", "'single'"), "'sync'"),
        ("env.num_envs=4", fields("env.num_envs", "4"), "2"),
        ("algorithm.gamma=0.9", fields("algorithm.gamma", "0.9"), "0.98"),
        ("replay.capacity=9000", fields("replay.capacity", "9000"), "50000"),
        ("store.path=/elsewhere", fields("store.path", "'/elsewhere'"), "null"),
        ("learner.executor=eager", fields("learner.executor", "'eager'"), "'manual'"),
        ("learner.precision=bfloat16", fields("learner.precision", "'bfloat16'"), "'float32'"),
    ],
)
def test_a_resumed_run_keeps_what_it_is(run_dir: Path, flag: str, fault: dict[str, Any], was: str) -> None:
    with raises(ConfigError, **fault, what=KEPT.format(run_dir, was)):
        check_resume(run_dir, load_config("cartpole-ppo", overrides=[flag]))


@pytest.mark.parametrize(
    ("flag", "fault", "was"),
    [
        ("algorithm.kind=dqn", fields("algorithm.kind", "'dqn'"), "'ppo'"),
        ("run.init_from=/x", fields("run.init_from", "'/x'"), "null"),
    ],
)
def test_a_refused_resume_names_the_kind_first_and_the_place(
    run_dir: Path, flag: str, fault: dict[str, Any], was: str
) -> None:
    loaded = load_all(overrides=[flag], stored=run_dir)
    with raises(ConfigError, **fault, source="--set", what=KEPT.format(run_dir, was)):
        check_resume(run_dir, loaded.config, sources=loaded.sources)


def test_workers_of_a_resumed_run_may_act_with_another_runtime(run_dir: Path) -> None:
    check_resume(run_dir, load_config("cartpole-ppo", overrides=["network.runtime=onnx"]))
    with raises(ConfigError, key=("network", "hidden"), value="[9]", what=KEPT.format(run_dir, "[64, 64]")):
        check_resume(run_dir, load_config("cartpole-ppo", overrides=["network.runtime=onnx", "network.hidden=[9]"]))


def test_auto_is_the_executor_of_any_run(run_dir: Path) -> None:
    """The plan chooses it; in `config.json` of zmqrl 0.1 it is `auto` too."""
    check_resume(run_dir, load_config("cartpole-ppo", overrides=["learner.executor=auto"]))
    (run_dir / "config.json").write_text(json.dumps(stored_config(load_config("cartpole-ppo"))))
    check_resume(run_dir, load_config("cartpole-ppo", overrides=["learner.executor=eager"]))


def test_another_preset_or_no_run_at_all(run_dir: Path) -> None:
    config = load_config("cartpole-ppo")
    with raises(ConfigError, key=("run", "preset"), value="'acrobot-ppo'", fix="omit the preset") as caught:
        check_resume(run_dir, config, "acrobot-ppo")
    assert caught.value.what == f"the run in {run_dir} was started with 'cartpole-ppo'"
    with raises(
        ConfigError,
        key=("--resume",),
        value=str(run_dir / "no"),
        what="run directory not found, and not the id of a run that is active or in runs/",
    ):
        check_resume(run_dir / "no", config)
    (run_dir / "config.json").write_text("{")
    with raises(ConfigError, value=str(run_dir / "config.json"), fix="restore the file from a copy of the run"):
        check_resume(run_dir, config)


def test_a_hosts_file_with_another_preset(run_dir: Path) -> None:
    file = run_dir / "hosts.yaml"
    file.write_text("run: {seed: 1}\nhosts: {local: {workers: 1}}")
    assert load_all(hosts_file=file, stored=run_dir).config.run.preset == "cartpole-ppo"
    file.write_text("run:\n  preset: cartpole-ppo")
    assert load_all(hosts_file=file, stored=run_dir).config.run.preset == "cartpole-ppo"
    file.write_text("run:\n  preset: acrobot-ppo")
    started = {"key": ("run", "preset"), "what": "the run was started with 'cartpole-ppo'"}
    with raises(ConfigError, **started, value="'acrobot-ppo'", source=f"{file}:2"):
        load_all(hosts_file=file, stored=run_dir)
    with raises(ConfigError, **started, value="'pendulum-ppo'", source="--set"):
        load_all(stored=run_dir, overrides=["run.preset=pendulum-ppo"])


def test_exact_recovery_may_be_disabled_and_not_enabled(run_dir: Path) -> None:
    config = load_config("cartpole-ppo", overrides=["env.recovery=restart_episode"], workers=2)
    check_resume(run_dir, config)
    (run_dir / "config.json").write_text(json.dumps(stored_config(config)))
    with raises(ConfigError, key=("env", "recovery"), value="'exact'", what=KEPT.format(run_dir, "'restart_episode'")):
        check_resume(run_dir, load_config("cartpole-ppo", workers=2))


def test_the_limit_of_steps_is_kept(run_dir: Path) -> None:
    with raises(ConfigError, key=("env", "max_episode_steps"), value="9", what=KEPT.format(run_dir, "null")):
        check_resume(run_dir, load_config("cartpole-ppo", overrides=["env.max_episode_steps=9"], workers=2))


def test_the_best_version_is_by_a_name_of_the_report() -> None:
    config = load_config("cartpole-ppo", overrides=["evaluator.best_by=cost", "env.report={comfort: mean}"])
    with raises(
        ConfigError,
        key=("evaluator", "best_by"),
        value="cost",
        what="is not in env.report",
        fix="set one of its names: comfort",
    ):
        check_settings(config, False)
    check_settings(load_config("cartpole-ppo", overrides=["evaluator.best_by=cost", "env.report={cost: sum}"]), False)
