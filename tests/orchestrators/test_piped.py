"""Programs behind a command of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from zmqrl.orchestrators.piped import PipedProcess

END_S = 10.0
MISSES_SIGTERM = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begins", flush=True)
sys.stdin.read()
"""


def test_a_command_that_misses_sigterm_ends_with_its_stdin(tmp_path: Path) -> None:
    process = PipedProcess("guest1", [sys.executable, "-c", MISSES_SIGTERM], tmp_path / "log")
    try:
        assert next(iter(process.lines())) == "begins"
        process.terminate()
        assert process.exit_status(END_S) == 0
        process.terminate()
    finally:
        process.close()
