"""What envs, other hosts and other users wrote reaches the terminal without its control characters."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.commands import Command
from tests.support.stored_runs import summary_data
from zmqrl.cli.run.status import StatusLines
from zmqrl.launch.run_output import RunOutput
from zmqrl.logs.printable import printable, printable_data, printable_writer
from zmqrl.views.problem import Problem
from zmqrl.views.tables import render

HOSTILE = "\x1b]0;OWNED\x07\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\r\u202e"
ESCAPED = r"\x1b]0;OWNED\x07\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\r\u202e"
RUN = {"run_id": "run-1", "pid": 1, "start_time": 1, "host": "elsewhere", "started_at": 1.0, "preset": None}


def is_plain(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**RUN, "ended_at": 2.0}))
    (folder / "summary.json").write_text(json.dumps(summary_data(status="failed", exit_code=1, error=f"a {HOSTILE}")))
    (folder / "logs" / "local-worker-0.log").write_text(f"before\n{HOSTILE} after\n\ttab\n", newline="")
    return folder


def test_only_what_is_printed_stays() -> None:
    assert printable(f"ä 漢 \t{HOSTILE}\n") == f"ä 漢 \t{ESCAPED}\n"
    data = {"a\x1b": [HOSTILE, 3, None, {"b": ("\x07",)}]}
    assert printable_data(data) == {r"a\x1b": [ESCAPED, 3, None, {"b": [r"\x07"]}]}


def test_logs(zmqrl: Command, run: Path) -> None:
    ended = zmqrl("logs", run)
    assert ended.code == 0 and f"{ESCAPED} after\n" in ended.out and "\ttab\n" in ended.out and is_plain(ended.out)
    assert is_plain(zmqrl("logs", run, "--json").out)


def test_status(zmqrl: Command, run: Path) -> None:
    ended = zmqrl("status", run)
    assert f"a {ESCAPED}" in ended.out and is_plain(ended.out + ended.err)
    assert is_plain(zmqrl("status", run, "--json").out)


def test_a_message_of_the_command(zmqrl: Command, run: Path) -> None:
    (run / "config.json").write_text(json.dumps({"format_version": 1, "config": {"env": {"id": f"Pole{HOSTILE}-v1"}}}))
    ended = zmqrl("eval", run)
    assert ended.code == 2 and ended.err.startswith("zmqrl: ") and is_plain(ended.err)


def test_a_problem_and_what_the_launcher_prints(capsys: pytest.CaptureFixture[str]) -> None:
    problem = Problem("gpu1", HOSTILE, "restarted", {"step": HOSTILE}, log_tail=(f"Error: {HOSTILE}",))
    assert str(problem).count(ESCAPED) == 3 and is_plain(str(problem))
    RunOutput.print(SimpleNamespace(_quiet=False), f"failed: {HOSTILE}")  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"failed: {ESCAPED}\n"


def test_what_another_host_sends() -> None:
    stream = io.BytesIO()
    write = printable_writer(stream)
    text = f"ä {HOSTILE}\n".encode()
    assert write(text[:1]) and write(text[1:]), "a character may be split"
    assert stream.getvalue().decode() == f"ä {ESCAPED}\n"
    write(b"\xff\n")
    assert stream.getvalue().endswith(b"\\xff\n")


def test_the_live_view_and_the_status_of_another_host() -> None:
    view = render({"run_id": HOSTILE, "hosts": [{"cause": HOSTILE}]})
    assert view.status == {"run_id": ESCAPED, "hosts": [{"cause": ESCAPED}]}
    shown: list[str] = []
    lines = StatusLines(lambda status, notes: shown.extend(status["problems"]))
    status = {"written_at": 1.0, "problems": [HOSTILE]}
    lines.take(f"{json.dumps({'status': status})}\n".encode())
    assert shown == [ESCAPED]
