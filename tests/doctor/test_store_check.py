"""A token in the store: found by name and content, in what exists of the path."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S
from zmqrl.doctor.machine import forget, prepare, watch, write
from zmqrl.messages.doctor_requests import Forget, Watch, Write


def request(path: Path | str, up: int = 0, limit_s: float = 5.0) -> Watch:
    return Watch(str(path), up, ".token", "right", limit_s)


def test_it_is_found_once_written_and_then_removed(tmp_path: Path) -> None:
    assert prepare(request(tmp_path)).error is None
    writer = threading.Timer(0.1, lambda: write(Write(str(tmp_path), ".token", "right")))
    begun = time.time()
    writer.start()
    seen = watch(request(tmp_path, limit_s=WAIT_S))
    writer.join()
    assert seen.time_s is not None and begun + 0.1 < seen.time_s <= time.time()
    forget(Forget(str(tmp_path), ".token"))
    assert list(tmp_path.iterdir()) == []
    forget(Forget(str(tmp_path), ".token"))


def test_the_same_name_with_another_content_is_another_directory(tmp_path: Path) -> None:
    (tmp_path / ".token").write_text("wrong")
    assert watch(request(tmp_path, limit_s=0.05)).time_s is None


def test_what_exists_of_a_path_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(Write(str(tmp_path), ".token", "right"))
    assert watch(request("~/new/run", up=2)).time_s is not None
    assert prepare(request("~/new/run", up=1)).error == f"{tmp_path}/new: No such file or directory"


def test_a_failed_write_is_reported(tmp_path: Path) -> None:
    assert (
        write(Write(str(tmp_path / "none"), ".token", "right")).error == f"{tmp_path}/none: No such file or directory"
    )
