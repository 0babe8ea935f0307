"""What two versions of zmqrl must have in common so that the doctor of one examines a host with the other."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from zmqrl.messages import doctor, doctor_requests
from zmqrl.messages.command import EXAMINATION, BeginExamination
from zmqrl.messages.lines import line_of
from zmqrl.orchestrators.handshake import SENTINEL, versions

FORMATS = {
    1: "5d7a58a350b1593c",
    2: "a57956850d5631dc",
    3: "6b928d9350e40c30",
    4: "582d8cd31c1f506c",
    5: "cfb9b9c8d7551a59",
}
"""Number to digest of the types of requests and replies: a change takes the next number."""


def without_prose(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_prose(inner) for key, inner in schema.items() if key not in ("description", "title")}
    return [without_prose(inner) for inner in schema] if isinstance(schema, list) else schema


def test_requests_and_replies_change_with_their_number() -> None:
    _, schema = msgspec.json.schema_components((doctor_requests.Request, doctor.Reply))
    text = json.dumps([doctor.MARK, without_prose(schema)], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == FORMATS[EXAMINATION]
    assert versions()["examination"] == str(EXAMINATION) == str(max(FORMATS))


def test_the_handshake_and_the_command_that_begin_it_never_change() -> None:
    assert SENTINEL == "ZMQRL-AGENT 1 "
    assert line_of(BeginExamination()) == b'{"command":"examine"}\n'
