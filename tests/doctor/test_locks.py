"""Lock files are believed as far as the kernel confirms them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from zmqrl.doctor.locks import held_locks
from zmqrl.supervision.process_table import identify


def write(folder: Path, name: str, **changed: Any) -> None:
    me = identify(os.getpid())
    assert me is not None
    held = {"run_id": name, "pid": me.pid, "start_time": me.start_time, "user": "somebody", "uid": 12345}
    (folder / f"{name}.json").write_text(json.dumps({**held, "since": time.time() - 60, "workers": 3, **changed}))


def test_a_live_process_holds_its_lock_and_its_user_is_the_kernels(tmp_path: Path) -> None:
    write(tmp_path, "run-1")
    write(tmp_path, "run-0", since=time.time() - 3600, workers=[4, 5])
    first, second = held_locks(tmp_path)
    assert (first.run_id, second.run_id) == ("run-0", "run-1")
    assert first.own and first.pid == os.getpid() and first.user != "somebody"
    assert (first.workers, second.workers) == (2, 3)
    assert second.age_s is not None and 59 < second.age_s < 120


@pytest.mark.parametrize(
    "changed", [{"start_time": 1}, {"pid": 2**22 + 1}, {"pid": "x"}, {"run_id": None, "pid": None}]
)
def test_what_is_dead_or_makes_no_sense_is_no_lock(tmp_path: Path, changed: dict[str, Any]) -> None:
    write(tmp_path, "run-2", **changed)
    (tmp_path / "torn.json").write_text('{"run_id": "run-3"')
    (tmp_path / "list.json").write_text("[]")
    assert held_locks(tmp_path) == ()


def test_no_folder_is_no_lock(tmp_path: Path) -> None:
    assert held_locks(tmp_path / "none") == ()
