"""`on_end` and `webhook` with real processes and a real web server; what their failures report."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import at_once, long
from tests.support.runs.command_runs import summary, zmqrl
from tests.support.waiting import WAIT_S, until
from tests.support.web_server import WebServer
from zmqrl.launch.end_notices import LAUNCHER_LOG, execute, post

FACTS: dict[str, Any] = {"status": "failed", "exit_code": 1, "error": "line 1\nline 2", "run_dir": "/a b", "host": "h"}
NO_PORT = "http://127.0.0.1:9"
SECRET = "T0K3N-7c1d"
IDLE = (
    "algorithm.kind=zmqrl.bench.noop:NoUpdate",
    "env.id=tests.stand_ins.slow_envs:Slow",
    "env.kwargs.step_s=0.004",
    "env.max_episode_steps=50",
)
"""What is seen of these runs is their end."""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def run(command: str, run_dir: Path, limit_s: float = WAIT_S, interrupted: bool = False) -> str | None:
    return execute(command, FACTS, run_dir, limit_s, lambda: interrupted)


def test_the_command_has_the_facts_in_its_environment_and_its_output_is_kept(run_dir: Path) -> None:
    print_all = 'printf "%s|" "$ZMQRL_STATUS" "$ZMQRL_EXIT_CODE" "$ZMQRL_ERROR" "$ZMQRL_RUN_DIR" "$(cat)"; echo x >&2'
    assert run(print_all, run_dir) is None
    assert (run_dir / "logs" / LAUNCHER_LOG).read_text() == "failed|1|line 1\nline 2|/a b||x\n"


@pytest.mark.parametrize(("command", "cause"), [("exit 3", "exit code 3"), ("kill -9 $$", "SIGKILL")])
def test_a_failure_is_reported(run_dir: Path, command: str, cause: str) -> None:
    problem = run(command, run_dir)
    assert problem is not None and cause in problem and LAUNCHER_LOG in problem


@at_once
@pytest.mark.parametrize(("command", "interrupted"), [
    ("trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done", False),
    ("sleep 600 & echo $! > pid", False),
    ("echo $$ > pid; sleep 600", True),
], ids=["ignores SIGTERM", "left in the background", "interrupted"])  # fmt: skip
@pytest.mark.whole
def test_what_outlives_the_limit_is_ended_with_its_group(run_dir: Path, command: str, interrupted: bool) -> None:
    problem = run(f"cd '{run_dir}'; {command}", run_dir, 3600.0 if interrupted else 0.5, interrupted)
    assert problem is not None and ("interrupted" if interrupted else "limits.on_end_s (0.5 s)") in problem
    if (run_dir / "pid").exists() and (pid := (run_dir / "pid").read_text().strip()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_what_the_command_detaches_is_left_alone(run_dir: Path) -> None:
    assert run(f"setsid sleep 600 & echo $! > '{run_dir}/pid'", run_dir) is None
    pid = int((run_dir / "pid").read_text())
    until(lambda: os.getsid(pid) == pid)
    os.kill(pid, signal.SIGKILL)


def test_without_a_log_folder_it_is_executed(tmp_path: Path) -> None:
    assert run(f"echo x; touch '{tmp_path}/done'", tmp_path / "missing") is None
    assert (tmp_path / "done").exists()


def test_without_a_standard_output_it_is_executed(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert run("echo x", run_dir) is None
    assert (run_dir / "logs" / LAUNCHER_LOG).read_text() == "x\n"


def send(webhook: str, limit_s: float = WAIT_S, interrupted: bool = False) -> str | None:
    return post(webhook, FACTS, limit_s, lambda: interrupted)


def test_the_webhook_receives_the_facts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_TOKEN", SECRET)
    with WebServer() as server:
        assert send(f"{server.url}/hooks/${{HOOK_TOKEN}}?a=1") is None
    assert (server.posted, server.paths) == ([FACTS], [f"/hooks/{SECRET}?a=1"])


@pytest.mark.parametrize(("answers", "posts", "problem"), [
    ((500, 503, 200), 3, None),
    ((500,), 3, "HTTP status 500"),
    ((404,), 1, "HTTP status 404"),
    ((302,), 1, "HTTP status 302"),
])  # fmt: skip
def test_an_answer_decides_about_another_attempt(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[int, ...], posts: int, problem: str | None
) -> None:
    monkeypatch.setattr("zmqrl.launch.end_notices.PAUSES_S", (0.01, 0.01))
    with WebServer(answers) as server:
        found = send(f"{server.url}/{SECRET}")
    assert len(server.paths) == posts, "no redirect is followed"
    assert found == (None if problem is None else f"webhook: {server.url}: {problem}")


@at_once
def test_a_server_that_does_not_answer_is_waited_for_within_the_limit() -> None:
    with WebServer(hold=True) as server:
        problem = send(f"{server.url}/{SECRET}", 0.5)
    assert problem == f"webhook: {server.url}: no answer within limits.on_end_s (0.5 s)"


@pytest.mark.parametrize(
    "url", [f"{NO_PORT}/{SECRET}", f"http://nowhere.invalid/{SECRET}", f"https://127.0.0.1:9/{SECRET}"]
)
def test_an_unreachable_server_is_reported_without_the_secret(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("zmqrl.launch.end_notices.PAUSES_S", (0.01, 0.01))
    problem = send(url)
    assert problem is not None and problem.startswith(url.removesuffix(f"/{SECRET}").join(["webhook: ", ": "]))
    assert SECRET not in problem


@pytest.mark.whole
def test_a_detached_run_reports_its_end_and_its_files_have_no_secret(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with WebServer() as server:
        webhook = f"{server.url}/services/{SECRET}"
        (tmp_path / "end.sh").write_text('cp "$ZMQRL_SUMMARY" seen.json; echo "ended: $ZMQRL_STATUS"; exit 7\n')
        sets = (
            "evaluator.episodes=0",
            *IDLE,
            "run.stop_at_return=null",
            "run.total_env_steps=100000000",
            f"webhook={webhook}",
        )
        flags = [word for pair in (*sets, f"on_end=cd '{tmp_path}' && sh end.sh") for word in ("--set", pair)]
        out = zmqrl("train", "cartpole-ppo", "--workers", 1, "--run-dir", run_dir, *flags, "--detach", at=tmp_path)
        log = run_dir / "logs" / LAUNCHER_LOG
        try:
            out += zmqrl("stop", run_dir, at=tmp_path)
            until(lambda: "on_end: " in log.read_text(), "the command to end")
        except BaseException:
            zmqrl("down", run_dir, at=tmp_path)
            raise
        (posted,) = server.posted
    ended = summary(run_dir)
    assert json.loads((tmp_path / "seen.json").read_text()) == ended, "it was there before the command"
    known = {name: ended[name] for name in ("status", "exit_code", "error", "run_id")}
    assert posted.items() >= {**known, "run_dir": str(run_dir), "summary": str(run_dir / "summary.json")}.items()
    assert (ended["status"], ended["exit_code"]) == ("stopped", 0), "whatever the command came to"
    text = log.read_text()
    assert "ended: stopped" in text and "on_end: the command failed (exit code 7)" in text
    written = [path for path in run_dir.rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert server.url in (run_dir / "config.json").read_text(), "its host is kept"
    assert SECRET not in out
    more = f"run.total_env_steps={ended['env_steps'] + 100}"
    again = zmqrl("train", "--resume", run_dir, "--plain", "--set", more, at=tmp_path)
    assert again.count("webhook: its URL is not stored") == 2, "at the start, and at the end"


RAISES = (IDLE[0], IDLE[3], "env.id=tests.envs.odd_envs:Breaking", "env.kwargs={fault: late reset}", "restart.max=0")


@pytest.mark.whole
@pytest.mark.parametrize(("settings", "code", "status"), [
    (RAISES, 1, "failed"),
    long((*IDLE, "run.total_env_steps=100"), 0, "done"),
])  # fmt: skip
def test_other_ends_and_an_unreachable_webhook(
    tmp_path: Path, settings: tuple[str, ...], code: int, status: str
) -> None:
    sets = (*settings, "evaluator.episodes=0", f"webhook={NO_PORT}/{SECRET}", "limits.on_end_s=2")
    sets = (*sets, 'on_end=echo "$ZMQRL_STATUS $ZMQRL_EXIT_CODE" > end; sleep 600')
    flags = [word for pair in sets for word in ("--set", pair)]
    out = zmqrl("train", "cartpole-ppo", "--plain", "--run-dir", "run", *flags, at=tmp_path, code=code)
    assert (tmp_path / "end").read_text() == f"{status} {code}\n"
    assert "on_end: not over within limits.on_end_s (2 s)" in out
    assert f"webhook: {NO_PORT}: " in out and SECRET not in out
