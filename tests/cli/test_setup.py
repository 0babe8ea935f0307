"""`zmqrl setup`: what is refused before any host is asked. The hosts themselves: tests/launch/test_far_hosts.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.commands import Command

HOSTS = "hosts: {local: {workers: 1}, away: {manual: true}, node1: {ssh: 127.0.0.1, port: 9, groups: [cpu]}}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--limit", "local"], "no host to set up: this machine and manual hosts need no setup"),
        (["--limit", "away"], "no host to set up"),
        (["--limit", "node2"], "--limit node2: unknown host or group; did you mean 'node1'?"),
        (["--wheels", "."], "--wheels .: no wheels found; "),
        (["--wheels", "."], "constraints.txt annotated-types click cryptography "),
        (["--wheels", "none"], "--wheels none: no wheels found"),
        (["--wheels", "hosts.yaml"], "--wheels hosts.yaml: is a file, not a directory"),
        (["--constraints", "none.txt"], "--constraints none.txt: cannot be read: No such file or directory"),
        (["--set", "hosts.node1.prt=22"], "--set: hosts.node1.prt: unknown key (value 22); did you mean 'port'?"),
    ],
)
def test_what_cannot_be(zmqrl: Command, arguments: list[str], says: str) -> None:
    Path("hosts.yaml").write_text(HOSTS)
    ended = zmqrl("setup", "hosts.yaml", *arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert says in ended.err
    assert os.listdir() == ["hosts.yaml"]


@pytest.mark.whole
def test_a_host_that_refuses(zmqrl: Command) -> None:
    """Its cause and what mends it, and no other line."""
    Path("hosts.yaml").write_text(HOSTS)
    ended = zmqrl("setup", "hosts.yaml", "--limit", "cpu")
    assert (ended.code, ended.out) == (2, "")
    cause, fix = ended.err.splitlines()
    assert cause.startswith("node1: 127.0.0.1:9")
    assert fix.startswith("   ")
