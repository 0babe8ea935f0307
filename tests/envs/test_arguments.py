"""Arguments that files cannot hold have one form, and each copy of an env a number."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.raising import raises
from tests.support.running import environment
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import close_env
from zmqrl.envs.env_index import VARIABLE
from zmqrl.envs.make import make_single, probe
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load_config

HERE = "tests.envs.argument_envs:"
SCALED = {"gymnasium.wrappers:TransformReward": {"func": {"python": f"{HERE}tenth"}}}


@pytest.mark.parametrize("shape", [[4, 6], {"tuple": [4, 6]}], ids=["list", "form"])
def test_a_list_becomes_a_tuple_where_one_is_required(shape: Any) -> None:
    assert probe(EnvSection(id=f"{HERE}Camera", kwargs={"shape": shape})).observation.shape == (4, 6)
    reshaped = {"gymnasium.wrappers:ReshapeObservation": {"shape": [2, 32]}}
    assert probe(EnvSection(id=f"{HERE}Camera", wrappers=(reshaped,))).observation.shape == (2, 32)


def test_functions_classes_and_dtypes_are_named() -> None:
    dtype = {"dtype": {"python": "numpy:float32"}}
    assert probe(EnvSection(id=f"{HERE}Camera", kwargs=dtype)).observation.dtype == "float32"
    env = make_single(EnvSection(id=f"{HERE}Camera", wrappers=(SCALED,)))
    env.reset(seed=1)
    assert env.step(0)[1] == pytest.approx(0.3)


def test_an_annotation_is_enough() -> None:
    entry = {f"{HERE}Sized": {"size": [2, 3], "scale": {"python": f"{HERE}tenth"}}}
    env: Any = make_single(EnvSection(wrappers=(entry,)))
    assert env.size == (2, 3)


def test_the_forms_are_written_in_files_and_flags() -> None:
    flags = ["env.kwargs.dtype={python: 'numpy:float32'}", "env.kwargs.shape={tuple: [2, 2]}"]
    config = load_config("cartpole-ppo", overrides=[f"env.id={HERE}Camera", *flags], workers=1)
    assert probe(config.env).observation.dtype == "float32"
    config = load_config("cartpole-ppo", overrides=[f"evaluator.env.wrappers=[{{'{HERE}Sized': {{size: [1]}}}}]"])
    assert config.scored_env.wrappers == ({f"{HERE}Sized": {"size": [1]}},)


@pytest.mark.parametrize(
    ("func", "what"),
    [
        ("lambda r: 0.1 * r", "'lambda r: 0.1 * r' is text, not a function"),
        (f"{HERE}tenth", f"'{HERE}tenth' is text, not a function"),
        (
            {"python": f"{HERE}tenths"},
            f"{{python: '{HERE}tenths'}}: module '{HERE[:-1]}' has no 'tenths'; did you mean 'tenth'?",
        ),
        ({"python": "absent_module:f"}, "{python: 'absent_module:f'}: No module named 'absent_module'"),
    ],
)
def test_what_is_refused(func: Any, what: str) -> None:
    with raises(ConfigError, key=("env", "wrappers"), what=f"'gymnasium.wrappers:TransformReward': func: {what}"):
        probe(EnvSection(wrappers=({"gymnasium.wrappers:TransformReward": {"func": func}},)))


def test_text_of_other_meanings_stays_text() -> None:
    env: Any = make_single(EnvSection(id=f"{HERE}Port", kwargs={"number": "{index}", "name": "sim-{index} {x}"}))
    assert env.name == f"sim-{env.variable} {{x}}"
    assert VARIABLE not in os.environ
    env.close()


def numbered() -> EnvSection:
    return EnvSection(id=f"{HERE}Port", kwargs={"number": "{index}"})


@pytest.mark.whole
def test_copies_have_numbers_of_their_own_over_processes() -> None:
    section = numbered()
    envs: list[Any] = [make_single(section) for _ in range(3)]
    assert len({env.variable for env in envs}) == 3
    code = "from tests.envs.test_arguments import make_single, numbered\nprint(make_single(numbered()).variable)"
    other = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert other.stdout.strip() not in {env.variable for env in envs}
    for env in envs:
        close_env(env)


def test_an_env_that_cannot_be_made_holds_no_number() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(AssertionError):
        make_single(EnvSection(id=f"{HERE}Camera", kwargs={"shape": 3}))
    assert os.listdir("/proc/self/fd") == before


def test_a_number_is_free_once_its_env_was_closed() -> None:
    before = os.listdir("/proc/self/fd")
    env = make_single(numbered())
    assert os.listdir("/proc/self/fd") != before
    close_env(env)
    assert os.listdir("/proc/self/fd") == before
