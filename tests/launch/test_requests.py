"""Requests to a running launcher: files, answered once."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.errors import ConfigError, DeadlineExceeded, WireError
from zmqrl.launch.requests import FOLDER, MAX_BYTES, Requests, send_request
from zmqrl.messages.files import RequestAnswer, ScaleRequest

REQUESTER = """
import sys
from pathlib import Path
from zmqrl.launch.requests import send_request
from zmqrl.messages.files import ScaleRequest
print(send_request(Path(sys.argv[1]), ScaleRequest({"a": 7}), 20))
"""


def test_another_process_is_answered(tmp_path: Path) -> None:
    asker = subprocess.Popen([sys.executable, "-c", REQUESTER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    requests, served = Requests(tmp_path), 0
    until = time.monotonic() + WAIT_S
    while not served:
        assert time.monotonic() < until
        for path, request in requests.waiting():
            assert isinstance(request, ScaleRequest)
            requests.answer(path, RequestAnswer(done=f"it is {request.scale['a']}"))
            served += 1
    assert asker.communicate(timeout=WAIT_S)[0] == "it is 7\n"
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_refusal_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(tmp_path)

    def look(_: float) -> None:
        for path, _request in requests.waiting():
            requests.answer(path, RequestAnswer(refused="no such host"))

    monkeypatch.setattr("zmqrl.launch.requests.time.sleep", look)
    with raises(ConfigError, key=(), what="no such host"):
        send_request(tmp_path, ScaleRequest({}), WAIT_S)


def test_garbage_is_removed_and_has_its_reason(tmp_path: Path) -> None:
    requests, folder = Requests(tmp_path), tmp_path / FOLDER
    assert list(requests.waiting()) == []
    folder.mkdir()
    (folder / "1.json").write_bytes(b"\xff\xfe")
    (folder / "2.json").write_text("[1]")
    (folder / "3.json").write_text('{"a": "' + "x" * MAX_BYTES + '"}')
    (folder / "4.json").write_text('{"a": 1}')
    (folder / "5.json").write_text('{"scale": {"a": -1}}')
    (folder / "6.json").write_text('{"scale": {"a": 1}}')
    *wrong, (path, request) = requests.waiting()
    assert (path.name, request) == ("6.json", ScaleRequest({"a": 1}))
    reasons = [error.reason if isinstance(error, WireError) else None for _, error in wrong]
    assert reasons == ["not JSON", "not JSON", "size", "fields", "value"]
    assert list(folder.iterdir()) == []


def test_what_cannot_be_removed_leaves_no_other_request_of_an_earlier_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that NFS holds for another process, a folder, and a request that is being withdrawn."""
    requests, folder = Requests(tmp_path), tmp_path / FOLDER
    requests.clear()
    folder.mkdir()
    for name in ("1.json", "2.json", "3.json", "4.json"):
        (folder / name / "inner").mkdir(parents=True) if name == "2.json" else (folder / name).touch()
    errors, unlink = {"1.json": OSError(errno.EBUSY, "busy"), "3.json": FileNotFoundError()}, Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name in errors:
            raise errors[path.name]
        unlink(path, missing_ok)

    folder_of = [folder / name for name in ("1.json", "2.json", "3.json", "4.json")]
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(folder_of))
    monkeypatch.setattr(Path, "unlink", refuse)
    requests.clear()
    assert [path.name for path in folder_of if path.exists()] == ["1.json", "2.json", "3.json"]
    (folder / "5.json").write_text('{"scale": {"a": 1}}')
    assert [path.name for path, _ in requests.waiting()] == ["5.json"], "one of this attempt"
    monkeypatch.undo()
    assert list(requests.waiting()) == []
    assert [path.name for path in folder.iterdir()] == ["2.json"]


def test_a_folder_is_not_a_request(tmp_path: Path) -> None:
    requests, folder = Requests(tmp_path), tmp_path / FOLDER
    (folder / "1.json").mkdir(parents=True)
    (folder / "2.json").write_text('{"scale": {"a": 1}}')
    assert [path.name for path, _ in requests.waiting()] == ["2.json"]


def test_without_a_launcher_there_is_a_deadline_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceeded, match=r"no answer from the launcher of .* within 0\.1 s"):
        send_request(tmp_path, ScaleRequest({}), 0.1)
    assert list((tmp_path / FOLDER).iterdir()) == []
    info = {"run_id": "r", "pid": 1, "start_time": 1, "host": "far.away", "started_at": 0.0, "preset": None}
    (tmp_path / "run.json").write_text(json.dumps(info))
    with pytest.raises(DeadlineExceeded, match=r"far\.away"):
        send_request(tmp_path, ScaleRequest({}), 0.1)


@pytest.mark.parametrize("taken", [False, True])
def test_a_command_that_is_interrupted_withdraws_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    def interrupt(_: float) -> None:
        if taken:
            list(Requests(tmp_path).waiting())
        raise KeyboardInterrupt

    monkeypatch.setattr("zmqrl.launch.requests.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        send_request(tmp_path, ScaleRequest({}), WAIT_S)
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_what_an_earlier_attempt_left_is_removed(tmp_path: Path) -> None:
    requests, folder = Requests(tmp_path), tmp_path / FOLDER
    requests.clear()
    folder.mkdir()
    for name in ("1.json", "1.answer", ".2.json.77"):
        (folder / name).write_text('{"scale": {"a": 1}}')
    requests.clear()
    assert list(folder.iterdir()) == []


def test_a_request_that_is_withdrawn_meanwhile_is_left_out(tmp_path: Path) -> None:
    """It is counted as nothing, and no answer is left for a command that is gone."""
    requests, folder = Requests(tmp_path), tmp_path / FOLDER
    folder.mkdir()
    for name in ("1.json", "2.json"):
        (folder / name).write_text('{"scale": {"a": 1}}')
    waiting = requests.waiting()
    assert next(waiting)[0].name == "1.json"
    (folder / "2.json").unlink()
    assert list(waiting) == []


def test_a_request_that_was_taken_is_answered_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the launcher has begun is done: the command says so, and its answer is removed."""
    requests, taken, sleep = Requests(tmp_path), list[Path](), time.sleep

    def look(_: float) -> None:
        if taken:
            requests.answer(taken[0], RequestAnswer(done="late"))
        taken.extend(path for path, _request in requests.waiting())
        sleep(0.1)

    monkeypatch.setattr("zmqrl.launch.requests.time.sleep", look)
    assert send_request(tmp_path, ScaleRequest({}), 0.05) == "late"
    assert list((tmp_path / FOLDER).iterdir()) == []
