"""The env check in a check process: the user's code may print, hang or crash, and the probe continues."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from msgspec import structs

from zmqrl.config.codec import from_json
from zmqrl.config.sections import EnvSection
from zmqrl.loading import limit_threads
from zmqrl.messages.check import Stage, data_of
from zmqrl.messages.doctor import EnvFacts, read_reply, reply_line
from zmqrl.messages.doctor_requests import Examine
from zmqrl.supervision import check_process
from zmqrl.supervision.served_call import CheckEnded, Subject


class EnvProcess:
    """Started alongside everything else; `result` takes what it found by its limit."""

    def __init__(self, request: Examine, code: Path | None) -> None:
        """Start it. `code`: where the user's modules lie."""
        self._request, self._code, self._facts = request, None if code is None else str(code), EnvFacts()
        limit_threads()  # as in a worker
        self._until = time.monotonic() + request.env_limit_s
        self._caller = threading.Thread(target=self._call, name="env", daemon=True)
        self._caller.start()

    def result(self) -> EnvFacts:
        """Wait for it until its limit."""
        self._caller.join(max(0.0, self._until - time.monotonic()))
        return self._out_of_time() if self._caller.is_alive() else self._facts

    def _call(self) -> None:
        asked = self._request
        arguments = asked.env, asked.mode, asked.seed, asked.env_limit_s, self._code
        env_id, function = json.loads(asked.env or "{}").get("id"), f"{__name__}:examine"
        subject = Subject(repr(env_id), ("env", "id"))
        try:
            check_process.call(function, *arguments, subject=subject, limit_s=asked.env_limit_s, on_stage=self._take)
        except Exception as error:  # noqa: BLE001 - the top of a thread: the report names it
            is_late = isinstance(error, CheckEnded) and error.is_late
            self._facts = self._out_of_time() if is_late else structs.replace(self._facts, error=str(error))

    def _out_of_time(self) -> EnvFacts:
        return structs.replace(self._facts, stage=f"{self._facts.stage}, out of time")

    def _take(self, stage: Stage) -> None:
        facts = read_reply(json.loads(stage.known) or "")
        self._facts = facts if isinstance(facts, EnvFacts) else self._facts


def examine(env: str, mode: Any, seed: str, limit_s: float, code: str | None) -> Generator[Stage, None, None]:
    """Facts after each stage, in the check process. `code`: a folder with modules of the user."""
    from zmqrl.doctor.env_check import examine_env

    if code is not None:
        sys.path.insert(0, code)
    for facts in examine_env(from_json(EnvSection, json.loads(env)), mode, int(seed), limit_s):
        yield Stage(facts.stage, data_of(reply_line(facts)))
