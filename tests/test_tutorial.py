"""The commands and files of docs/tutorial run as they are written, in one folder per page.

`bin/test` ends trainings that the page ends by their return after `SHORT`; `make test-long` runs them to their end.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.marks import long
from tests.support.running import ROOT, RUN_S, environment

pytestmark = pytest.mark.whole
PAGES = {path.stem: path for path in sorted((ROOT / "docs" / "tutorial").glob("*.md"))}
FURTHER = {"own-network"}
"""tests/system/user_code/test_module_network.py trains a module too."""
FILE = re.compile(r"^```(?:python|yaml)\n# (?P<name>[\w./]+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(?P<lines>.*?)^```", re.MULTILINE | re.DOTALL)
SHORT = ("--set", "run.total_env_steps=3000")
PROGRAMS = {"zmqrl": [sys.executable, "-m", "zmqrl"], "python": [sys.executable]}


@pytest.mark.parametrize(("name", "shortened"), [
    *((long if name in FURTHER else pytest.param)(name, True, id=name) for name in PAGES),
    *(long(name, False, id=f"{name}, in full") for name in PAGES),
])  # fmt: skip
def test_a_page_runs_from_top_to_bottom(name: str, shortened: bool, tmp_path: Path) -> None:
    text = PAGES[name].read_text()
    for file in FILE.finditer(text):
        (tmp_path / file["name"]).write_text(file["text"])
    lines = [line for block in COMMANDS.finditer(text) for line in block["lines"].splitlines()]
    assert lines, f"{name} has no command"
    for line in lines:
        program, *words = shlex.split(line)
        ends_by_return = words[0] == "train" and "--resume" not in words and "run.total_env_steps" not in line
        argv = [*PROGRAMS[program], *words, *(SHORT if shortened and ends_by_return else ())]
        done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=RUN_S)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
