"""User code that ends, blocks or changes its process, or returns what it must not, by whole commands.

Each class has the inputs of public reports (`tests/user_code/NAME`), and one that differs in more than names
(`tests/user_code/seconds`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.running import environment
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.whole

FILES = Path(__file__).parents[2] / "user_code"
SYNC = ("--mode", "sync", "--workers", "1")
ASYNC = ("--mode", "async", "--workers", "1")
SINGLE = ("--mode", "single")
SHORT = ("run.total_env_steps=300", "evaluator.episodes=0", "limits.start_s=60")
DONE, FAILED, REFUSED = 0, 1, 2


@dataclass(frozen=True)
class Case:
    """A command `zmqrl train`, its exit code, and words of its output."""

    folder: str
    train: Sequence[str]
    code: int = DONE
    prints: Sequence[str] = ()
    mode: Sequence[str] = SYNC
    sets: Sequence[str] = field(default=())

    def __str__(self) -> str:
        return "-".join([self.folder, self.train[-1].rpartition("/")[2], *self.sets, self.mode[1]])


def of_env(folder: str, env_id: str, *sets: str, algo: str = "ppo", **fields: Any) -> Case:
    """A case of `--env`."""
    return Case(folder, ("--algo", algo, "--env", env_id), sets=sets, **fields)


def of_preset(folder: str, *sets: str, **fields: Any) -> Case:
    """A case of the preset for CartPole."""
    return Case(folder, ("cartpole-ppo",), sets=sets, **fields)


def of_file(folder: str, file: str, *sets: str, **fields: Any) -> Case:
    """A case of a YAML file."""
    return Case(folder, (str(FILES / folder / file),), sets=sets, **fields)


ENDS = [
    of_env("sys-exit", "exits:Exits", "env.kwargs.where=init", code=REFUSED, prints=["sys.exit", "exits.py:20"]),
    of_env("sys-exit", "exits:Exits", "env.kwargs.at=3", code=REFUSED, prints=["called sys.exit(0)", "exits.py:20"]),
    of_env(
        "sys-exit",
        "exits:Exits",
        "env.kwargs={at: 3, how: keyboard}",
        code=REFUSED,
        prints=["step raised KeyboardInterrupt", "exits.py:21"],
    ),
    of_env(
        "sys-exit",
        "exits:Exits",
        "env.kwargs.at=300",
        "run.total_env_steps=2000",
        mode=SINGLE,
        prints=["step called sys.exit(0)", "exits.py:20", "restarts 1", "2,928 env steps"],
    ),
    long(
        of_env(
            "sys-exit",
            "CartPole-v1",
            "run.total_env_steps=20000",
            "learner.executor=eager",
            algo="quit_algo:Quit",
            code=FAILED,
            prints=["SystemExit", "quit_algo.py:", "in learn"],
        )
    ),
    of_env(
        "seconds",
        "simulators:Ends",
        "run.total_env_steps=2000",
        "restart.max=1",
        code=FAILED,
        prints=["exited with code 0"],
    ),
    long(
        of_preset(
            "seconds",
            "env.wrappers=[simulators:Leaves]",
            "run.total_env_steps=2000",
            prints=["called sys.exit('licence has expired')", "simulators.py:"],
        )
    ),
]
WRONG = {"code": REFUSED}
VALUES = [
    *(
        of_env("step-dtype", "odd_dtype:Steps", f"env.kwargs.what={what}", prints=[words, "odd_dtype.py:"], **WRONG)
        for what, words in (
            ("fraction", "an observation of dtype float32, its space has dtype uint8"),
            ("large", "an observation with 300, its space has dtype uint8"),
            ("negative", "an observation with -200, its space has dtype int8"),
            ("nan", "an observation of dtype float32, its space has dtype uint8"),
        )
    ),
    of_env("step-dtype", "odd_dtype:Steps", "env.frame_stack=4", prints=["of dtype float32"], **WRONG),
    *(
        of_env("seconds", "spaces_env:Parts", f"env.kwargs.what={what}", prints=[words, "spaces_env.py:"], **WRONG)
        for what, words in (
            ("nan", "part '0' of the observation has NaN"),
            ("float", "part '1.image' of an observation of dtype float64, its space has dtype uint8"),
            ("large", "part '1.image' of an observation with 256"),
            ("float kind", "part '1.kind' of an observation 1.5, which is not a whole number"),
            ("kind", "part '1.kind' of an observation 3, which is outside of its space"),
            ("object", "step returned the reward array(['1'], dtype=object)"),
            ("tuple", "step returned truncated (False,)"),
            ("text", "step returned truncated 'False'"),
        )
    ),
    *(
        of_env("reward-forms", "rewards:R", f"env.kwargs.reward={kind}", prints=[words, "rewards.py:"], **WRONG)
        for kind, words in (
            ("array2", "step returned a reward of shape (2,)"),
            ("list", "step returned the reward [1.0]"),
            ("none", "step returned the reward None"),
            ("text", "step returned the reward '1.0'"),
            ("complex", "step returned the reward (1+0j)"),
        )
    ),
    of_env("reward-forms", "rewards:R", "env.kwargs.done=list", prints=["step returned terminated [False]"], **WRONG),
    of_env("reward-forms", "rewards:R", "env.kwargs.done=array2", prints=["terminated of shape (2,)"], **WRONG),
    *(
        of_env("odd-spaces", "odd:Odd", f"env.kwargs.act={act}", algo=algo, prints=["bounds"], **WRONG)
        for algo in ("sac", "td3")
        for act in ("max", "max64", "equal")
    ),
    *(
        of_env("seconds", "spaces_env:Bounds", f"env.kwargs.how={how}", algo="sac", **WRONG)
        for how in ("wide", "equal")
    ),
    of_env("parallel-agents", "agents:Mortal", "env.kwargs.how=noreward", "env.num_envs=6", prints=["'a1'"], **WRONG),
    of_env(
        "parallel-agents", "agents:Mortal", "env.kwargs.how=reborn", "env.num_envs=6", prints=["came back"], **WRONG
    ),
    of_env("parallel-agents", "agents:Mortal", "env.kwargs.how=dies", "env.num_envs=6"),
]
HANGS = [
    mark(
        of_env(
            folder,
            env_id,
            *sets,
            f"limits.start_s={start_s}",
            prints=["still waiting for", f"not finished within limits.start_s ({start_s} s)", place],
            **WRONG,
        )
    )
    for mark, folder, env_id, sets, place, start_s in (
        (pytest.param, "hanging-close", "hangs:Base", ("env.kwargs.where=close",), "hangs.py:27, in close", 6),
        (long, "hanging-close", "hangs:Base", ("env.kwargs.where=init",), "hangs.py:14, in __init__", 8),
        (long, "seconds", "hanging_import:Env", (), "hanging_import.py:8", 8),
    )
]
"""tests/supervision/test_check_process.py has each place of a hang."""
SMALL = (
    *(f"env.{key}" for key in ("vector_envs=2", "num_envs=2", "segment_steps=32")),
    *(f"algorithm.{key}" for key in ("epochs=1", "minibatch_size=64")),
)
RUDE = ("thread", "sigchld", "alarm", "signals", "chdir")
PROCESS = [
    of_env("rude-env", "rude:Rude", f"env.kwargs.how={'+'.join(RUDE)}", "limits.grace_s=3"),
    *(long(of_env("rude-env", "rude:Rude", f"env.kwargs.how={how}")) for how in RUDE),
    of_env("rude-env", "rude:Rude", "env.kwargs.how=child", *SMALL),
    of_file("envstate", "base.yaml", "env.kwargs.what=chdir+atexit+rlimit", mode=SINGLE),
    *(
        long(of_file("envstate", "base.yaml", f"env.kwargs.what={what}", mode=SINGLE))
        for what in ("chdir", "atexit", "daemon", "rlimit")
    ),
    of_file("envstate", "base.yaml", "env.kwargs.what=daemon", "env.kwargs.at=40"),
    *(
        long(
            of_file(
                "envstate", "base.yaml", f"env.kwargs.what={what}", "env.kwargs.at=40", mode=SINGLE, prints=["torch"]
            )
        )
        for what in ("dtype", "nograd")
    ),
    *(
        of_file("envstate", "base.yaml", f"env.kwargs.what={what}", mode=SINGLE, code=REFUSED, prints=[words])
        for what, words in (("exit0", "sys.exit"), ("_exit0", "exit code 0"), ("kbd", "KeyboardInterrupt"))
    ),
    long(of_file("envstate", "base.yaml", "env.id=argenv:Env", mode=SINGLE)),
    of_file("envstate", "base.yaml", "env.id=exitenv:Env", mode=SINGLE, code=REFUSED, prints=["exitenv.py:"]),
]
"""What an env does to its process comes in one run; `make test-long` has each alone."""
KEYS = [
    long(of_env("odd-spaces", "odd:Odd", "env.kwargs.act=asym", prints=["RescaleAction"])),
    long(
        of_preset(
            "stateful-wrappers",
            "env.wrappers=[gymnasium.wrappers:NormalizeObservation]",
            prints=["keeps state from episode to episode", "algorithm.normalise_obs"],
        )
    ),
    long(of_preset("seconds", "env.wrappers=[statistics_env:Scaled]", prints=["keeps state from episode to episode"])),
    long(of_env("state-methods", "named:Named")),
    of_env("seconds", "keys_env:HalfState", "env.recovery=state", prints=["set_state restores only a part"], **WRONG),
    of_file("wrapper-order", "limits.yaml"),
    of_file("wrapper-order", "order.yaml", prints=["RescaleAction", "unbounded"], **WRONG),
    of_file("wrapper-order", "video.yaml", prints=["moviepy"], **WRONG),
    long(
        of_preset(
            "seconds", 'env.wrappers=[{"gymnasium.wrappers:TransformReward": {func: {python: "keys_env:scaled"}}}]'
        )
    ),
    of_preset("seconds", "env.wrappers=[keys_env:needs_package]", prints=["pip install simpy"], **WRONG),
    long(
        of_env(
            "eval-kwargs",
            "levels:Levels",
            "evaluator.env.kwargs.first=1000",
            "evaluator.episodes=5",
            prints=["evaluated 20"],
        )
    ),
    long(
        of_env(
            "needs-index",
            "port_env:Port",
            'env.kwargs={base_port: 25100, worker_id: "{index}"}',
            "hosts.local.workers=2",
        )
    ),
    long(of_env("seconds", "keys_env:Locked", "hosts.local.workers=2", prints=["action_mask", "FromInfo"])),
    long(of_env("masks-elsewhere", "masks:Masked", prints=["zmqrl.envs.masks:FromMethod"])),
    long(
        of_env(
            "masks-elsewhere", "masks:Masked", "env.kwargs.strict=true", "env.wrappers=[zmqrl.envs.masks:FromMethod]"
        )
    ),
    of_env("custom-vector", "vec:Vec", prints=["run.mode: async"], **WRONG),
    long(of_env("custom-vector", "vec:Vec", "run.total_env_steps=2000", mode=ASYNC)),
    of_env("custom-vector", "vec:Vec", "env.kwargs.mode=same", mode=ASYNC, prints=["NEXT_STEP"], **WRONG),
    of_env("api-forms", "forms:Duck", prints=["gymnasium.Env"], **WRONG),
    of_env("api-forms", "forms:Config", prints=["env.kwargs", "config"], **WRONG),
    of_env("int-obs", "int_pole:IntPole", "algorithm.normalise_obs=true", prints=["DtypeObservation"], **WRONG),
    of_env("length-one", "bandit:Bandit"),
    of_preset("never-ends", "env.id=forever:Forever", prints=["env.max_episode_steps"]),
]


def _first(cases: Sequence[Case]) -> Iterator[Any]:
    """One command per env and exit code in `bin/test`: tests/envs/test_returned_values.py has each value."""
    seen = set()
    for case in cases:
        key = case.folder, case.train, case.code
        yield long(case) if key in seen else case
        seen.add(key)


CASES = [
    of_env("forked-check", "sim_envs:Simulator"),
    *(long(of_env("forked-check", f"sim_envs:{name}")) for name in ("Child", "Thread", "SamePid")),
    *(long(of_env("seconds", f"simulators:{name}")) for name in ("Socket", "Pool")),
    *ENDS,
    *_first(VALUES),
    *HANGS,
    *PROCESS,
    *KEYS,
]


def trained(folder: Path, case: Case) -> tuple[int, str, Path]:
    """Exit code, output and run directory of a command."""
    paths = os.pathsep.join(str(FILES / name) for name in (case.folder, "seconds"))
    sets = [word for key in (*SHORT, *case.sets) for word in ("--set", key)]
    words = [*case.train, *case.mode, *sets, "--plain", "--run-dir", "run"]
    env = environment({"PYTHONPATH": f"{environment()['PYTHONPATH']}{os.pathsep}{paths}"})
    done = subprocess.run(
        [sys.executable, "-m", "zmqrl", "train", *words],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * WAIT_S,
    )
    return done.returncode, done.stdout, folder / "run"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_input(tmp_path: Path, case: Case) -> None:
    code, output, run_dir = trained(tmp_path, case)
    assert code == case.code, output
    assert not [words for words in case.prints if words not in output], output
    if code == REFUSED:
        assert "/zmqrl/" not in output.replace(str(FILES), ""), "no traceback of zmqrl"
        assert not run_dir.exists(), "a refused configuration leaves nothing behind"
    else:
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["ledger"]["balanced"], summary["ledger"]
        assert "0 left" in output
