"""The configuration of a launcher on another host: that host is `local`, the rest is as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.config.load import resolve_logins
from zmqrl.config.on_host import connections_of, login_of, on_host, text_of
from zmqrl.config.sections import CodeSection, Config, DefaultsSection, HostSection, LearnerSection, RunSection
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load, load_config

GPU1 = HostSection(
    workers=2, ssh="10.0.0.7", user="ann", python="/venv/bin/python", groups=("gpu",), nice=5, worker_device="auto"
)
NODE = HostSection(workers=3, ssh="10.0.0.8")
CONFIG = Config(
    hosts={"local": HostSection(workers=0), "node": NODE, "gpu1": GPU1}, learner=LearnerSection(host="gpu1")
)


def test_the_host_is_local_and_no_login_remains() -> None:
    found = on_host(CONFIG, "gpu1")
    assert found.hosts == {"local": HostSection(workers=2, groups=("gpu",), worker_device="auto"), "node": NODE}
    assert found.learner.host == "local"


def test_a_learner_on_a_third_host_stays_there() -> None:
    assert on_host(replace(CONFIG, learner=LearnerSection(host="node")), "gpu1").learner.host == "node"


def test_without_the_host_in_the_file_local_is_its_machine() -> None:
    config = Config(hosts={"local": HostSection(workers=7), "node": NODE})
    assert on_host(config, "gpu1").hosts == config.hosts
    assert on_host(config, "gpu1", is_auto_here=True).hosts["local"].workers == "auto"
    assert "local" not in on_host(Config(hosts={"node": NODE}), "login1").hosts


@pytest.mark.parametrize(
    ("jump", "left"), [("gpu1", None), ("ann@10.0.0.7:22", None), ("gw,gpu1", "gw,gpu1"), ("gpu10", "gpu10")]
)
def test_a_jump_over_the_host_itself_is_left_out(jump: str, left: str | None) -> None:
    hosts = {"gpu1": GPU1, "node": replace(NODE, jump=jump)}
    found = on_host(Config(hosts=hosts, defaults=DefaultsSection(jump=jump)), "gpu1")
    assert (found.hosts["node"].jump, found.defaults.jump) == (left, left)


@pytest.mark.parametrize(
    ("host", "changes", "key", "value"),
    [
        ("local", {}, ("--on",), "local"),
        ("gpu1", {"gpu1": HostSection(manual=True)}, ("--on",), "gpu1"),
        ("gpu1", {"local": HostSection(workers=1)}, ("hosts", "local", "workers"), "1"),
    ],
)
def test_a_host_that_cannot_have_the_launcher_is_refused(
    host: str, changes: dict[str, HostSection], key: tuple[str, ...], value: str
) -> None:
    config = replace(CONFIG, learner=LearnerSection(), hosts={**CONFIG.hosts, **changes})
    with raises(ConfigError, key=key, value=value):
        on_host(config, host)


def test_the_text_gives_the_same_configuration_there(tmp_path: Path) -> None:
    config = on_host(load_config("cartpole-dqn", overrides={"hosts.node.workers": 1}), "gpu1")
    file = tmp_path / "sent.yaml"
    file.write_text(text_of(config, None))
    assert load(hosts_file=file).config == config


def test_paths_of_this_machine_are_not_sent() -> None:
    config = replace(
        CONFIG, run=RunSection(preset="/home/ann/my.yaml", init_from="x"), code=CodeSection(sync=("/home/ann/my_envs",))
    )
    sent = yaml.safe_load(text_of(config, "/srv/code/abc"))
    assert (sent["run"]["preset"], sent["run"]["init_from"]) == (None, None)
    assert sent["code"]["sync"] == ["/srv/code/abc/my_envs"]
    assert "code" not in yaml.safe_load(text_of(replace(config, code=CodeSection()), None, keeps_code=True))


def test_connections_need_no_module_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "connections.yaml"
    file.write_text(connections_of(replace(on_host(CONFIG, "gpu1"), algorithm={"kind": "gone:Algorithm"})))
    found = load(hosts_file=file).config
    assert found.hosts["node"] == NODE and found.algorithm["kind"] == "ppo"


def test_logins_are_read_without_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(
        "algorithm: {kind: gone:Algorithm}\nrun: {preset: ./gone.yaml}\ndefaults: {python: /p, user: ann}\n"
        "hosts: {'gpu[1:2]': {port: 2222}}\n"
    )
    login = login_of(resolve_logins(file, ["hosts.gpu2.user=bob"]), "gpu2")
    assert (login.python, login.port, login.user, login.workdir) == ("/p", 2222, "bob", "~/zmqrl")
    assert login_of(resolve_logins(None), "gpu3").python == DefaultsSection().python
    file.write_text("hosts: {gpu1: {prot: 1}}\n")
    with raises(ConfigError, key=("hosts", "gpu1", "prot"), what="unknown key (value 1)"):
        resolve_logins(file)
