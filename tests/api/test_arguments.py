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
from tests.raising import compare
from zmqrl.algorithms.ppo import PPO
from zmqrl.api.arguments import for_python, request_of
from zmqrl.config.sections import Config
from zmqrl.launch.configure import load
from zmqrl.launch.start import configured
from zmqrl.launch.without_preset import WithoutPreset


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
        with pytest.raises(zmqrl.ConfigError, match=r"move the class to my_algorithm\.py") as caught:
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
    ("arguments", "message"),
    [
        ({}, r"a preset .* or env=\"ID\" is required"),
        ({"run__seed": 3}, r"a preset .* or env=\"ID\" is required"),
        ({"env": {"num_envs": 3}}, r"a preset .* or env=\"ID\" is required"),
        ({"algo": "dqn"}, r"algo='dqn' requires an env"),
        ({"algo": 3, "env": "CartPole-v1"}, r"^algo: 3: must be the name of an algorithm, or its class"),
        ({"algo": object(), "env": "CartPole-v1"}, r"^algo: an object of type object"),
        ({"algo": Unmasked, "env": "CartPole-v1"}, r"^algorithm.kind: .*Unmasked"),
        ({"algo": "a2c", "env": "CartPole-v1"}, r"^algo: unknown algorithm 'a2c'; known: dqn"),
        ({"preset": "cartpole-ppo", "algo": "dqn"}, r"^algo: 'dqn' cannot be combined .* algorithm__kind='dqn'"),
        ({"preset": "cartpole-ppo", "env": "Acrobot-v1"}, r"^env: 'Acrobot-v1' cannot .* env__id='Acrobot-v1'"),
        ({"preset": "cartpole-ppo", "env": Unmasked}, r"env__id='tests.envs.space_envs:Unmasked'"),
    ],
)
def test_what_is_refused(directory: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(zmqrl.ConfigError, match=message):
        zmqrl.start(**arguments)
    assert list(directory.iterdir()) == []


class Mine(Unmasked):
    """As if it was defined in the calling script."""


Mine.__module__ = "__main__"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"run__total_env_steps": -5}, r"^run.total_env_steps: -5: must be"),
        ({"mode": "all"}, r"^run.mode: 'all': must be"),
        ({"workers": -1}, r"^hosts.local.workers: -1: must be"),
        (
            {"env": {"id": "tests.envs.space_envs:Unmasked", "recovery": "exact"}},
            r"^env.recovery: 'exact' needs .* 'Running episodes'\.$",
        ),
        ({"env__id": "CartPol-v1"}, r"^env.id: no env is registered as 'CartPol-v1'"),
        ({"lr": 1}, r"^lr: unknown key"),
        ({"verbose": 1}, r"quiet=True"),
        ({"callback": print}, r"on_metrics=, on_score="),
        ({"env": Mine}, r'move the class to my_envs.py and use env=\{"id": my_envs.Mine\} \(import my_envs\)$'),
        ({"run_dir": "full"}, r"to continue its run: zmqrl.resume\('full'\)$"),
    ],
)
def test_errors_name_arguments_of_python(directory: Path, arguments: dict[str, Any], message: str) -> None:
    (directory / "full").mkdir()
    (directory / "full" / "run.json").touch()
    with pytest.raises(zmqrl.ConfigError, match=message) as caught:
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
    message = rf"^{written}: unknown argument of zmqrl.{call.__name__}; did you mean '{meant}'\?$"
    with pytest.raises(zmqrl.ConfigError, match=message):
        call("cartpole-ppo", **{written: None})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("total_env_steps", "did you mean run.total_env_steps"),
        ("seeds", "loop over seed="),
        ("resume", r"zmqrl.resume\(DIR\) continues a run"),
    ],
)
def test_names_of_keys_and_of_other_libraries_have_their_own_messages(name: str, message: str) -> None:
    with pytest.raises(zmqrl.ConfigError, match=message):
        zmqrl.train("cartpole-ppo", **{name: 3})
