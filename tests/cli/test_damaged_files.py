"""A damaged file of a run directory is named in one line, with exit code 2 where the command needs it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Command
from tests.support.stored_runs import store_run, summary_data
from zmqrl.config.codec import to_json
from zmqrl.run_files.run_info import RunInfo

NOT_JSON = (b"", b"{", b"\xff", b"null", b"[]", b"3")
Change = Callable[[Any], Any]
STATUS = {
    "run_id": "run-1",
    "mode": "sync",
    "written_at": 1.0,
    "wall_s": 1.0,
    "phase": "ended",
    "progress": 1.0,
    "eta_s": None,
    "env_steps": 5,
    "total_env_steps": 10,
    "metrics": {},
    "score": {},
    "bottleneck": None,
    "workers": [],
    "problems": [],
}


@pytest.fixture
def run(empty_directory: Path) -> Path:
    """A run that has ended, in `r`."""
    path = Path("r")
    store_run("cartpole-ppo", path, 3, 5)
    info = RunInfo("run-1", 1, 1, socket.gethostname(), 0.0, "cartpole-ppo", 1.0)
    (path / "run.json").write_text(json.dumps(to_json(info)))
    (path / "summary.json").write_text(json.dumps(summary_data(env_steps=5)))
    (path / "status.json").write_text(json.dumps(STATUS))
    (path / "metrics.jsonl").write_text('{"wall_s": 1, "env_steps": 5, "train_return_mean_100": 2.0}\n')
    return path


def fails(zmqrl: Command, *arguments: object) -> str:
    """The one line of a command that ends with exit code 2."""
    ended = zmqrl(*arguments)
    assert ended.code == 2, ended.err
    (line,) = ended.err.splitlines()
    return line


@pytest.mark.whole
def test_the_run_itself_is_sound(zmqrl: Command, run: Path) -> None:
    for arguments in (("status", run), ("eval", run, "--episodes", "1"), ("plot", run)):
        ended = zmqrl(*arguments)
        assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("content", NOT_JSON)
def test_a_config_that_is_not_an_object(zmqrl: Command, run: Path, content: bytes) -> None:
    (run / "config.json").write_bytes(content)
    cause = "the file is empty" if not content else "not JSON" if content in (b"{", b"\xff") else "not a JSON object"
    assert f"r/config.json is not the configuration of a run: {cause}" in fails(zmqrl, "eval", run)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.clear(), "missing required field `format_version`"),
        (lambda data: data.pop("config"), "missing required field `config`"),
        (lambda data: data.update(config=[]), "$.config"),
        (lambda data: data.update(format_version="1"), "$.format_version"),
        (lambda data: data.update(format_version=3), "has format version 3"),
        (lambda data: data["config"].update(store=3), "$.store"),
        (lambda data: data["config"].update(store=None), "$.store"),
        (lambda data: data["config"].update(orchestrator=[]), "$.orchestrator"),
        (lambda data: data["config"]["algorithm"].update(gamma="x"), "$.gamma"),
        (lambda data: data["config"]["env"].update(id="Foo-v0"), "env.id"),
        (lambda data: data["config"]["env"].update(id="Acrobot-v1"), "expected shape"),
        (lambda data: data["config"]["network"].update(hidden=[8]), "expected shape"),
        (lambda data: data["config"].update(algorithm={"kind": "dqn"}), "no such tensor"),
    ],
)
@pytest.mark.parametrize("command", [("eval", "r"), ("export", "r", "out", "--to", "numpy")])
def test_a_config_with_another_content(
    zmqrl: Command, run: Path, change: Change, words: str, command: tuple[str, ...]
) -> None:
    data = json.loads((run / "config.json").read_text())
    change(data)
    (run / "config.json").write_text(json.dumps(data))
    line = fails(zmqrl, *command)
    assert "r/config.json" in line and words in line
    assert not Path("out").exists()


def test_a_status_of_a_time_that_no_calendar_has(zmqrl: Command, run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "status.json").write_text(json.dumps({**STATUS, "written_at": 1e300}))
    ended = zmqrl("status", run)
    assert ended.code == 0 and "ended without a summary" in ended.out


def test_a_config_that_is_a_directory(zmqrl: Command, run: Path) -> None:
    (run / "config.json").unlink()
    (run / "config.json").mkdir()
    assert "r/config.json cannot be read: Is a directory" in fails(zmqrl, "eval", run)


def test_another_file_is_not_a_connection_file(zmqrl: Command, run: Path) -> None:
    line = fails(zmqrl, "worker", "--connect", run / "config.json")
    assert "r/config.json is not a connection file" in line and "`format_version`" in line


@pytest.mark.parametrize("name", ["summary.json", "status.json"])
@pytest.mark.parametrize("content", [*NOT_JSON, b"{}", b'{"run_id": "run-1"}', b'{"run_id": 1, "env_steps": "x"}'])
def test_damaged_records_are_ignored_and_named(
    zmqrl: Command, run: Path, name: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (run / name).write_bytes(content)
    for flags in ((), ("--json",)):
        ended = zmqrl("status", run, *flags)
        assert ended.code == 0, ended.err
        assert ended.err.startswith(f"r/{name} is damaged") and ended.err.count("\n") == 1
    assert json.loads(ended.out)[name.removesuffix(".json")] is None
    ended = zmqrl("train", "--resume", run, "--dry-run")
    assert ended.code == 0 and f"r/{name} is damaged" in caplog.text


@pytest.mark.parametrize("field", ["status", "env_steps", "error", "exit_code", "wall_s"])
def test_a_summary_without_a_field_is_damaged(zmqrl: Command, run: Path, field: str) -> None:
    (run / "summary.json").write_text(json.dumps({k: v for k, v in summary_data().items() if k != field}))
    ended = zmqrl("status", run)
    assert ended.code == 0 and f"`{field}`" in ended.err


@pytest.mark.parametrize("content", [*NOT_JSON, b"{}", b'{"run_id": "run-1", "more": 1}', None])
def test_a_damaged_run_json_is_named(zmqrl: Command, run: Path, content: bytes | None) -> None:
    if content is None:
        (run / "run.json").unlink()
    else:
        (run / "run.json").write_bytes(content)
    for command in (
        ("status", run),
        ("logs", run),
        ("stop", run),
        ("down", run),
        ("scale", run, "a=1"),
        ("drain", run, "a"),
    ):
        line = fails(zmqrl, *command)
        assert "r/run.json cannot be read: " in line and "--init-from r" in line
    if content is not None:
        assert "r/run.json cannot be read: " in fails(zmqrl, "train", "--resume", run, "--for", "9", "--dry-run")
    assert zmqrl("train", "cartpole-ppo", "--init-from", run, "--dry-run").code == 0
    if content is not None:
        (run / "config.json").unlink()
        line = fails(zmqrl, "status", run)
        assert line.rstrip().endswith("restore the file from a copy of the run"), "weights without a configuration"


def test_lines_of_metrics_that_are_no_rows_are_counted(zmqrl: Command, run: Path) -> None:
    wrong = (b"[]", b"{}", b"null", b'{"env_steps": 1}', b'{"wall_s": 2, "env_steps": 7, "loss": "x"}', b"\xff")
    sound = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(sound + b"\n".join(wrong))
    ended = zmqrl("plot", run)
    assert (ended.code, ended.out) == (0, "returns.png\n")
    assert "r: 6 lines of metrics.jsonl" in ended.err
    (run / "metrics.jsonl").write_bytes(b"[]\n")
    assert "has no valid row" in fails(zmqrl, "plot", run)
    (run / "metrics.jsonl").write_bytes(b"")
    assert "is empty" in fails(zmqrl, "plot", run)


@pytest.mark.parametrize(("content", "cause"), [(b"", "the file is empty"), (b"hello\n", "not a safetensors file")])
def test_a_damaged_version_is_named_with_those_that_can_be_loaded(
    zmqrl: Command, run: Path, content: bytes, cause: str
) -> None:
    (run / "checkpoints" / "v0-3.safetensors").write_bytes(content)
    line = fails(zmqrl, "eval", run, "--checkpoint", "0-3")
    assert f"damaged in r/checkpoints ({cause})" in line and line.endswith(": 0-5 (last)")


def test_a_run_without_logs(zmqrl: Command, run: Path) -> None:
    shutil.rmtree(run / "logs", ignore_errors=True)
    assert "r has no logs" in fails(zmqrl, "logs", run)


@pytest.mark.parametrize(
    ("name", "command", "code"),
    [
        ("run.json", "status", 2),
        ("status.json", "status", 0),
        ("summary.json", "status", 0),
        ("config.json", "eval", 2),
    ],
)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(
    zmqrl: Command, run: Path, name: str, command: str, code: int
) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    assert zmqrl(command, run).code == code
