"""What `zmqrl.train` takes in place of a preset, and how it names its arguments in errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import zmqrl
from tests.envs.space_envs import Unmasked
from tests.support.raising import compare, fields, raises
from zmqrl.algorithms.ppo import PPO
from zmqrl.api.arguments import for_python, request_of
from zmqrl.config.sections import Config
from zmqrl.launch.start import configured
from zmqrl.planning.configure import load
from zmqrl.planning.without_preset import WithoutPreset


class OwnPPO(PPO):
    """An algorithm of the user's."""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configuration(preset: str | None = None, algo: str | type[OwnPPO] | None = None, **overrides: Any) -> Config:
    """Of a new run."""
    return configured(request_of(preset, algo, *(None,) * 7, False, overrides)).config


@pytest.mark.parametrize("algo", [None, "dqn", "PPO"])
@pytest.mark.parametrize("env", ["CartPole-v1", {"id": "CartPole-v1"}, "tests.envs.space_envs:Unmasked", Unmasked])
def test_an_env_has_the_settings_of_the_command_line(algo: str | None, env: Any) -> None:
    """Also one without a step limit."""
    named = env["id"] if isinstance(env, dict) else "tests.envs.space_envs:Unmasked" if env is Unmasked else env
    other = load(without_preset=WithoutPreset(named, (algo or "ppo").lower()), overrides=["run.seed=4"]).config
    assert configuration(algo=algo, env=env, run__seed=4) == other


def test_a_class_is_an_algorithm() -> None:
    """As `algo` and as `kind`."""
    named = configuration(algo="tests.api.test_arguments:OwnPPO", env="CartPole-v1")
    assert configuration(algo=OwnPPO, env="CartPole-v1") == named
    assert configuration(algorithm={"kind": OwnPPO}, env="CartPole-v1") == named


def test_an_algorithm_of_the_calling_script_is_refused_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("Own", (OwnPPO,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Own", own, raising=False)
    messages = []
    for arguments in ({"algo": own}, {"algorithm": {"kind": own}}):
        with raises(
            zmqrl.ConfigError,
            key=("algorithm", "kind"),
            fix="move the class to my_algorithm.py and use algorithm.kind=my_algorithm:Own",
        ) as caught:
            zmqrl.start(env="CartPole-v1", **arguments)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_arguments_go_over_the_settings() -> None:
    config = configuration(env={"id": "CartPole-v1", "num_envs": 3}, algorithm={"kind": "dqn", "gamma": 0.5})
    assert (config.env.num_envs, config.algorithm["kind"], config.algorithm["gamma"]) == (3, "dqn", 0.5)


def test_numbers_of_numpy_are_numbers() -> None:
    overrides = {"run__total_env_steps": np.int64(3000), "algorithm": {"learning_rate": np.float32(0.5)}}
    workers, seed = cast("Any", (np.int64(2), np.int64(7)))
    config = configured(request_of("cartpole-ppo", *(None,) * 5, workers, seed, None, False, overrides)).config
    assert (config.run.total_env_steps, config.algorithm["learning_rate"], config.run.seed) == (3000, 0.5, 7)
    assert config.hosts["local"].workers == 2


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, fields(what='a preset (`zmqrl presets` lists them) or env="ID" is required')),
        ({"run__seed": 3}, fields(what='a preset (`zmqrl presets` lists them) or env="ID" is required')),
        ({"env": {"num_envs": 3}}, fields(what='a preset (`zmqrl presets` lists them) or env="ID" is required')),
        (
            {"algo": "dqn"},
            fields(what="algo='dqn' requires an env: a preset (`zmqrl presets` lists them) or env=\"ID\" is required"),
        ),
        ({"algo": 3, "env": "CartPole-v1"}, fields("algo", "3", what="must be the name of an algorithm, or its class")),
        ({"algo": object(), "env": "CartPole-v1"}, fields("algo", what="an object of type object")),
        (
            {"algo": Unmasked, "env": "CartPole-v1"},
            fields(
                "algorithm.kind",
                "'tests.envs.space_envs:Unmasked'",
                what="is not a subclass of Algorithm: found class Unmasked",
            ),
        ),
        (
            {"algo": "icm_ppo", "env": "CartPole-v1"},
            fields(
                "algo", what="unknown algorithm 'icm_ppo'", fix="in zmqrl it is ppo with algorithm.intrinsic.kind=icm"
            ),
        ),
        (
            {"algo": "m_dqn", "env": "CartPole-v1"},
            fields("algo", fix="in zmqrl it is dqn with algorithm.double=false, algorithm.munchausen={}"),
        ),
        ({"algo": "trpo", "env": "CartPole-v1"}, fields("algo", what="unknown algorithm 'trpo'")),
        (
            {"preset": "cartpole-ppo", "algo": "dqn"},
            fields("algo", "'dqn'", what="cannot be combined with the preset 'cartpole-ppo'"),
        ),
        (
            {"preset": "cartpole-ppo", "env": "Acrobot-v1"},
            fields("env", "'Acrobot-v1'", what="cannot be combined with the preset 'cartpole-ppo'"),
        ),
        (
            {"preset": "cartpole-ppo", "env": Unmasked},
            fields("env", "'tests.envs.space_envs:Unmasked'", what="cannot be combined with the preset 'cartpole-ppo'"),
        ),
    ],
)
def test_what_is_refused(directory: Path, arguments: dict[str, Any], fault: dict[str, Any]) -> None:
    with raises(zmqrl.ConfigError, **fault):
        zmqrl.start(**arguments)
    assert list(directory.iterdir()) == []


class Mine(Unmasked):
    """As if it was defined in the calling script."""


Mine.__module__ = "__main__"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"run__total_env_steps": -5}, fields("run.total_env_steps", "-5", what="must be greater than or equal to 1")),
        (
            {"mode": "all"},
            fields("run.mode", "'all'", what="must be 'single', 'sync', 'pipelined', 'async' or 'offline'"),
        ),
        ({"workers": -1}, fields("hosts.local.workers", "-1", what="must be greater than or equal to 0, or 'auto'")),
        ({"env": {"id": "tests.envs.space_envs:Unmasked", "recovery": "exact"}}, fields("env.recovery", "'exact'")),
        ({"env__id": "CartPol-v1"}, fields("env.id", what="no env is registered as 'CartPol-v1'")),
        ({"lr": 1}, fields("lr", what="unknown key (value 1)")),
        ({"verbose": 1}, fields("verbose", what="unknown key (value 1)")),
        ({"callback": print}, fields("callback", what="unknown key (value 'builtins:print')")),
        (
            {"env": Mine},
            fields("env.id", fix='move the class to my_envs.py and use env={"id": my_envs.Mine} (import my_envs)'),
        ),
        ({"run_dir": "full"}, fields(value="run directory full", fix="to continue its run: zmqrl.resume('full')")),
    ],
)
def test_errors_name_arguments_of_python(directory: Path, arguments: dict[str, Any], fault: dict[str, Any]) -> None:
    (directory / "full").mkdir()
    (directory / "full" / "run.json").touch()
    with raises(zmqrl.ConfigError, **fault) as caught:
        zmqrl.start("cartpole-ppo", **arguments)
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count(str(caught.value)) == 1 and "The above exception" not in shown


def test_an_error_has_the_spelling_of_a_call() -> None:
    """A command line has other names of arguments, and a call has no places; a class is not written as a text."""
    places = (("run.seed", "override"), ("run.mode", "a.yaml:3"))
    error = zmqrl.ConfigError("bad", key=("--init-from",), value="a", fix="use env.id=pkg:Walk-v0")
    found = for_python(error.replaced(source="--init-from", places=places))
    compare(found, key=("init_from",), source="", places=places[1:], fix="use env.id=pkg:Walk-v0")
    assert str(found) == "init_from: a: bad; use env.id=pkg:Walk-v0 (run.mode: a.yaml:3)"
    other = zmqrl.ConfigError(
        "bad", key=("env", "id"), fix="use env.id=a:B", python_fix="use env=a.B", source="a.yaml:3"
    )
    compare(for_python(other), key=("env", "id"), source="a.yaml:3", fix="use env=a.B")


@pytest.mark.parametrize(
    ("call", "written", "meant"),
    [
        (zmqrl.train, "on_metric", "on_metrics"),
        (zmqrl.train, "quite", "quiet"),
        (zmqrl.train, "worker", "workers"),
        (zmqrl.train, "rundir", "run_dir"),
        (zmqrl.train, "checks", "check"),
        (zmqrl.start, "resum", "resume"),
        (zmqrl.start, "on_scores", "on_score"),
        (zmqrl.start, "algos", "algo"),
        (zmqrl.resume, "for_env_step", "for_env_steps"),
    ],
)
def test_a_misspelt_argument_is_suggested(call: Callable[..., Any], written: str, meant: str) -> None:
    what, fix = f"unknown argument of zmqrl.{call.__name__}", f"did you mean '{meant}'?"
    with raises(zmqrl.ConfigError, key=(written,), what=what, fix=fix):
        call("cartpole-ppo", **{written: None})


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("total_env_steps", fields("total_env_steps", what="unknown key (value 3)")),
        ("seeds", fields("seeds", what="unknown key (value 3)")),
        ("resume", fields("resume", what="unknown key (value 3)")),
    ],
)
def test_names_of_keys_and_of_other_libraries_have_their_own_messages(name: str, fault: dict[str, Any]) -> None:
    with raises(zmqrl.ConfigError, **fault):
        zmqrl.train("cartpole-ppo", **{name: 3})
