"""Lines between launcher, agents and their children: what is sent passes, all else is refused, nothing raises."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zmqrl
from tests.agent.plans import stand_in_plan
from zmqrl.errors import WireError
from zmqrl.launch.launcher import Launcher
from zmqrl.launch.picture import picture_of
from zmqrl.launch.plain_view import line_of
from zmqrl.launch.status import status_of
from zmqrl.launch.summary import summarise
from zmqrl.logs.lines import AGENT_EVENTS, CHILD_EVENTS, COMMANDS, command_of, event_of, handshake_of
from zmqrl.orchestrators.base import HostEvent
from zmqrl.orchestrators.introduction import SENTINEL, introduction
from zmqrl.orchestrators.local import LocalOrchestrator

PACKAGE = Path(zmqrl.__file__).parent
NOTICE = {"version": [0, 1], "key": "k", "nbytes": 3, "sha256": "s", "env_steps": 4, "updates": 5, "schedule": {}}
LEDGER = {"produced": 9, "stored": 8, "in_flight": 0, "dropped": {"unsealed": 1}, "duplicates_refused": 0}
OF_PROCESS: dict[str, Any] = {"role": "worker", "index": 0}
CHILD: dict[str, dict[str, Any]] = {
    "ready": {},
    "left": {},
    "notice": {"notice": NOTICE},
    "listening": {"ports": [1, 2, 3], "addresses": ["10.0.0.1"], "token": None},
    "refused": {"counts": {"size": 2}},
    "host_here": {"here": "local", "workers": [0]},
    "host_lost": {"lost": "local"},
    "worker_state": {"member": "worker", "place": 0, "spawn": 1, "state": "lost"},
    "first_step": {"wall": 1.5},
    "worker": {"env_steps": 5, "env_steps_per_s": 2.0, "wait_fraction": 0.5, "episodes": 1},
    "metrics": {"values": {"env_steps": 5, "updates": 6, "train_return_mean_100": 1.5}},
    "problem": {"cause": "c", "done": "d"},
    "resumed": {"version": "0-3", "env_steps": 5, "written_at": 1.5},
    "writing": {},
    "score": {"version": [0, 1], "env_steps": 5, "return_mean": 2.0, "return_std": 0.1, "episodes": 3, "wall": 4.0,
        "best": True, "final": False},
    "ended": {"reason": "stop", "env_steps": 5, "env_steps_before": 0, "updates": 6, "updates_lost": 0, "episodes": 1,
        "train_return_mean_100": None, "solved_at_env_steps": None, "solved_at_wall_s": None, "replay_ratio": 0.5,
        "policy_lag": {"mean": 0.5}, "weights_sha256": "s", "notice": NOTICE, "ledger": LEDGER},
    "fault": {"error": "e", "detail": {"slot": 1}, "lines": ["l"]},
}  # fmt: skip
AGENT: dict[str, dict[str, Any]] = {
    **{name: {**fields, **OF_PROCESS} for name, fields in CHILD.items() if name != "notice"},
    "started": {**OF_PROCESS, "pid": 3, "start_time": 4, "spawn": 0},
    "exit": {**OF_PROCESS, "pid": 3, "code": None, "expected": False, "cause": "c", "detail": {}, "log": "l",
        "log_tail": ["x"]},
    "restart": {**OF_PROCESS, "in_s": 0.5},
    "gave_up": {**OF_PROCESS, "cause": "c"},
    "failed": {"cause": "c"},
    "usage": {"processes": {"worker-0": {"pss_mb": 3.0, "cpu": 1.0}}, "leases": 2, "stored": 3},
    "finished": {
        "ledger": LEDGER,
        "peak_pss_mb": {"worker": 3.0},
        "ended": 5,
        "killed": [],
        "left": [],
        "final_stopped": True,
    },
    "log": {"name": "n", "text": "t"},
    "warning": {"text": "t"},
    "lease_lost": {"source": "broker"},
    "unreachable": {"cause": "c"},
    "joined": {"address": "a", "milliseconds": 1.0, "store": True},
}  # fmt: skip
SENT: dict[str, dict[str, Any]] = {
    "stop": {},
    "kill": {},
    "lease": {},
    "join": {"addresses": ["a"], "ports": [1, 2, 3], "token": None},
    "hold": {"workers": [0, 1]},
    "gone": {"host": "b", "workers": [2]},
}


def _sent_names(call: str, argument: int = 0) -> set[str]:
    """String literals that the package passes to methods of this name."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == call:
                value = node.args[argument] if len(node.args) > argument else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found.add(value.value)
    return found


def test_every_event_that_is_sent_is_known() -> None:
    sent = _sent_names("send") | _sent_names("_send")
    assert sent == set(CHILD_EVENTS) | set(AGENT_EVENTS), "an event is sent that no table names, or the reverse"


def test_every_command_that_is_sent_is_known() -> None:
    sent = set()
    for path in (PACKAGE / "launch", PACKAGE / "orchestrators", PACKAGE / "cli"):
        for file in path.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Dict) and node.keys and isinstance(node.keys[0], ast.Constant):
                    key, value = node.keys[0].value, node.values[0]
                    if key == "command" and isinstance(value, ast.Constant):
                        sent.add(value.value)
    assert sent == set(COMMANDS)


def test_there_is_a_sample_of_each() -> None:
    assert (set(CHILD), set(AGENT), set(SENT)) == (set(CHILD_EVENTS), set(AGENT_EVENTS), set(COMMANDS))


@pytest.mark.parametrize("name", CHILD)
def test_what_a_child_sends_passes(name: str) -> None:
    assert event_of(json.dumps({"event": name, **CHILD[name]}), CHILD_EVENTS) == (name, CHILD[name])


@pytest.mark.parametrize("name", AGENT)
def test_what_an_agent_sends_passes(name: str) -> None:
    assert event_of(json.dumps({"event": name, **AGENT[name]}), AGENT_EVENTS) == (name, AGENT[name])


@pytest.mark.parametrize("name", SENT)
def test_what_the_launcher_sends_passes(name: str) -> None:
    assert command_of(json.dumps({"command": name, **SENT[name]})) == (name, SENT[name])


@pytest.mark.parametrize(("line", "reason"), [
    ("", "not JSON"),
    ("7", "not JSON"),
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("{}", "unknown event"),
    ('{"event": 3}', "unknown event"),
    ('{"event": "agent_exit", "code": 0}', "unknown event"),
    ('{"event": "host_failed", "cause": "c", "mend": "m"}', "unknown event"),
    ('{"event": "metrics", "role": "learner", "index": 0}', "fields"),
    ('{"event": "metrics", "role": "learner", "index": 0, "values": {"env_steps": NaN}}', "value"),
    ('{"event": "metrics", "role": "learner", "index": 0, "values": []}', "value"),
    ('{"event": "score", "role": "evaluator", "index": 0, "env_steps": 1, "return_mean": 1.0}', "fields"),
    ('{"event": "ready", "role": "boss", "index": 0}', "value"),
    ('{"event": "ready", "role": ["worker"], "index": 0}', "value"),
    ('{"event": "ready", "role": "worker", "index": 70000}', "value"),
], ids=lambda value: str(value)[:40])  # fmt: skip
def test_each_wrong_line_of_an_agent_has_its_reason(line: str, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        event_of(line, AGENT_EVENTS)
    assert caught.value.reason == reason


@pytest.mark.parametrize("line", [
    '{"command": "join"}',
    '{"command": "join", "addresses": "a", "ports": [1, 2, 3]}',
    '{"command": "join", "addresses": [], "ports": [1, 2]}',
    '{"command": "hold", "workers": 7}',
    '{"command": "hold", "workers": [-1]}',
    '{"command": "gone", "host": "b"}',
    '{"command": "dance"}',
])  # fmt: skip
def test_a_wrong_command_is_refused(line: str) -> None:
    with pytest.raises(WireError):
        command_of(line)


def test_the_handshake_of_an_agent_passes_and_others_do_not() -> None:
    line = introduction().removeprefix(SENTINEL)
    assert handshake_of(line) == json.loads(line)
    for wrong in ("", "{}", '{"versions": [], "pid": 1, "time": 1.0}', '{"versions": {}, "pid": 1, "time": "now"}'):
        with pytest.raises(WireError):
            handshake_of(wrong)


ATOM = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=3)
KEY = st.sampled_from(("", "env_steps", "worker-0", "worker", "self", "host", "event", "name", "index"))
JSON = st.recursive(
    ATOM, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3), max_leaves=5
)


def _mutated(data: Any, value: dict[str, Any]) -> dict[str, Any]:
    """A few fields of `value`, at any depth, replaced, left out or added."""
    copy: dict[str, Any] = json.loads(json.dumps(value))
    for _ in range(data.draw(st.integers(1, 3))):
        at: Any = copy
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = data.draw(
                st.sampled_from([*keys, *(("role", "more", "self") if isinstance(at, dict) else ())] or [0])
            )
            inner = at.get(key) if isinstance(at, dict) else at[key] if at else None
            if isinstance(inner, (dict, list)) and inner and data.draw(st.booleans()):
                at = inner
                continue
            break
        if isinstance(at, list) and not at:
            continue
        if isinstance(at, dict) and key in at and data.draw(st.booleans()):
            del at[key]
        else:
            at[key] = data.draw(JSON)
    return copy


class Records:
    """What the launcher writes metrics into."""

    def record(self, wall: float, env_steps: int, values: dict[str, Any]) -> None:
        float(wall), int(env_steps), dict(values)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(sorted(AGENT)))
def test_what_the_launcher_takes_never_ends_it(tmp_path: Path, data: Any, name: str) -> None:
    plan = stand_in_plan(tmp_path / "run")
    (tmp_path / "run" / "logs").mkdir(parents=True, exist_ok=True)
    launcher = Launcher(plan, LocalOrchestrator(), plain=True)
    lines = [(name, AGENT[name]), (name, _mutated(data, AGENT[name])), ("exit", AGENT["exit"])]
    for event, fields in lines:
        try:
            taken, values = event_of(json.dumps({**fields, "event": event}), AGENT_EVENTS)
        except WireError:
            continue
        launcher._take(HostEvent("local", taken, values), Records())  # type: ignore[arg-type]
    state, now = launcher._state, time.time()
    status = status_of(state, now)
    picture_of(status)
    line_of(state, now)
    [str(problem) for problem in state.problems]
    summarise(plan, state, "done", 0, None, now)


@given(st.data(), st.sampled_from(sorted(CHILD)))
def test_any_line_of_a_child_is_an_event_or_a_wire_error(data: Any, name: str) -> None:
    try:
        event_of(json.dumps({"event": name, **_mutated(data, CHILD[name])}), CHILD_EVENTS)
    except WireError:
        pass


@given(st.data(), st.sampled_from(sorted(SENT)))
def test_any_command_is_one_or_a_wire_error(data: Any, name: str) -> None:
    try:
        command_of(json.dumps({"command": name, **_mutated(data, SENT[name])}))
    except WireError:
        pass
