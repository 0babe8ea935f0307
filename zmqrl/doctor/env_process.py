"""The env check in a separate process: the user's code may print, hang or crash, and the probe continues."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from msgspec import structs

from zmqrl.entry import PARENT_VARIABLE, die_with_parent
from zmqrl.errors import WireError
from zmqrl.loading import THREAD_VARIABLES
from zmqrl.messages.doctor import EnvFacts, Examine, read_reply, read_request, reply_line, request_line
from zmqrl.supervision.process_table import cause_of


class EnvProcess:
    """Started alongside everything else; `result` takes what it found by its limit."""

    def __init__(self, request: Examine, code: Path | None) -> None:
        """Start it, where a worker would be started. `code`: where the user's modules lie."""
        self._until = time.monotonic() + request.env_limit_s
        self._facts = EnvFacts()
        here = {PARENT_VARIABLE: str(os.getpid()), **dict.fromkeys(THREAD_VARIABLES, "1")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zmqrl.doctor.env_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **here},
        )
        self._reader = threading.Thread(target=self._read, name="env", daemon=True)
        self._reader.start()
        assert self._process.stdin is not None
        sent = structs.replace(request, listen=None, code=None if code is None else str(code))
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(request_line(sent).decode())
            self._process.stdin.close()

    def result(self) -> EnvFacts:
        """Wait for it until its limit, then end it."""
        self._reader.join(max(0.0, self._until - time.monotonic()))
        late = self._reader.is_alive()
        if late:
            self._process.kill()
        self._reader.join()
        code = self._process.wait()
        facts = self._facts
        if facts.stage == "done" or facts.error is not None:
            return facts
        if late:
            return structs.replace(facts, stage=f"{facts.stage}, out of time")
        return structs.replace(facts, error=f"the env check process exited ({cause_of(code)}) at: {facts.stage}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with contextlib.suppress(WireError):  # the env may print what it likes
                    reply = read_reply(line)
                    self._facts = reply if isinstance(reply, EnvFacts) else self._facts


def main() -> None:
    """The child: facts on what stdout was; the env's own prints go nowhere. `code` of its request is a folder here."""
    die_with_parent()
    request = read_request(sys.stdin.buffer.readline())
    assert isinstance(request, Examine) and request.env is not None
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if request.code is not None:
        sys.path.insert(0, request.code)
    from zmqrl.config.codec import from_json
    from zmqrl.config.sections import EnvSection
    from zmqrl.doctor.env_check import examine_env

    env = from_json(EnvSection, json.loads(request.env))
    for facts in examine_env(env, request.mode, int(request.seed), request.env_limit_s):
        print(reply_line(facts), file=out, flush=True)


if __name__ == "__main__":
    main()
