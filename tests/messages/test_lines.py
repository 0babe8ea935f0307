"""Lines between launcher, agents and their children: what is sent passes, all else is refused, nothing raises."""

from __future__ import annotations

import ast
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import zmqrl
from tests.messages.samples import (
    AGENT,
    BUS,
    CHECK_REPORTS,
    CHECK_REQUESTS,
    CHILD,
    COMMANDS,
    EVALUATE,
    FILES,
    LAUNCHER,
    OF_PROCESSES,
    REAPED,
    REPLIES,
    REQUESTS,
    tag_of,
)
from tests.support.raising import raises
from zmqrl.config.plan import MOST_WORKERS
from zmqrl.errors import WireError
from zmqrl.messages import agent, check, command, doctor, doctor_requests, files, lines, process
from zmqrl.orchestrators.handshake import SENTINEL, handshake_line
from zmqrl.types import Version

PACKAGE = Path(zmqrl.__file__).parent
LISTS: list[tuple[Any, Any]] = [
    (CHILD, process.ChildEvent),
    (OF_PROCESSES, agent.Report),
    (COMMANDS, command.Command),
    (dict.fromkeys(map(type, AGENT)), agent.AgentEvent),
    (REQUESTS, doctor_requests.Request),
    (REPLIES, doctor.Reply),
    (CHECK_REPORTS, check.Report),
    (CHECK_REQUESTS, check.Request),
]


@pytest.mark.parametrize(
    ("samples", "union"),
    LISTS,
    ids=["child", "report", "command", "agent", "request", "reply", "check", "check request"],
)
def test_there_is_a_sample_of_each(samples: Any, union: Any) -> None:
    kinds = [sample if isinstance(sample, type) else type(sample) for sample in samples]
    assert set(kinds) == set(get_args(union))


def made_in(tree: ast.Module) -> set[str]:
    """Message types that a module makes, as `module.Type`."""
    local: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zmqrl.messages"):
            inside = (node.module or "").removeprefix("zmqrl.messages").removeprefix(".")
            local |= {alias.asname or alias.name: f"{inside}.{alias.name}".strip(".") for alias in node.names}
        elif isinstance(node, ast.ClassDef):  # a subclass with more methods
            for base in map(ast.unparse, node.bases):
                if base in local:
                    local[node.name] = local[base]
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name) if name in local:
                found.add(local[name])
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in local:
                found.add(f"{local[module]}.{name}")
    return found


@pytest.mark.whole
def test_every_message_is_made_somewhere() -> None:
    sources = [path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "messages"]
    made = set().union(*(made_in(ast.parse(source)) for source in sources if "zmqrl.messages" in source))
    samples = (
        *(*BUS, *CHILD, *OF_PROCESSES, *AGENT, *COMMANDS, *LAUNCHER, *FILES, *REQUESTS, *REPLIES, EVALUATE, REAPED),
        *(*CHECK_REPORTS, *CHECK_REQUESTS),
    )
    kinds = {f"{type(m).__module__.removeprefix('zmqrl.messages.')}.{type(m).__name__}" for m in samples}
    assert kinds - made == set()


@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("match event:\n case process.Ready(): pass\n case process.Left(): send(process.Ready)", set()),
        ("process.Ready()", {"process.Ready"}),
        ("doctor.Answer('a')", set()),
        ("Stopping()", {"command.Stop"}),
        ("class Own(Stopping): pass\nOwn()", {"command.Stop"}),
    ],
)
def test_a_message_that_is_only_received_is_not_made(code: str, made: set[str]) -> None:
    imports = "from zmqrl.messages import process\nfrom zmqrl.messages.command import Stop as Stopping\n"
    assert made_in(ast.parse(imports + code)) == made


@pytest.mark.parametrize("event", CHILD, ids=tag_of)
def test_what_a_child_sends_passes(event: Any) -> None:
    assert lines.child_event(lines.line_of(event)) == event


@pytest.mark.parametrize("event", AGENT, ids=tag_of)
def test_what_an_agent_sends_passes(event: Any) -> None:
    assert lines.agent_event(lines.line_of(event).decode()) == event


def test_every_worker_index_that_a_run_may_use_passes() -> None:
    last = MOST_WORKERS - 1
    assigned, ready = command.SetWorkers([0, last]), agent.ProcessReport("worker", last, process.Ready())
    judged = process.WorkerState("worker", last, 0, "lost")
    assert lines.command(lines.line_of(assigned)) == assigned
    assert lines.agent_event(lines.line_of(ready)) == ready
    assert lines.child_event(lines.line_of(judged)) == judged


@pytest.mark.parametrize("name", ["../b", "/etc/b", "", "b\0", "b\n", ".b", "-b", "\xf6"])
def test_a_log_has_the_name_of_a_file(name: str) -> None:
    with raises(WireError, reason="value") as caught:
        lines.agent_event(lines.line_of(agent.LogText(name, "text")))
    assert caught.value.detail.startswith("log: Expected `str` matching regex")


@pytest.mark.parametrize("message", COMMANDS, ids=tag_of)
def test_what_the_launcher_sends_passes(message: Any) -> None:
    assert lines.command(lines.line_of(message)) == message


def test_what_a_reaper_prints_passes() -> None:
    assert lines.reaped(lines.line_of(REAPED)) == REAPED


def test_what_the_evaluator_is_sent_passes() -> None:
    assert lines.evaluate(lines.line_of(EVALUATE)) == EVALUATE


@pytest.mark.parametrize("message", REQUESTS, ids=tag_of)
def test_requests_of_the_doctor_pass(message: Any) -> None:
    assert doctor_requests.read_request(doctor_requests.request_line(message)) == message


@pytest.mark.parametrize(
    ("read", "messages"),
    [
        (check.read_request, CHECK_REQUESTS),
        (check.read_report, CHECK_REPORTS),
    ],
)
def test_lines_of_templates_pass(read: Any, messages: list[Any]) -> None:
    assert [read(lines.line_of(message)) for message in messages] == messages


@pytest.mark.parametrize("reply", REPLIES, ids=tag_of)
def test_replies_to_the_doctor_pass(reply: Any) -> None:
    assert doctor.read_reply(doctor.reply_line(reply)) == reply


@pytest.mark.parametrize("message", FILES, ids=lambda m: type(m).__name__)
def test_what_is_in_a_file_is_read_back(message: Any) -> None:
    assert files.decode(type(message), lines.line_of(message)) == message


def test_the_handshake_of_an_agent_passes_and_others_do_not() -> None:
    line = handshake_line().removeprefix(SENTINEL)
    assert json.loads(lines.line_of(lines.handshake(line))) == json.loads(line)
    long = json.dumps({"versions": {"zmqrl": "9" * 256}, "pid": 1, "time": 1.0})
    for wrong in (
        long,
        "",
        "{}",
        '{"versions": [], "pid": 1, "time": 1.0}',
        '{"versions": {}, "pid": 1, "time": "now"}',
    ):
        with pytest.raises(WireError):
            lines.handshake(wrong)


def test_a_handshake_of_a_later_version_passes() -> None:
    """Versions are compared after it was read."""
    said = lines.handshake('{"versions": {"zmqrl": "9"}, "pid": 1, "time": 1.0, "later": true}')
    assert said.versions == {"zmqrl": "9"}


def report(**fields: Any) -> str:
    return json.dumps({"event": "process", "role": "learner", "index": 0, "report": fields})


@pytest.mark.parametrize(("line", "reason"), [
    ("", "not JSON"),
    ("7", "not JSON"),
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("{}", "unknown event"),
    ('{"event": 3}', "unknown event"),
    ('{"event": "ready"}', "unknown event"),
    ('{"event": "agent_exit", "code": 0}', "unknown event"),
    ('{"event": "host_failed", "cause": "c", "fix": "m"}', "unknown event"),
    ('{"event": "warning", "text": "t", "more": 1}', "fields"),
    ('{"event": "warning", "text": 7}', "value"),
    (report(event="dance"), "unknown event"),
    (report(event="notice"), "unknown event"),
    (report(event="metrics"), "fields"),
    (report(event="metrics", values={"a": 1}, more=1), "fields"),
    (report(event="metrics", values={"env_steps": math.nan}), "not JSON"),
    (report(event="metrics", values={"env_steps": 1e301}), "value"),
    (report(event="metrics", values={"env_steps": 1 << 63}), "value"),
    (report(event="metrics", values=[]), "value"),
    (report(event="score", env_steps=1, return_mean=1.0), "fields"),
    (report(event="ready").replace("learner", "boss"), "value"),
    (report(event="ready").replace('"learner"', '["worker"]'), "value"),
    (report(event="ready").replace("0", str(MOST_WORKERS)), "value"),
    (report(event="ready").replace('"index": 0', '"index": true'), "value"),
    ('{"event": "process", "role": "learner", "index": 0}', "fields"),
    ('{"event": "process", "role": "learner", "index": 0, "report": 7}', "value"),
], ids=lambda value: str(value)[-60:])  # fmt: skip
def test_each_wrong_line_of_an_agent_has_its_reason(line: str, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        lines.agent_event(line)
    assert caught.value.reason == reason


def test_a_large_line_that_is_refused_takes_no_multiple_of_its_size() -> None:
    wrong = '{"event": "dance", "filling": [' + "[]," * (1 << 20) + "0]}"
    tracemalloc.start()
    with pytest.raises(WireError) as caught:
        lines.agent_event(wrong)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.reason == "value" and peak < 1 << 20


@pytest.mark.parametrize("line", [
    '{"command": "join"}',
    '{"command": "join", "addresses": "a", "ports": [1, 2, 3], "token": null, "server": null, "enrolment": null}',
    '{"command": "join", "addresses": [], "ports": [1, 2], "token": null, "server": null, "enrolment": null}',
    '{"command": "join", "addresses": [], "ports": [1, 2, 65536], "token": null, "server": null, "enrolment": null}',
    '{"command": "set_workers", "workers": 7}',
    '{"command": "set_workers", "workers": [-1]}',
    '{"command": "allow", "allowed": {"serial": 1, "hosts": {"key": "b"}}}',
    '{"command": "stop", "now": true}',
    '{"command": "dance"}',
])  # fmt: skip
def test_a_wrong_command_is_refused(line: str) -> None:
    with pytest.raises(WireError):
        lines.command(line)


def test_the_answer_to_a_request_names_one_result() -> None:
    assert lines.line_of(files.RequestAnswer(done="")) == b'{"done":""}\n'
    assert lines.line_of(files.RequestAnswer(refused="r")) == b'{"refused":"r"}\n'
    for wrong in ("{}", '{"done": "d", "refused": "r"}', '{"done": null}'):
        with pytest.raises(WireError) as caught:
            files.decode(files.RequestAnswer, wrong)
        assert caught.value.reason == "value"


def test_a_file_with_names_that_are_not_unicode_is_read() -> None:
    """The standard library writes such text of a path as escapes that msgspec does not decode."""
    record = files.RunRecord("caf\udce9-1", 3, 4, "h", 1.5, "/caf\udce9.yaml")
    data = msgspec.structs.asdict(record)
    assert files.decode(files.RunRecord, json.dumps(data)) == record
    with pytest.raises(WireError) as caught:
        files.decode(files.RunRecord, json.dumps({**data, "pid": -1}))
    assert caught.value.reason == "value"


def test_what_is_not_finite_arrives_as_none() -> None:
    score = process.VersionScore(Version(0, 1), 5, math.nan, math.inf, 3, 4.0, True, False)
    arrived = lines.child_event(lines.line_of(score))
    assert arrived == msgspec.structs.replace(score, return_mean=None, return_std=None)


def test_text_that_is_not_unicode_and_numbers_of_numpy_are_sent() -> None:
    import numpy as np

    fault = process.ProcessFault("no file \udce4", {"reward": math.nan, "\udce4": "\udce4"}, [])
    assert lines.child_event(lines.line_of(fault)) == process.ProcessFault("no file ?", {"reward": None, "?": "?"}, [])
    array = lines.child_event(lines.line_of(process.ProcessFault("e", {"obs": np.arange(3)}, [])))
    assert array == process.ProcessFault("e", {"obs": "[0 1 2]"}, [])
    problem = lines.child_event(lines.line_of(process.ProblemReport("no file \udce4", "d")))
    assert problem == process.ProblemReport("no file ?", "d")
    values: Any = {"a": np.float32(0.5), "b": np.int64(7), "c": np.float64(1.5)}
    assert lines.child_event(lines.line_of(process.Metrics(values))) == process.Metrics({"a": 0.5, "b": 7, "c": 1.5})
    named = lines.child_event(lines.line_of(process.ProcessFault("e", {"path": Path("x")}, [])))
    assert named == process.ProcessFault("e", {"path": "x"}, [])
