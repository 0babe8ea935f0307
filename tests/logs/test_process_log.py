"""Lines of a process log have time, level and module, whatever the user's modules configure."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.waiting import WAIT_S

LINES = """
import logging, sys
from zmqrl.logs.process_log import log_to_stderr
log_to_stderr(sys.argv[1] or None)
logging.basicConfig(level="CRITICAL", force=True)
for level in ("debug", "info", "warning"):
    getattr(logging.getLogger("zmqrl.agent.host_agent"), level)("it is %s", level)
logging.getLogger("other").warning("of another package")
"""
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (\w+) zmqrl\.agent\.host_agent: it is (\w+)")


@pytest.mark.parametrize(
    ("level", "shown"),
    [("", ["info", "warning"]), ("debug", ["debug", "info", "warning"]), ("ERROR", []), ("x", ["info", "warning"])],
)
def test_levels(level: str, shown: list[str]) -> None:
    command = [sys.executable, "-c", LINES, level]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True).stderr.splitlines()
    found = [match.groups() for line in lines if (match := LINE.fullmatch(line))]
    assert found == [(name.upper(), name) for name in shown]
    assert len(lines) == len(found)
