"""What hosts.yaml says and what the user's ssh configuration says, put together."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.config.sections import DefaultsSection, HostSection
from zmqrl.errors import HostFailed
from zmqrl.ssh.config import Target, resolve

CONFIG = """
Include {folder}/more
Host alias
  HostName 10.1.2.3
  Port 2201
  User configured
  IdentityFile ~/.ssh/of_%h
  UserKnownHostsFile {folder}/known_a {folder}/known_b
  GlobalKnownHostsFile /dev/null
Host inner
  ProxyJump me@gw1:2222,gw2
Host gw1
  User ignored
  IdentityFile {folder}/gw1_key
Host *.lab
  ProxyJump gw.lab
Host proxied
  ProxyCommand nc %h %p
  HostKeyAlias other
  ConnectTimeout 33
Host tokens
  HostName 10.1.2.3
  Port 2201
  User far
  HostKeyAlias labnode
  ProxyJump me@gw1:2222,gw2
  IdentityFile %d/.ssh/%r@%k.key
  IdentityFile ${{KEYS}}/%i_%u_%l_%L
  IdentityFile /keys/%%%n_%h_%p_%C
  UserKnownHostsFile {folder}/known_%k ${{KEYS}}/kh2
  IdentityAgent ${{KEYS}}/agent.sock
Host unset
  IdentityFile ${{ZMQRL_NOT_SET}}/lab
Host variable
  IdentityAgent $KEYS
Host a
  ProxyJump b
Host b
  ProxyJump a
"""
MORE = "Host included\n  HostName 10.9.9.9\n"


@pytest.fixture(params=["ssh", "without ssh"])
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration above, read by the ssh client and without one (which knows no Include)."""
    text = CONFIG.format(folder=tmp_path)
    monkeypatch.setenv("KEYS", "/root/.keys")
    if request.param == "ssh":
        if shutil.which("ssh") is None:
            pytest.skip("no ssh client here")
    else:
        monkeypatch.setattr(shutil, "which", lambda name: None)
        text = text.replace(f"Include {tmp_path}/more", "")
    (tmp_path / "more").write_text(MORE)
    (tmp_path / "config").write_text(text)
    return tmp_path / "config"


def target(config: Path, host: str, defaults: DefaultsSection | None = None, **section: object) -> Target:
    return resolve(host, HostSection(**section), defaults or DefaultsSection(), config)  # type: ignore[arg-type]


def test_an_alias_of_the_configuration_holds(config: Path) -> None:
    found = target(config, "node", ssh="alias")
    assert (found.host, found.hostname, found.port, found.user) == ("node", "10.1.2.3", 2201, "configured")
    assert found.identities == (str(Path("~/.ssh/of_10.1.2.3").expanduser()),)
    assert found.known_hosts == (f"{config.parent}/known_a", f"{config.parent}/known_b")
    assert found.new_keys_file == f"{config.parent}/known_a"


def expanded(config: Path, name: str, text: str) -> str:
    """By the ssh client, which expands this option in the output of `ssh -G`."""
    command = ["ssh", "-F", config, "-G", "-o", f"ControlPath={text}", name]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line.partition(" ")[2] for line in lines if line.startswith("controlpath "))


def test_tokens_and_variables_have_the_values_that_ssh_gives_them(config: Path) -> None:
    found = target(config, "tokens")
    if shutil.which("ssh") is None:
        assert "%" not in "".join(found.identities).replace("/keys/%", "") and "$" not in str(found)
        return
    patterns = ("%d/.ssh/%r@%k.key", "${KEYS}/%i_%u_%l_%L", "/keys/%%%n_%h_%p_%C")
    assert found.identities == tuple(expanded(config, "tokens", pattern) for pattern in patterns)
    assert found.known_hosts[:2] == (f"{config.parent}/known_labnode", "/root/.keys/kh2")
    assert found.agent == "/root/.keys/agent.sock"
    assert target(config, "variable").agent == "/root/.keys"


def test_a_variable_that_is_not_set_is_named(config: Path) -> None:
    with raises(HostFailed, host="unset") as caught:
        target(config, "unset")
    assert "ZMQRL_NOT_SET" in caught.value.cause and "export ZMQRL_NOT_SET" in caught.value.fix


def test_the_hosts_own_keys_stand_above_the_configuration(config: Path) -> None:
    found = target(config, "alias", user="own", port=2300, identity="~/own_key", jump="elsewhere")
    assert (found.user, found.port) == ("own", 2300)
    assert found.identities == (str(Path("~/own_key").expanduser()),)
    assert found.identities_only
    assert found.jump is not None and found.jump.hostname == "elsewhere"


def test_defaults_stand_below_the_configuration(config: Path) -> None:
    defaults = DefaultsSection(user="lab", port=2400, identity="/keys/lab", jump="gate")
    found = target(config, "alias", defaults)
    assert (found.user, found.port) == ("configured", 2201)
    assert found.identities == (str(Path("~/.ssh/of_10.1.2.3").expanduser()),)
    found = target(config, "plain", defaults)
    assert (found.hostname, found.user, found.port) == ("plain", "lab", 2400)
    assert found.identities == ("/keys/lab",)
    assert found.jump is not None and (found.jump.hostname, found.jump.port) == ("gate", 22)


def test_without_options_the_defaults_of_ssh_hold(config: Path) -> None:
    found = target(config, "plain")
    assert (found.hostname, found.port, found.user, found.jump) == ("plain", 22, getpass.getuser(), None)
    assert str(Path("~/.ssh/id_ed25519").expanduser()) in found.identities
    assert not found.identities_only
    assert str(Path("~/.ssh/known_hosts").expanduser()) == found.known_hosts[0]


def test_several_jump_hosts_are_a_chain_with_settings_of_their_own(config: Path) -> None:
    found = target(config, "inner")
    second = found.jump
    assert second is not None and second.hostname == "gw2"
    first = second.jump
    assert first is not None and (first.hostname, first.port, first.user, first.jump) == ("gw1", 2222, "me", None)
    assert first.identities == (f"{config.parent}/gw1_key",)
    assert found.login_command() == f"ssh -J me@gw1:2222,{second.user}@gw2 {found.user}@inner"


def test_a_jump_host_does_not_jump_over_itself(config: Path) -> None:
    if "Include" in config.read_text():  # by hand it would fail as well: the pattern has to leave gw.lab out
        with raises(HostFailed, host="gw.lab", cause="ssh rejects its configuration: jumphost loop via gw.lab"):
            target(config, "node.lab")
        config.write_text(config.read_text().replace("Host *.lab", "Host *.lab !gw.lab"))
    found = target(config, "node.lab")
    assert found.jump is not None and found.jump.hostname == "gw.lab"
    assert found.jump.jump is None


def test_the_jump_host_of_all_may_be_a_host_itself(config: Path) -> None:
    defaults = DefaultsSection(jump="me@gate:2022")
    assert target(config, "gate", defaults).jump is None
    found = target(config, "plain", defaults).jump
    assert found is not None and (found.user, found.port) == ("me", 2022)


def test_a_circle_of_jump_hosts_is_refused(config: Path) -> None:
    with raises(HostFailed, host="b", cause="more than 8 jump hosts, or a cycle of jump hosts"):
        target(config, "a")


def test_a_proxy_command_gets_its_tokens(config: Path) -> None:
    found = target(config, "proxied", port=2022)
    assert found.proxy_command == "nc proxied 2022"
    assert found.host_key_alias == "other"
    assert found.connect_timeout_s == 33
    assert target(config, "proxied", jump="gw").proxy_command is None


def test_include_is_followed_by_the_ssh_client_and_refused_without(config: Path) -> None:
    if "Include" in config.read_text():
        assert target(config, "included").hostname == "10.9.9.9"
    else:
        config.write_text(f"Include {config.parent}/more\n")
        cause = f"{config} has Include, which only the ssh client supports"
        with raises(HostFailed, host="included", cause=cause, fix="install it: apt install openssh-client"):
            target(config, "included")


@pytest.mark.parametrize("section", [{"ssh": "-oProxyCommand=x"}, {"user": "a\nPort 1"}, {"jump": 'a" b'}, {"ssh": ""}])
def test_values_that_would_be_more_than_one_are_refused(config: Path, section: dict[str, str]) -> None:
    if section == {"ssh": ""}:
        assert target(config, "node", **section).hostname == "node"
        return
    ((key, value),) = section.items()
    with raises(HostFailed, host="node", cause=f"{key}: invalid value {value!r}", fix=f"correct hosts.node.{key}"):
        target(config, "node", **section)


def test_a_broken_configuration_is_quoted(tmp_path: Path) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("no ssh client here")
    (tmp_path / "config").write_text("Host *\n  NoSuchKeyword yes\n")
    with raises(HostFailed, host="node", fix="try: ssh -G node"):
        target(tmp_path / "config", "node")


def test_paramiko_is_imported_only_when_a_host_is_connected_to() -> None:
    code = "import sys, zmqrl.ssh.connection; sys.exit('paramiko' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAIT_S)
