"""What every command has in common: one message, an exit code, and no waiting for imports."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.support.waiting import WAIT_S
from zmqrl.cli.main import COMMANDS
from zmqrl.cli.start.start_options import MODES
from zmqrl.types import MODES as KNOWN_MODES

HEAVY = ("numpy", "torch", "zmq", "gymnasium", "pydantic", "rich", "matplotlib", "tensorboard", "yaml")
IN_A_COMMAND = """
import os, subprocess, sys
from zmqrl.cli.main import main
seen, sys.argv[1:] = sys.argv[1], ["version"]
try: main()
except SystemExit: pass
assert [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)] == [0, 1, 2]
names = "import os, sys; print(*(os.readlink(f'/proc/self/fd/{n}') for n in range(3)), file=open(sys.argv[1], 'w'))"
subprocess.run([sys.executable, "-c", names, seen], check=True)
"""


def test_help_names_every_command(zmqrl: Command) -> None:
    shown = zmqrl("--help")
    assert shown.code == 0
    assert all(f"\n  {name} " in shown.out for name in COMMANDS)


@pytest.mark.parametrize("group", [(), ("config",), ("queue",), ("sweep",)])
def test_help_shows_whole_summaries_of_commands(zmqrl: Command, group: tuple[str, ...]) -> None:
    _, *lines = zmqrl(*group, "--help").out.splitlines()  # the first is the usage, which may end in ARGS...
    assert lines
    assert not [line for line in lines if line.endswith("...")]


def test_version_as_a_command_and_as_an_option(zmqrl: Command) -> None:
    assert zmqrl("version").out == zmqrl("--version").out == f"zmqrl, version {version('zmqrl')}\n"


def test_without_a_command_there_is_help(zmqrl: Command) -> None:
    shown = zmqrl()
    assert shown.code == 2
    assert shown.err.startswith("Usage: ")


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; sys.argv[1:] = ['-h']; from zmqrl.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
    code += f"print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.whole
def test_a_reader_that_has_read_enough_is_not_a_failure() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "zmqrl", "presets"],
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=WAIT_S,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [(0, 1, 2), (1,), (0, 2)])
def test_closed_standard_descriptors_are_the_null_device(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """Also those of child processes. A socket would get their numbers, and `sys.stdout` would be None."""
    closing = " ".join(f"{number}>&-" for number in closed)
    command = ["sh", "-c", f'exec "$0" -c "$1" "$2" {closing}', sys.executable, IN_A_COMMAND, tmp_path / "seen"]
    subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=WAIT_S, check=True)
    seen = (tmp_path / "seen").read_text().split()
    assert [name == os.devnull for name in seen] == [number in closed for number in range(3)]


def test_a_character_that_the_terminal_does_not_have_is_replaced() -> None:
    """`status -f` draws with such characters, and paths may have any."""
    code = "import sys; from zmqrl.cli.main import main; sys.argv[1:] = ['version']\n"
    code += "try: main()\nexcept SystemExit: print('\u2501')\n"
    environment = {**os.environ, "PYTHONIOENCODING": "iso8859-1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, timeout=WAIT_S, check=True
    )
    assert done.stdout.endswith(b"\n?\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(zmqrl: Command, name: str) -> None:
    shown = zmqrl(name, "--help")
    assert shown.code == 0
    assert "Usage:" in shown.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian", "cartpole-ppo"], "did you mean 'train'?"),
        (["save"], "did you mean `zmqrl export RUN DIR`?"),
        (["load"], "did you mean `zmqrl eval RUN`, or in Python `zmqrl.load_policy(RUN)`?"),
        (["predict"], "zmqrl.load_policy(RUN)"),
        (["ps"], "did you mean `zmqrl runs`?"),
        (
            ["train", "--env", "CartPole-v1", "--algo", "foo"],
            "zmqrl: --algo: unknown algorithm 'foo'; known: a2c, bc, ",
        ),
        (["xyzzy"], "No such command 'xyzzy'"),
        (["train"], "--resume RUN"),
        (["launch"], "Missing argument 'HOSTS'"),
        (["export", "RUN", "DIR"], "Missing option '--to'. Choose from: onnx, numpy"),
        (["train", "cartpole-ppo", "--workesr", "2"], "--workers"),
        (["train", "cartpole-ppo", "--seed", "x"], "'x' is not an integer"),
        (["plot", "x", "--smooth", "x"], "'--smooth': 'x' is not an integer, 1 or more\n"),
        (["doctor", "h.yaml", "--env-limit", "x"], "'--env-limit': 'x' is not a number from 1 to 60\n"),
        (["drill", "--for", "0s"], "more than 0"),
        (["train", "--resume", "--dry-run"], "--resume requires a value"),
        (["plot", "--metric", "--out", "x.png", "runs"], "--metric requires a value"),
        (["train", "--preset", "cartpole-ppo"], "unknown option --preset; write zmqrl train PRESET"),
        (["launch", "--hosts", "h.yaml"], "unknown option --hosts; write zmqrl launch HOSTS"),
        (["doctor", "--hosts", "h.yaml"], "unknown option --hosts; write zmqrl doctor HOSTS"),
        (["train", "cartpole-ppo", "--host", "a"], "zmqrl launch hosts.yaml"),
        (["train", "cartpole-ppo", "--out", "a"], "--run-dir DIR"),
        (
            ["import", "python", "cleanrl/ppo.py", "--env-id", "A-v0"],
            "unknown option --env-id; write the command line of",
        ),
        (["train", "--num-envs", "4", "--set", "a=1", "--", "--x"], "--set env.num_envs=VALUE"),
        (["train", "cartpole-ppo", "--seed", "-3", "--lr=-1"], "unknown option --lr; in zmqrl it is --set algorithm.l"),
        (["train", "cartpole-ppo", "--agent.batch_size", "64"], "in zmqrl it is --set algorithm.batch_size=VALUE"),
        (["train", "cartpole-ppo", "--algorithm.gamma", "1"], "in zmqrl it is --set algorithm.gamma=VALUE\n"),
        (["train", "cartpole-ppo", "--train.load_path", "a"], "--resume DIR"),
        (["train", "cartpole-ppo", "--eval"], "zmqrl eval RUN"),
        (["eval", "--on", "a", "RUN"], "zmqrl: unknown option --on; see zmqrl eval --help\n"),
        (["logs", "--tail", "3"], "zmqrl: unknown option --tail; see zmqrl logs --help\n"),
        (["config", "keys", "--foo"], "see zmqrl config keys --help"),
        (["export", "RUN", "DIR", "extra", "--to", "onnx"], "unexpected argument 'extra'; see zmqrl export --help"),
        (["stop", "--wait", "--json"], "no active run"),
        (["help"], "did you mean `zmqrl --help`?"),
        (["compare"], "did you mean `zmqrl plot RUN RUN`?"),
        (["attach"], "did you mean `zmqrl status -f RUN`?"),
        (["restart"], "did you mean `zmqrl train --resume DIR`?"),
        (["train", "cartpole-ppo", "--seeds", "0"], "--seeds"),
        (["train", "cartpole-ppo", "--seeds", "2", "--detach"], "--detach"),
        (["train", "cartpole-ppo", "--resume", "a", "--run-dir", "b"], "--run-dir"),
        (["train", "cartpole-ppo", "--limit", "node1"], "node1"),
        (["train", "cartpol-ppo"], "did you mean 'cartpole-ppo'?"),
        (["train", "cartpole-ppo", "--set", "run.seed", "3"], "--set run.seed 3: write --set run.seed=3"),
        (["train", "--env", "CartPole-v1", "--set", "run.seed", "3"], "write --set run.seed=3"),
        (["launch", "hosts.yaml", "--set", "run.seed", "=", "3"], "write --set run.seed=3"),
        (["train", "cartpole-ppo", "--set", "run.seed", "--plain"], "--set run.seed: write --set key=value"),
        (["train", "cartpole-ppo", "run.seed=3"], "unexpected argument 'run.seed=3'; write --set run.seed=3"),
        (["train", "PPO", "CartPole-v1"], "write zmqrl train --env CartPole-v1 --algo ppo"),
        (["train", "my_envs:Walk", "dqn"], "write zmqrl train --env my_envs:Walk --algo dqn"),
        (["train", "cartpole", "PPO"], "write zmqrl train cartpole-ppo"),
        (["train", "cartpole-ppo", "cartpole-dqn"], "unexpected argument 'cartpole-dqn'; see zmqrl train --help"),
        (["launch", "hosts.yaml", "3"], "unexpected argument '3'; see zmqrl launch --help"),
        (["train", "cartpole-ppo", "--set", "run.sead=2"], "seed"),
        (
            ["train", "cartpole-ppo", "--dry-run", "--set", "store.path=s3://b/runs"],
            "store.path: 's3://b/runs': expected a directory; to copy the run to a URL while it trains, write store: ",
        ),
        (["train", "cartpole-ppo", "--mode", "turbo"], "turbo"),
        (["launch", "nowhere.yaml"], "nowhere.yaml"),
        (["status"], "no run"),
        (["status", "nowhere"], "nowhere"),
        (["stop", "nowhere"], "nowhere"),
        (["eval", "nowhere"], "nowhere"),
        (["plot", "nowhere"], "nowhere"),
        (["bench", "nothing"], "'nothing'"),
        (["bench", "bus", "--sb3-python", "x"], "e2e"),
    ],
)
def test_invalid_arguments_give_one_message_and_exit_2(zmqrl: Command, arguments: list[str], says: str) -> None:
    ended = zmqrl(*arguments)
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.startswith("zmqrl: ")
    assert ended.err.count("\n") == 1
    assert ended.out == ""
    assert os.listdir() == []


def test_the_modes_are_those_of_the_types() -> None:
    assert tuple(KNOWN_MODES) == MODES


@pytest.mark.whole
def test_the_command_began_when_its_interpreter_did() -> None:
    """Not when its shell did, which executes its last command in its own place: `run.max_wall_s` counts from there."""
    code = (
        "import time; before = time.time(); from zmqrl.cli.main import _started_at\n"
        "print(_started_at() - before, time.time() - before)"
    )
    command = f"sleep 3; {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=WAIT_S, check=True)
    began, imported = map(float, done.stdout.split())
    assert -2.9 < began < imported - 0.01


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("-p CartPole_ClippedPPO -n 4 -dc", ["zmqrl train PRESET", "--workers N", "zmqrl launch hosts.yaml"]),
        ("--config config.dqn.cartpole --async", ["zmqrl import FILE", "--mode async"]),
        (
            "--env-id A-v0 --total-timesteps 9 --lr=-1 --track --lr 2",
            ["--env ID", "env_steps=", "learning_rate=", "json"],
        ),
        ("-n -1 --set --bogus=1", ["--workers N"]),
    ],
)
def test_all_unknown_options_are_named_one_a_line(zmqrl: Command, line: str, names: list[str]) -> None:
    ended = zmqrl("train", *line.split())
    lines = ended.err.splitlines()
    assert (ended.code, len(lines)) == (2, len(names))
    assert [name for name, answer in zip(names, lines, strict=True) if name not in answer] == []


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_interrupted_before_there_is_a_run(signal_name: str) -> None:
    code = "import os, signal; from zmqrl.cli import main\n"
    code += f"main.cli.main = lambda **_: os.kill(os.getpid(), signal.{signal_name}) or signal.pause()\nmain.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (130, "zmqrl: interrupted\n")
