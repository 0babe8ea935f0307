"""A machine under two names is refused before anything starts, however the names lead to it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import raises
from zmqrl.config.sections import Config, HostSection, OrchestratorSection
from zmqrl.errors import ConfigError
from zmqrl.planning.logins import check_logins, check_participants

A = HostSection(ssh="10.0.0.1", user="u", workers=1)
ADDRESSES = {"gpu1": ["10.0.0.5"], "gpu1.lab.org": ["10.0.0.5", "2001:db8::5"], "gpu2": ["10.0.0.6"]}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server of names."""

    def look_up(name: str, *arguments: Any, **options: Any) -> list[Any]:
        if name not in ADDRESSES and not name[0].isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, 1, 6, "", (address, 0)) for address in ADDRESSES.get(name, [name])]

    monkeypatch.setattr("zmqrl.planning.logins.socket.getaddrinfo", look_up)


@pytest.fixture
def aliases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names of ~/.ssh/config: two of one machine, and two servers on another one."""
    config = tmp_path / "ssh_config"
    config.write_text(
        "Host big fast\n  HostName 10.0.0.7\n"
        "Host x\n  HostName 10.0.0.8\n  HostKeyAlias x\nHost y\n  HostName 10.0.0.8\n  HostKeyAlias y\n"
    )
    monkeypatch.setattr("zmqrl.ssh.settings.USER_CONFIG", str(config))


def test_one_host_under_two_names() -> None:
    with raises(ConfigError, what="b and a are the same host (u@10.0.0.1:22)", fix="use a"):
        check_logins(Config(hosts={"a": A, "b": A}), ["b"])


@pytest.mark.parametrize("changes", [{"port": 7}, {"user": "v"}, {"jump": "gw"}, {"ssh": "10.0.0.2"}, {"workers": 0}])
def test_another_login_is_another_host(changes: dict[str, Any]) -> None:
    """As is one without workers: it does not participate."""
    b = HostSection(**{"ssh": "10.0.0.1", "user": "u", "workers": 1, **changes})
    check_participants(Config(hosts={"a": A, "b": b}))


@pytest.mark.parametrize("kind", ["auto", "slurm"])
def test_names_are_compared_by_their_addresses(kind: str) -> None:
    config = Config(
        hosts={name: HostSection(user="u", workers="auto") for name in ("gpu2", "nowhere", "gpu1", "gpu1.lab.org")},
        orchestrator=OrchestratorSection(kind=kind),
    )
    if kind == "slurm":  # which names its nodes itself
        check_participants(config)
        return
    with raises(ConfigError, what="gpu1.lab.org and gpu1 are the same host (u@gpu1.lab.org:22)", fix="use gpu1"):
        check_participants(config)


def test_names_behind_a_jump_host_are_not_looked_up_here() -> None:
    hosts = {name: HostSection(user="u", workers=1, jump="gw") for name in ("gpu1", "gpu1.lab.org")}
    check_participants(Config(hosts=hosts))


@pytest.mark.usefixtures("aliases")
def test_names_of_the_ssh_configuration_are_resolved() -> None:
    check_participants(Config(hosts={name: HostSection(workers=1) for name in ("big", "x", "y")}))
    with raises(ConfigError, what="fast and big are the same host (root@10.0.0.7:22)", fix="use big"):
        check_participants(Config(hosts={name: HostSection(workers=1) for name in ("big", "fast")}))
