"""A copy of a run directory: whole, verified, and continued where it was cut."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from zmqrl.data_stores import files, tensors
from zmqrl.messages.files import CopiedEnd, CopiedFile, CopyRequest
from zmqrl.run_files.run_copy import (
    BEGINS,
    CHUNK,
    DATA,
    DONE,
    END,
    FILE,
    HEAD,
    RETIRED,
    CopyFailed,
    CopyReceiver,
    request_of,
    send,
)

BIG = "logs/local-learner-0.log"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for name, content in {
        "run.json": b"{}",
        "summary.json": b"",
        ".owner/host": b"x",
        "logs/.hidden": b"x",
        BIG: bytes(range(256)) * (CHUNK // 100),
        "checkpoints/v0-3.safetensors": checkpoint(1.0),
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def checkpoint(value: float) -> bytes:
    return tensors.dump({"a": np.full(9, value)}, {})


def sent(run: Path, copy: Path) -> bytes:
    out = io.BytesIO()
    request = msgspec.json.decode(msgspec.json.encode(request_of(copy)), type=CopyRequest)
    send(run, request, out)
    return out.getvalue()


def receive(stream: bytes, copy: Path, step: int = 65_536, warnings: list[str] | None = None) -> CopyReceiver:
    copy.mkdir(exist_ok=True)
    receiver = CopyReceiver(copy, ([] if warnings is None else warnings).append)
    try:
        for start in range(0, len(stream), step):
            if not receiver.take(stream[start : start + step]):
                break
    finally:
        receiver.close()
    return receiver


def test_a_file_whose_sync_failed_is_received_again(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole: the next sync succeeds, also where the disk has lost what it could not write."""
    copy, sync, failures = tmp_path / "copy", files.sync, [OSError(errno.EIO, "Input/output error")]
    monkeypatch.setattr(files, "sync", lambda fd: sync(fd) if not failures else raised(failures.pop()))
    with pytest.raises(OSError, match="Input/output error"):
        receive(sent(run, copy), copy)
    assert not content(copy)
    receive(sent(run, copy), copy)
    assert content(copy) == expected(run)


def raised(error: OSError) -> None:
    raise error


def content(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def expected(run: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(run).items() if "/." not in f"/{name}"}


def test_a_copy_is_whole_and_the_next_one_sends_what_has_changed(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    receiver = receive(b"Welcome to gpu1\n" + sent(run, copy), copy, step=1009)
    assert receiver.is_done and receiver.files == 4
    assert content(copy) == expected(run) and not list(run.rglob(".*.tmp"))
    assert sent(run, copy) == BEGINS + HEAD.pack(DONE, 0)
    (run / "run.json").write_bytes(b"{ }")
    (run / "checkpoints" / "v0-3.safetensors").rename(run / "checkpoints" / "v0-4.safetensors")
    receiver = receive(sent(run, copy), copy)
    assert receiver.files == 2 and content(copy) == expected(run)


@pytest.mark.parametrize("part", [0.01, 0.4, 0.8, 0.999])
def test_a_copy_that_was_cut_is_continued(run: Path, tmp_path: Path, part: float) -> None:
    copy, whole = tmp_path / "copy", sent(run, tmp_path / "copy")
    receiver = receive(whole[: int(len(whole) * part)], copy)
    assert not receiver.is_done
    rest = sent(run, copy)
    assert len(rest) < len(whole) * (1 - part) + CHUNK + 1000
    assert receive(rest, copy).is_done and content(copy) == expected(run)


def test_the_beginning_of_a_file_that_has_another_now_is_sent_again(run: Path, tmp_path: Path) -> None:
    copy, whole = tmp_path / "copy", sent(run, tmp_path / "copy")
    receive(whole[: len(whole) * 9 // 10], copy)
    assert (copy / "logs" / ".local-learner-0.log.part").stat().st_size > 0
    (run / BIG).write_bytes(b"emptied since")
    assert receive(sent(run, copy), copy).is_done and content(copy) == expected(run)


def test_a_damaged_transfer_keeps_no_file(run: Path, tmp_path: Path) -> None:
    copy, whole = tmp_path / "copy", bytearray(sent(run, tmp_path / "copy"))
    whole[len(whole) // 2] ^= 1
    with pytest.raises(CopyFailed, match=r"local-learner-0.log: the bytes received do not match"):
        receive(bytes(whole), copy)
    assert BIG not in content(copy)


def test_a_damaged_checkpoint_is_reported_and_not_copied(run: Path, tmp_path: Path) -> None:
    damaged = run / "checkpoints" / "full-0-3.safetensors"
    damaged.write_bytes(checkpoint(2.0)[:-1] + b"x")
    warnings: list[str] = []
    assert receive(sent(run, tmp_path / "copy"), tmp_path / "copy", warnings=warnings).is_done
    assert len(warnings) == 1 and warnings[0].startswith("checkpoints/full-0-3.safetensors is not copied: ")
    assert "checkpoints/full-0-3.safetensors" not in content(tmp_path / "copy")


def test_a_file_whose_name_is_not_utf_8_is_named_and_the_others_are_copied(run: Path, tmp_path: Path) -> None:
    odd, copy = os.fsdecode(b"r\xe9sum\xe9.txt"), tmp_path / "copy"
    whole, warnings = expected(run), list[str]()
    (run / "logs" / odd).write_text("x")
    copy.mkdir()
    (copy / odd).write_text("y")  # of a copy that something else has made
    assert receive(sent(run, copy), copy, warnings=warnings).is_done
    (copy / odd).unlink()
    assert content(copy) == whole
    assert warnings == ["logs/r\\xe9sum\\xe9.txt is not copied: its name is not UTF-8"]


def frames(*parts: tuple[bytes, bytes]) -> bytes:
    return BEGINS + b"".join(HEAD.pack(kind, len(payload)) + payload for kind, payload in parts)


@pytest.mark.parametrize("path", ["../run.json", "/etc/passwd", ".owner/x", "a/../../b", "logs/.x", "logs/a\0b", ""])
def test_nothing_is_written_outside_of_the_copy(tmp_path: Path, path: str) -> None:
    stream = frames((FILE, msgspec.json.encode(CopiedFile(path, 0))), (DATA, b"x"))
    with pytest.raises(CopyFailed):
        receive(stream, tmp_path / "copy")
    assert not content(tmp_path)


@pytest.mark.parametrize(
    "stream",
    [
        frames((DATA, b"x")),
        frames((END, msgspec.json.encode(CopiedEnd("ab")))),
        frames((FILE, b"{}")),
        frames((b"?", b"")),
        frames((RETIRED, b'{"path": "run.json"}')),
        frames((RETIRED, b'{"path": "checkpoints/../x.safetensors"}')),
        frames((RETIRED, b'{"path": "checkpoints/\\u0000.safetensors"}')),
        BEGINS + HEAD.pack(DATA, CHUNK + 1),
    ],
)
def test_malformed_frames_end_the_copy(tmp_path: Path, stream: bytes) -> None:
    with pytest.raises(CopyFailed):
        receive(stream, tmp_path / "copy")
