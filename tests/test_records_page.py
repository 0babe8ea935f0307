"""docs/records.md: the systemd unit is valid, and its command is one that zmqrl accepts."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S

PAGE = Path(__file__).parents[1] / "docs" / "records.md"


def unit() -> str:
    found = re.search(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_valid(tmp_path: Path) -> None:
    text = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit()).replace("%h/lab", str(tmp_path))
    file = tmp_path / "zmqrl.service"
    file.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "zmqrl.service" in line] == []


def test_its_command_is_accepted(tmp_path: Path) -> None:
    command = re.search(r"ExecStart=\S+ (.*)", unit())
    assert command is not None
    arguments = [sys.executable, "-m", "zmqrl", *shlex.split(command[1]), "--dry-run"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run directory" in done.stdout
