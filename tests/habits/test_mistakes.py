"""Users of Stable-Baselines3, CleanRL and RLlib: a message names what zmqrl has in place of what they wrote."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import yaml

import zmqrl as package
from tests.cli.commands import Command
from tests.cli.conftest import empty_directory as empty_directory
from tests.cli.conftest import zmqrl as zmqrl


@dataclass(frozen=True)
class Mistake:
    """An entry of the file; `names`: what the message has to name."""

    origin: str
    text: str
    """The command line or the call."""
    file: str | None
    names: tuple[str, ...]

    @property
    def is_call(self) -> bool:
        return not self.text.startswith("zmqrl ")


def _mistakes() -> list[Mistake]:
    entries: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())
    return [
        Mistake(entry["from"], entry.get("command") or entry["call"], entry.get("file"), tuple(entry["names"]))
        for entry in entries
    ]


MISTAKES = _mistakes()
POLICY = get_type_hints(package.load_policy)["return"]


def _is_named(name: str, text: str) -> bool:
    """Whether `name` is in the text, not as a part of a longer name."""
    return re.search(rf"(?<!\w){re.escape(name)}(?![\w-])", text) is not None


def test_there_are_40_and_none_has_its_answer_in_it() -> None:
    assert len(MISTAKES) == 40
    assert {mistake.origin for mistake in MISTAKES} == {"sb3", "cleanrl", "rllib"}
    for mistake in MISTAKES:
        assert not all(_is_named(name, f"{mistake.text} {mistake.file}") for name in mistake.names), mistake.text


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.text)
def test_the_message_names_what_is_right(mistake: Mistake, zmqrl: Command) -> None:
    message = _of_call(mistake.text) if mistake.is_call else _of_command(mistake, zmqrl)
    assert len(message.splitlines()) == 1, message
    # Quoted back, the mistake is no answer.
    answer = message.replace(mistake.text.removeprefix("zmqrl "), "")
    assert [name for name in mistake.names if not _is_named(name, answer)] == [], message
    assert not Path("runs").exists()


def _of_command(mistake: Mistake, zmqrl: Command) -> str:
    if mistake.file is not None:
        Path("hosts.yaml").write_text(mistake.file)
    ended = zmqrl(*shlex.split(mistake.text)[1:])
    assert (ended.code, ended.out) == (2, "")
    return ended.err


def _of_call(text: str) -> str:
    names = {"zmqrl": package, "policy": object.__new__(POLICY), "obs": np.zeros(4, np.float32)}
    with pytest.raises(Exception) as caught:
        exec(text, names)  # noqa: S102  # of mistakes.yaml
    return str(caught.value)
