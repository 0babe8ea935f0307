"""docs/coming-from: what the pages name of zmqrl exists, and settings have the keys that `zmqrl import` writes."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest

import zmqrl
from tests.config.test_known_keys import EXISTING
from zmqrl.cli.main import cli
from zmqrl.config.foreign.aliases import KEYS, alias
from zmqrl.config.presets import presets
from zmqrl.config.sections import Config

FOLDER = Path(__file__).parents[1] / "docs" / "coming-from"
PAGES = sorted(page.name for page in FOLDER.glob("*.md"))
OF_LIBRARIES = [page for page in PAGES if "\n## Settings\n" in (FOLDER / page).read_text()]
"""The others are recipes."""
ROW = re.compile(r"^\| (.+?) \| (.+) \|$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
SECTION = "|".join(Config.__struct_fields__)
KEY = re.compile(rf"^({SECTION})\.[\w.]+$")
OF_A_RUN = ("train", "launch")
"""Commands that take an option which stands alone in a row."""


def rows(page: str) -> list[tuple[str, str]]:
    return [(there, here) for there, here in ROW.findall((FOLDER / page).read_text()) if not there.startswith("--")]


def spans(page: str) -> list[str]:
    """What is of zmqrl: the code of the second column and of the first lines."""
    head = (FOLDER / page).read_text().partition("\n## ")[0]
    return [span for text in (head, *(here for _, here in rows(page))) for span in SPAN.findall(text)]


def wrong_options(words: list[str], names: tuple[str, ...]) -> list[str]:
    """Options in `words` that none of the commands has, and keys of `--set` that do not exist."""
    commands = [cli.get_command(click.Context(cli), name) for name in names]
    known = {option for command in commands if command is not None for p in command.params for option in p.opts}
    keys = [word.partition("=")[0] for option, word in pairwise(words) if option == "--set"]
    options = [word for word in words if word.startswith("--")]
    return [word for word in options if word not in known] + [key for key in keys if key not in EXISTING]


def wrong_command(text: str) -> list[str]:
    """What of `zmqrl ...` does not exist."""
    _, *words = shlex.split(text)
    name = words[0]
    if cli.get_command(click.Context(cli), name) is None:
        return [text]
    preset = words[1] if name == "train" and len(words) > 1 else ""
    unknown = [preset] if re.match(r"[a-z]+-", preset) and preset not in presets() else []
    return unknown + wrong_options(words, (name,))


@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_names_exists(page: str) -> None:
    wrong: list[str] = []
    for span in spans(page):
        if span.startswith("zmqrl "):
            wrong += wrong_command(span)
        elif span.startswith("--"):
            wrong += wrong_options(shlex.split(span), OF_A_RUN)
        elif KEY.match(span):
            wrong += [span] if span.replace("hosts.NAME", "hosts.local") not in EXISTING else []
        wrong += [name for name in re.findall(r"\bzmqrl\.(\w+)\(", span) if not hasattr(zmqrl, name)]
    assert wrong == []
    assert page not in OF_LIBRARIES or len(rows(page)) > 20


@pytest.mark.parametrize("page", OF_LIBRARIES)
def test_its_settings_have_the_keys_that_the_import_has(page: str) -> None:
    settings = (FOLDER / page).read_text().partition("\n## Settings\n")[2].partition("\n## ")[0]
    compared = 0
    for there, here in ROW.findall(settings):
        for name in SPAN.findall(there):
            candidates = KEYS.get(alias(name), ((), ""))[0]
            named = [key for key in candidates if f"`{key.replace('hosts.local', 'hosts.NAME')}" in here]
            assert named or not candidates or "none:" in here, (name, candidates)
            compared += bool(named)
    assert compared > 10
