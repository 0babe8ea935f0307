"""Windows of hosts: edges, midnight, days, and what is refused."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.support.raising import raises
from zmqrl.config.windows import Windows
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load_config

MONDAY = "2026-01-05"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text if "-" in text else f"{MONDAY} {text}")


@pytest.mark.parametrize(("text", "open_at", "closed_at"), [
    ("20:00-07:00", ("20:00:00", "23:59:59", "00:00", "06:59:59"), ("07:00", "12:00", "19:59:59")),
    ("08:00-12:00", ("08:00", "11:59:59"), ("07:59:59", "12:00", "00:00")),
    ("20:00-24:00", ("20:00", "23:59:59"), ("00:00", "19:59:59")),
    ("20:00-0:00", ("20:00", "23:59:59"), ("00:00", "19:59:59")),
    ("0:00-6:00, 22:00-24:00", ("00:00", "05:59", "22:00"), ("06:00", "21:59")),
    ("10:00:05-10:00:07", ("10:00:05", "10:00:06"), ("10:00:04", "10:00:07")),
    ("sat,SUN", ("2026-01-10 00:00", "2026-01-11 23:59:59"), ("2026-01-09 23:59:59", "2026-01-12 00:00")),
    ("20:00-07:00, Sat", ("2026-01-10 12:00", "20:00"), ("2026-01-11 12:00", "12:00")),
    ("Fri-Mon", ("00:00", "2026-01-09 00:00", "2026-01-11 12:00"), ("2026-01-06 00:00", "2026-01-08 23:59")),
])  # fmt: skip
def test_it_is_open(text: str, open_at: tuple[str, ...], closed_at: tuple[str, ...]) -> None:
    windows = Windows.of(text)
    assert [windows.is_open(at(time)) for time in open_at] == [True] * len(open_at)
    assert [windows.is_open(at(time)) for time in closed_at] == [False] * len(closed_at)


@pytest.mark.parametrize(("text", "now", "edge"), [
    ("20:00-07:00", "12:00", "20:00"),
    ("20:00-07:00", "20:00", "2026-01-06 07:00"),
    ("20:00-07:00", "06:59:59", "07:00"),
    ("Sat,Sun", "12:00", "2026-01-10 00:00"),
    ("Sat,Sun", "2026-01-10 12:00", "2026-01-12 00:00"),
    ("20:00-07:00, Sat, Sun", "2026-01-09 21:00", "2026-01-12 07:00"),
    ("20:00-24:00, 0:00-07:00", "21:00", "2026-01-06 07:00"),
])  # fmt: skip
def test_the_next_edge(text: str, now: str, edge: str) -> None:
    assert Windows.of(text).next_change(at(now)) == at(edge)


@pytest.mark.parametrize(("text", "wrong"), [
    ("07:00-07:00", "never opens"),
    ("", "invalid window"),
    ("20-07", "invalid window"),
    ("20:00", "invalid window"),
    ("20:00-25:00", "invalid time"),
    ("24:00-07:00", "invalid time"),
    ("20:60-21:00", "invalid time"),
    ("Sam", "invalid window"),
    ("Mon-Sun", "never closes"),
    ("0:00-24:00", "never closes"),
    ("00:00-12:00, 12:00-24:00", "never closes"),
])  # fmt: skip
def test_a_wrong_one_is_refused_with_its_key(text: str, wrong: str) -> None:
    with raises(ConfigError, key=("hosts", "a", "only"), value=repr(text)) as caught:
        load_config(overrides={"hosts.a.only": text, "hosts.local.workers": 1})
    assert wrong in caught.value.what


def test_the_wrong_one_of_several_is_named_and_a_single_one_once() -> None:
    for text, message in (("Sam", "invalid window"), ("Sat, 9-5", "'9-5': invalid window")):
        with pytest.raises(ValueError, match=f"^{message}"):
            Windows.of(text)


@pytest.mark.parametrize(("keys", "wrong"), [
    ({"hosts.a.manual": True, "hosts.a.only": "Sat"}, "hosts.a.only: the launcher cannot control the agent of a"),
    ({"run.mode": "single", "hosts.local.only": "Sat"}, "hosts.local.only: mode single has no rollout workers; "),
    ({"hosts.a.yield_when": {}}, "hosts.a.yield_when: the host would never yield; set load, or user_active"),
    ({"hosts.a.yield_when": {"load": -1}}, "hosts.a.yield_when.load: -1: must be greater than or equal"),
    ({"hosts.a.yield_when": {"lod": 1}}, "hosts.a.yield_when.lod: unknown key (value 1); did you mean 'load'"),
])  # fmt: skip
def test_other_faults_of_these_keys(keys: dict[str, object], wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides={"hosts.local.workers": 1, **keys})
    assert f"override: {wrong}" in str(caught.value)
