"""The pids of a process in the pid namespaces of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.cut_name import process_with_cut_name
from zmqrl.supervision.host_mark import pid_outside


def test_a_name_that_is_not_valid_utf_8(tmp_path: Path) -> None:
    with process_with_cut_name(tmp_path):
        assert pid_outside(os.getpid(), 0, os.getuid()) is None, "no process of this start time"
