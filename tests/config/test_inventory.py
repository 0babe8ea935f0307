"""Hosts of an Ansible inventory, read by Ansible itself, and the notations of ranges."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import fields, raises
from zmqrl.config import inventory
from zmqrl.config.hosts import names_of_range
from zmqrl.config.load import Request, resolve
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import config_of

INI = """
gpu1 ansible_host=10.1.1.1 ansible_port=2222
laptop ansible_connection=local

[cpu]
node[01:03] zmqrl_workers=2

[cpu:vars]
ansible_python_interpreter=/usr/bin/python3
zmqrl_python=/opt/rl/bin/python

[lab]
laptop zmqrl_workers=1

[lab:children]
cpu

[lab:vars]
ansible_user=lab
"""


needs_ansible = pytest.mark.skipif(importlib.util.find_spec("ansible") is None, reason="ansible-core is not installed")


def resolved(folder: Path, text: str, ini: str = INI, **more: object) -> Config:
    (folder / "lab.ini").write_text(ini)
    (folder / "hosts.yaml").write_text(text)
    return resolve(Request(hosts_file=folder / "hosts.yaml", **more), config_of).config  # type: ignore[arg-type]


@needs_ansible
def test_hosts_groups_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    text = "run: {mode: async}\ninventory: lab.ini\nlearner: {host: gpu1}\nhosts: {node02: {workers: 5, user: me}}\n"
    hosts = resolved(tmp_path, text).hosts
    assert sorted(hosts) == ["gpu1", "local", "node01", "node02", "node03"]
    gpu, first, second = hosts["gpu1"], hosts["node01"], hosts["node02"]
    assert (gpu.ssh, gpu.port, gpu.user, gpu.groups) == ("10.1.1.1", 2222, None, ())
    assert (first.workers, first.user, first.python, first.groups) == (2, "lab", "/opt/rl/bin/python", ("cpu", "lab"))
    assert (second.workers, second.user, second.python) == (5, "me", "/opt/rl/bin/python"), "hosts.yaml has precedence"
    assert (hosts["local"].workers, hosts["local"].user, hosts["local"].groups) == (1, None, ("lab",))


@needs_ansible
def test_limit_by_group_and_a_flag_instead_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "lab.ini").write_text(INI)
    overrides = [f"inventory={tmp_path}/lab.ini", "run.mode=async"]
    config = resolve(Request(overrides=overrides, limit=["node[01-02]"]), config_of).config
    assert sorted(config.hosts) == ["local", "node01", "node02"]


@needs_ansible
@pytest.mark.parametrize(("ini", "fault"), [
    ("[a", fields("inventory")),
    ("", fields("inventory", what="the inventory lists no hosts")),
    ("win ansible_connection=winrm", fields("ansible_connection", "'winrm'", what="only SSH and local are supported")),
    ("n1 zmqrl_worker=2", fields("zmqrl_worker", what="unknown key 'worker' of a host")),
    ("n1 ansible_user='{{ who }}'", fields("ansible_user", "'{{ who }}'", what="templates are not evaluated")),
    ("n1 zmqrl_workers=x", fields("hosts.n1.workers", "'x'", what="must be a valid integer, or 'auto'")),
])  # fmt: skip
def test_bad_inventories_give_one_message(tmp_path: Path, ini: str, fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        resolved(tmp_path, "inventory: lab.ini\n", ini)


def test_no_ansible_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"key": ("inventory",), "source": f"{tmp_path}/hosts.yaml:1"}
    with raises(ConfigError, **fields, value=repr(f"{tmp_path}/none.ini")):
        resolved(tmp_path, "inventory: none.ini\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    what = "ansible-inventory is not installed here: pip install ansible-core"
    with raises(ConfigError, **fields, value=repr(f"{tmp_path}/lab.ini"), what=what):
        resolved(tmp_path, "inventory: lab.ini\n")


def test_a_program_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / inventory.PROGRAM
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(inventory, "LIMIT_S", 0.2)
    with raises(ConfigError, key=("inventory",), what="ansible-inventory did not end within 0.2 s"):
        resolved(tmp_path, "inventory: lab.ini\n")


@pytest.mark.parametrize(("key", "names"), [
    ("n", ["n"]),
    ("node[01:03]", ["node01", "node02", "node03"]),
    ("node[08-10,20]", ["node08", "node09", "node10", "node20"]),
    ("r[1-2]n[1,3]x", ["r1n1x", "r1n3x", "r2n1x", "r2n3x"]),
    ("n[3]", ["n3"]),
])  # fmt: skip
def test_notations_of_ranges(key: str, names: list[str]) -> None:
    assert names_of_range(key) == names


@pytest.mark.parametrize(
    "key", ["n[", "n]", "n[]", "n[a-c]", "n[1-2", "n[1--2]", "n[3-1]", "n[1-2000]", "n[1-99]m[1-99]"]
)
def test_an_invalid_range(key: str) -> None:
    with raises(ConfigError, key=(key,)):
        names_of_range(key)
