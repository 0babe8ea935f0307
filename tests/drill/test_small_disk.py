"""A disk that can be filled, and what lies there once it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import ROOT
from tests.support.waiting import WAIT_S

FILL_AND_FAIL = """
import errno, sys
from pathlib import Path
from zmqrl.drill.small_disk import fill, release, small_disk
folder = Path(sys.argv[1])
with small_disk(folder):
    (folder / "kept").write_text("x")
    fill(folder)
    try:
        (folder / "more").write_bytes(bytes(4096))
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
    release(folder)
    (folder / "later").write_text("y")
    raise KeyboardInterrupt
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_refuses_writes_and_its_files_stay_after_an_interrupt(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", FILL_AND_FAIL, folder], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stdout == "ENOSPC\n", done.stderr
    assert "KeyboardInterrupt" in done.stderr
    assert {path.name: path.read_text() for path in folder.iterdir() if path.name != "more"} == {
        "kept": "x",
        "later": "y",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
