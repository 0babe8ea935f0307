"""A process with a name that is not valid UTF-8: the kernel cuts names after 15 bytes, also within a letter."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import until

NAME = "программа"


@contextmanager
def process_with_cut_name(folder: Path) -> Iterator[int]:
    """Its pid, in a session of its own; it ends with the block."""
    program = folder / NAME
    shutil.copy(shutil.which("sleep") or "sleep", program)
    with subprocess.Popen([program, "60"], start_new_session=True) as process:
        try:
            until(lambda: Path(f"/proc/{process.pid}/comm").read_bytes().strip() == NAME.encode()[:15], "its name")
            yield process.pid
        finally:
            process.kill()
