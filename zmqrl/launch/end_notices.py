"""What the launcher does once a run has ended and is summed up: the command `on_end` and the POST to `webhook`.

A failure here is reported; it changes neither the summary nor the exit code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from zmqrl.config.sections import Config
from zmqrl.config.webhook import expanded, is_unstored, shown_place
from zmqrl.errors import ConfigError
from zmqrl.run_files.run_directory import SUMMARY
from zmqrl.summary import Summary

POLL_S = 0.05
TERMINATE_S = 2.0
"""Between SIGTERM and SIGKILL of what outlives the limit."""
REQUEST_S = 10.0
"""Limit of one attempt to post."""
PAUSES_S = (1.0, 3.0)
"""Before the second and the third attempt."""
LAUNCHER_LOG = "launcher.log"

UNSTORED_URL = "webhook: its URL is not stored with the run: resume with --set webhook=URL, or write it with $NAME"

Interrupted = Callable[[], bool]


def notify_end(config: Config, run_dir: Path, summary: Summary, interrupted: Interrupted) -> list[str]:
    """Execute `on_end` and post to `webhook`, each within `limits.on_end_s`; returns what went wrong.

    `interrupted`: whether the user wants the launcher to end now.
    """
    facts = facts_of(summary, run_dir)
    found = []
    if config.on_end is not None:
        found.append(execute(config.on_end, facts, run_dir, config.limits.on_end_s, interrupted))
    if config.webhook is not None:
        found.append(post(config.webhook, facts, config.limits.on_end_s, interrupted))
    return [problem for problem in found if problem is not None]


def facts_of(summary: Summary, run_dir: Path) -> dict[str, Any]:
    """What both receive."""
    cause = "" if summary.error is None else f": {summary.error.splitlines()[0]}"
    steps = "" if summary.env_steps is None else f", {summary.env_steps:,} env steps"
    return {
        "status": summary.status,
        "exit_code": summary.exit_code,
        "error": summary.error,
        "run_id": summary.run_id,
        "run_dir": str(run_dir),
        "summary": str(run_dir / SUMMARY),
        "host": socket.gethostname(),
        "text": f"run {summary.run_id}: {summary.status}{cause}{steps} in {summary.wall_s:.0f} s",
    }


def execute(
    command: str, facts: Mapping[str, Any], run_dir: Path, limit_s: float, interrupted: Interrupted
) -> str | None:
    """`sh -c command`, and what it started in its process group, until the limit; returns what went wrong."""
    environment = {f"ZMQRL_{name.upper()}": "" if value is None else str(value) for name, value in facts.items()}
    try:
        with _log(run_dir) as log:
            process = subprocess.Popen(
                ["sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
    except (OSError, ValueError) as error:  # ValueError: a null character
        return f"on_end: cannot be executed: {error}"
    in_time = _group_ends(process, limit_s, interrupted)
    if not in_time:
        _end_group(process)
    code, log_file = process.returncode, run_dir / "logs" / LAUNCHER_LOG
    if not in_time:
        why = "interrupted" if interrupted() else f"not over within limits.on_end_s ({limit_s:g} s)"
        return f"on_end: {why}: its processes were ended; output in {log_file}"
    if code != 0:
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        return f"on_end: the command failed ({how}); output in {log_file}"
    return None


def _log(run_dir: Path) -> IO[bytes]:
    """The launcher's log; on a full disk the output is discarded."""
    print(end="", flush=True)  # `sys.stdout` is None in a process without it
    try:
        return (run_dir / "logs" / LAUNCHER_LOG).open("ab")
    except OSError:
        return open(os.devnull, "ab")


def _group_ends(process: subprocess.Popen[bytes], limit_s: float, interrupted: Interrupted) -> bool:
    until = time.monotonic() + limit_s
    while _is_alive(process):
        if time.monotonic() >= until or interrupted():
            return False
        time.sleep(POLL_S)  # several processes, of which only the first is a child
    return True


def _is_alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether the command or a process of its group is there."""
    if process.poll() is None:
        return True
    with suppress(ChildProcessError):  # orphans become children of a launcher that is process 1, or a subreaper
        os.waitpid(-process.pid, os.WNOHANG)
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user, such as by sudo
        return False
    return True


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        if _group_ends(process, TERMINATE_S, lambda: False):
            return


def post(webhook: str, facts: Mapping[str, Any], limit_s: float, interrupted: Interrupted) -> str | None:
    """POST `facts` as JSON, at most three times; returns what went wrong, without the secret parts of the URL."""
    if is_unstored(webhook):
        return UNSTORED_URL
    try:
        url = expanded(webhook)
    except ConfigError as error:
        return str(error)
    posting = _Posting(url, json.dumps(dict(facts)).encode())
    until = time.monotonic() + limit_s
    posting.start()
    while posting.is_alive() and time.monotonic() < until and not interrupted():
        posting.join(POLL_S)
    if posting.is_alive():
        posting.over.set()
        why = "interrupted" if interrupted() else f"no answer within limits.on_end_s ({limit_s:g} s)"
        return f"webhook: {shown_place(url)}: {why}"
    return None if posting.failure is None else f"webhook: {shown_place(url)}: {posting.failure}"


class _Posting(threading.Thread):
    """Thread that posts: a name lookup has no time limit, and that of a socket begins again with each byte."""

    def __init__(self, url: str, body: bytes) -> None:
        super().__init__(name="webhook", daemon=True)
        self._url, self._body = url, body
        self.over = threading.Event()
        """No further attempt."""
        self.failure: str | None = None

    def run(self) -> None:
        for pause_s in (*PAUSES_S, None):
            self.failure, again = self._attempt()
            if not again or pause_s is None or self.over.wait(pause_s):
                return

    def _attempt(self) -> tuple[str | None, bool]:
        """What went wrong, and whether another attempt may succeed."""
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class NoRedirect(HTTPRedirectHandler):
            """The URL of a redirect would receive what was meant for another."""

            def redirect_request(self, *args: Any, **kwargs: Any) -> None:
                return None

        headers = {"Content-Type": "application/json", "User-Agent": "zmqrl"}
        try:
            with build_opener(NoRedirect).open(Request(self._url, self._body, headers), timeout=REQUEST_S):
                return None, False
        except HTTPError as error:
            error.close()
            return f"HTTP status {error.code}", error.code >= 500 or error.code == 429
        except URLError as error:
            return str(error.reason), True
        except OSError as error:
            return str(error) or type(error).__name__, True
        except (HTTPException, ValueError) as error:  # their texts have parts of the URL
            return type(error).__name__, False
