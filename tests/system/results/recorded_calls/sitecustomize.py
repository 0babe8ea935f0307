"""On PYTHONPATH: every process of a run writes down the functions of zmqrl that its main thread enters and leaves."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import TextIO

FOLDER = "ZMQRL_RECORDED_CALLS"
BATCH = 256
"""Lines that are written at once; what remains of a process that ends is of its end, not of a round."""


def record(folder: str) -> None:
    """Lines `call MODULE FUNCTION` and `return`, in `folder/<pid>`; a fork begins its own file."""
    lines: list[str] = []

    def begin() -> None:
        nonlocal file
        lines.clear()
        file = open(os.path.join(folder, str(os.getpid())), "w", encoding="utf-8")  # noqa: SIM115 - until the end

    def on_event(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "return") and frame.f_globals.get("__name__", "").startswith("zmqrl."):
            lines.append(f"{event} {frame.f_globals['__name__']} {frame.f_code.co_name}\n")
            if len(lines) == BATCH:
                file.write("".join(lines))
                file.flush()
                lines.clear()

    file: TextIO
    begin()
    os.register_at_fork(after_in_child=begin)
    sys.setprofile(on_event)


if FOLDER in os.environ:
    record(os.environ[FOLDER])
