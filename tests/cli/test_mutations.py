"""The example file with typing errors: the command says what is wrong, or plans the run; it never falls over."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.support.marks import long
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import to_json
from zmqrl.planning.configure import load_config

EXAMPLE = Path(__file__).parents[2] / "hosts.example.yaml"
MUTATIONS, PARTS = 100, 4
CHARACTERS = "{}[]:,#&*!|>'\"%@`-0 9ax\t\n~"
VALUES = ("null", "-1", "0", "1e9", ".inf", "[]", "{}", "true", "'x'", "auto", "1e-400", "&a", "!x", "9" * 30)


def mutated(rng: random.Random) -> str:
    """One to three edits of a kind that a hand makes: a character, a line, a value."""
    text = EXAMPLE.read_text()
    for _ in range(rng.randint(1, 3)):
        at, kind, lines = rng.randrange(len(text)), rng.randrange(6), text.split("\n")
        row = rng.randrange(len(lines))
        if kind == 0:
            text = text[:at] + text[at + rng.randint(1, 4) :]
        elif kind == 1:
            text = text[:at] + rng.choice(CHARACTERS) + text[at:]
        elif kind == 2:
            text = "\n".join(lines[:row] + lines[row + 1 :]) or "\n"
        elif kind == 3:
            text = "\n".join([*lines[:row], lines[row], *lines[row:]])
        else:
            words = [word for word in text.replace(",", " ").replace("}", " ").split() if word.strip("{}:")]
            text = text.replace(rng.choice(words), rng.choice(VALUES), 1)
    return text


@pytest.mark.whole
@pytest.mark.parametrize("part", [0, 1, *map(long, range(2, PARTS))])
def test_a_mutated_file_is_refused_in_one_message_or_planned(zmqrl: Command, part: int) -> None:
    rng, codes = random.Random(part), []
    for _ in range(MUTATIONS // PARTS):
        Path("hosts.yaml").write_text(mutated(rng))
        ended = zmqrl("launch", "hosts.yaml", "--dry-run")
        codes.append(ended.code)
        if ended.code == 0:
            assert ended.err == ""
            assert to_json(load_config(hosts_file=Path("hosts.yaml")))["run"]["mode"] in ended.out
        else:
            assert ended.code == 2, Path("hosts.yaml").read_text()
            assert ended.err.startswith("zmqrl: ") and ended.err.count("\n") == 1, ended.err
            assert ended.out == ""
    assert {0, 2} == set(codes)
    assert os.listdir() == ["hosts.yaml"]


@pytest.mark.parametrize(
    "text", ["run: [", "run: {sead: 1}", "env: {num_envs: 99999999999999999999}", "learner: {host: far}", "\0"]
)
@pytest.mark.whole
def test_a_fault_in_a_process_of_its_own(text: str) -> None:
    Path("hosts.yaml").write_text(text)
    command = [sys.executable, "-m", "zmqrl", "launch", "hosts.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("zmqrl: ") and done.stderr.count("\n") == 1, done.stderr
    assert os.listdir() == ["hosts.yaml"]
