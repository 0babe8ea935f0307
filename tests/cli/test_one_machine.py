"""`launch` and `doctor` refuse a machine that is listed under two names, before they connect."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.commands import Command
from tests.support.raising import compare


@pytest.mark.parametrize("command", ["launch", "doctor"])
def test_two_aliases_of_one_machine_give_one_message(
    zmqrl: Command, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host big fast\n  HostName 127.0.0.1\n  Port 9\n")
    monkeypatch.setattr("zmqrl.ssh.settings.USER_CONFIG", str(config))
    hosts = {"big": {"workers": "auto"}, "fast": {"workers": "auto"}}
    Path("hosts.yaml").write_text(yaml.safe_dump({"run": {"preset": "cartpole-ppo"}, "hosts": hosts}))
    ended = zmqrl(command, "hosts.yaml")
    assert (ended.code, ended.out) == (2, "")
    compare(ended.error, fix="use big")
    assert not Path("runs").exists()
