from __future__ import annotations

from pathlib import Path

import pytest

from zmqrl.metrics import jsonl as append_file
from zmqrl.metrics.jsonl import AppendFile


def test_what_could_not_be_written_comes_first_once_it_can(tmp_path: Path) -> None:
    in_the_way = tmp_path / "folder"
    in_the_way.write_text("a file")
    file = AppendFile(in_the_way / "log")
    for record in (b"a\n", b"b\n"):
        with pytest.raises(OSError):
            file.write(record)
    in_the_way.unlink()
    file.write(b"c\n")
    file.close()
    file.close()
    assert (in_the_way / "log").read_bytes() == b"a\nb\nc\n"


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_file, "MOST_PENDING_BYTES", 4)
    (tmp_path / "folder").write_text("a file")
    file = AppendFile(tmp_path / "folder" / "log")
    for record in (b"aaa\n", b"bbb\n"):
        with pytest.raises(OSError):
            file.write(record)
    (tmp_path / "folder").unlink()
    file.close()
    assert (tmp_path / "folder" / "log").read_bytes() == b"aaa\n"
