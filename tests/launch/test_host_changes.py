"""What `apply` requests of a live run: from its hosts and those of a file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.raising import fields, raises
from zmqrl.config.codec import replace
from zmqrl.config.load import Loaded, Sources
from zmqrl.config.sections import (
    Config,
    DefaultsSection,
    HostSection,
    LearnerSection,
    LimitsSection,
    NetworkSection,
    RunSection,
)
from zmqrl.errors import ConfigError
from zmqrl.launch.host_changes import Changes, HostNow, changes_to, reach, with_numbers_of
from zmqrl.messages.orchestrator import Handshake
from zmqrl.orchestrators.handshake import versions

HOSTS = {"local": HostSection(workers=1), "a": HostSection(workers=2, nice=3), "b": HostSection(workers=1)}
RUNNING = Config(run=RunSection(mode="sync"), hosts=HOSTS)
NOW = {"local": HostNow("ready", 1), "a": HostNow("ready", 2), "b": HostNow("ready", 1)}
REPEAT = "repeat the options of the launch (--set), or `zmqrl stop` the run, and resume it with the file"


def changes(hosts: dict[str, HostSection], now: dict[str, HostNow] = NOW, **config: Any) -> Changes:
    return changes_to(Loaded(replace(RUNNING, hosts=hosts, **config), Sources({})), RUNNING, now)


def test_hosts_join_and_drain_and_have_other_numbers_of_workers() -> None:
    new = HostSection(workers=4)
    found = changes({"a": HostSection(workers=3, nice=3, groups=("cpu",)), "b": HOSTS["b"], "c": new})
    assert found == Changes({"local": 0, "a": 3, "c": 4}, {"c": new})
    assert list(found.lines(NOW)) == ["local: drains, 1 worker", "a: 2 to 3 workers", "c: joins with 4 workers"]


def test_the_same_file_changes_nothing() -> None:
    assert changes(dict(HOSTS)) == Changes({}, {})
    assert changes({**HOSTS, "c": HostSection(workers=0)}) == Changes({}, {}), "a host without workers"


@pytest.mark.parametrize(("state", "workers", "section", "expected"), [
    ("drained", 0, HOSTS["a"], Changes({"a": 2}, {})),
    ("failed", 2, HOSTS["a"], Changes({"a": 2}, {})),
    ("failed", 2, HostSection(workers=2, nice=9), Changes({"a": 2}, {"a": HostSection(workers=2, nice=9)})),
    ("lost", 2, HOSTS["a"], Changes({}, {})),
    ("lost", 2, HostSection(workers=2), Changes({"a": 2}, {"a": HostSection(workers=2)})),
    ("away", 0, HOSTS["a"], Changes({}, {})),
    ("ready", 2, HostSection(workers="auto", nice=3), Changes({}, {})),
    ("drained", 0, HostSection(workers="auto", nice=3), Changes({"a": "auto"}, {})),
    ("drained", 0, HostSection(workers=0, nice=3), Changes({}, {})),
])  # fmt: skip
def test_by_the_state_of_the_host(state: str, workers: int, section: HostSection, expected: Changes) -> None:
    assert changes({**HOSTS, "a": section}, {**NOW, "a": HostNow(state, workers)}) == expected


@pytest.mark.parametrize(("config", "fault", "before"), [
    ({"hosts": {**HOSTS, "a": HostSection(workers=2)}}, fields("hosts.a.nice", "null", fix="zmqrl drain a first"), "3"),
    ({"hosts": HOSTS, "limits": LimitsSection(grace_s=7)}, fields("limits.grace_s", "7", fix=REPEAT), "15.0"),
    ({"hosts": HOSTS, "min_workers": 2}, fields("min_workers", "2", fix=REPEAT), "1"),
    ({"hosts": HOSTS, "defaults": DefaultsSection(python="/opt/python")},
     fields("defaults.python", "'/opt/python'", fix=REPEAT), "'~/venvs/zmqrl/bin/python'"),
])  # fmt: skip
def test_a_key_that_a_live_run_keeps_is_refused(config: dict[str, Any], fault: dict[str, Any], before: str) -> None:
    with raises(ConfigError, **fault, what=f"the live run has {before}, and cannot change it"):
        changes(**config)


def test_what_the_launch_has_resolved_is_no_change() -> None:
    running = replace(RUNNING, learner=LearnerSection(executor="manual"))
    loaded = Loaded(replace(running, learner=LearnerSection()), Sources({}))
    assert changes_to(loaded, running, NOW) == Changes({}, {})
    more = Loaded(replace(RUNNING, hosts={**HOSTS, "local": HostSection(workers=5)}), Sources({}), is_auto_here=True)
    assert changes_to(more, RUNNING, NOW) == Changes({}, {}), "workers: auto of this machine"


def test_auto_is_the_cores_but_one_and_in_sync_what_is_left_of_the_vector_envs() -> None:
    wanted = replace(RUNNING, hosts={**HOSTS, "c": HostSection(workers="auto")}, run=RunSection(mode="async"))
    needed = Changes({"b": 2, "c": "auto"}, {"c": HostSection(workers="auto")})
    found = {"c": Handshake({}, 1, 0.0, public="", cores=9)}
    assert with_numbers_of(needed, wanted, NOW, found) == {"b": 2, "c": 8}
    in_sync = replace(wanted, run=RunSection(mode="sync"), env=replace(wanted.env, vector_envs=7))
    assert with_numbers_of(needed, in_sync, NOW, found) == {"b": 2, "c": 2}


def test_each_unreachable_host_is_named() -> None:
    hosts = {name: HostSection(ssh="127.0.0.1", port=port) for name, port in (("x", 9), ("y", 10))}
    with raises(ConfigError, key=()) as refused:
        reach(Config(hosts=hosts), ["x", "y"])
    assert refused.value.what.splitlines()[::2] == [
        "x: 127.0.0.1:9 refused the connection",
        "y: 127.0.0.1:10 refused the connection",
    ]


def test_a_host_that_cannot_act_with_the_runtime_of_the_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Handshake({**versions(), "onnxruntime": None}, 1, 0.0)
    monkeypatch.setattr("zmqrl.launch.host_changes.handshakes_over", lambda shells, sections: [("x", answer)])
    config = Config(hosts={"x": HostSection(ssh="127.0.0.1")})
    assert reach(config, ["x"]) == {"x": answer}
    with raises(ConfigError, key=()) as refused:
        reach(replace(config, network=NetworkSection(runtime="onnx")), ["x"])
    assert refused.value.what == (
        "x: onnxruntime is missing, with which workers act (network.runtime: onnx)\n"
        "   install it there: pip install '.[onnx]' in a checkout of zmqrl "
        "(over SSH: zmqrl setup HOSTS.yaml --limit x --extras onnx)"
    )
