# ruff: noqa: E501  # a case a line: the input and its message
"""Many hosts in one file: which are left by `--limit`, how many workers each has, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import raises
from zmqrl.config import hosts
from zmqrl.config.load import Loaded
from zmqrl.config.sections import Config, DefaultsSection, HostSection
from zmqrl.errors import ConfigError, key_of
from zmqrl.planning import configure
from zmqrl.planning.configure import load
from zmqrl.run_files.stored_config import stored_config

LAB = """
run: {preset: cartpole-ppo}
defaults: {user: rl, jump: gw.lab, nice: 5, workers: 2}
learner: {host: gpu1}
hosts:
  local: {workers: 1}
  gpu1: {workers: 3}
  node[01:03]: {workers: auto, groups: [cpu, new]}
  old07: {ssh: 10.0.3.7, user: ann, port: 2222, groups: [cpu]}
"""


def loaded(tmp_path: Path, text: str, limit: Sequence[str] = (), **options: Any) -> Loaded:
    (tmp_path / "hosts.yaml").write_text(text)
    return load(hosts_file=tmp_path / "hosts.yaml", limit=limit, **options)


def refused(tmp_path: Path, text: str, limit: Sequence[str] = (), **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text, limit, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{tmp_path}/", "")


def counts(config: Config) -> dict[str, object]:
    return {name: host.workers for name, host in config.hosts.items()}


def test_auto_of_another_host_waits_for_its_cores(tmp_path: Path) -> None:
    config = loaded(tmp_path, LAB, mode="async").config
    assert counts(config) == {"local": 1, "gpu1": 3, "node01": "auto", "node02": "auto", "node03": "auto", "old07": 2}
    known = hosts.with_cores(config, {"node01": 8, "node03": 1, "gpu1": 64})
    assert counts(known) == {"local": 1, "gpu1": 3, "node01": 7, "node02": "auto", "node03": 1, "old07": 2}


def test_in_sync_the_vector_envs_are_dealt_out_evenly(tmp_path: Path) -> None:
    text = "env: {vector_envs: 8}\nhosts: {local: {workers: 1}, a: {}, b: {}, c: {}}"
    config = loaded(tmp_path, text, mode="sync").config
    assert counts(hosts.with_cores(config, {"a": 9, "b": 2, "c": 9})) == {"local": 1, "a": 3, "b": 1, "c": 3}
    assert counts(hosts.with_cores(config, {"a": 9, "b": 9})) == {"local": 1, "a": 3, "b": 3, "c": "auto"}
    assert counts(hosts.with_cores(config, {"a": 3, "b": 2, "c": 2})) == {"local": 1, "a": 2, "b": 1, "c": 1}
    given = loaded(tmp_path, text.replace("a: {}", "a: {cores: 3}"), mode="sync").config
    assert counts(hosts.with_cores(given, {"b": 9})) == {"local": 1, "a": 2, "b": 4, "c": "auto"}
    few = loaded(tmp_path, text.replace("8", "2"), mode="sync").config
    assert counts(hosts.with_cores(few, {"a": 9, "b": 9, "c": 9})) == {"local": 1, "a": 1, "b": 0, "c": 0}


def test_this_machines_auto_leaves_the_others_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configure.HostLock, "held_workers", lambda self: 0)
    monkeypatch.setattr(hosts, "usable_cores", lambda: 64)
    text = "env: {vector_envs: 8}\nhosts: {local: {}, a: {}, b: {workers: 2}}"
    assert counts(loaded(tmp_path, text, mode="sync").config) == {"local": 3, "a": "auto", "b": 2}
    assert counts(loaded(tmp_path, text, mode="async").config) == {"local": 63, "a": "auto", "b": 2}
    monkeypatch.setattr(hosts, "usable_cores", lambda: 6)  # in an allocation
    assert counts(loaded(tmp_path, text, mode="async").config) == {"local": 5, "a": "auto", "b": 2}


def test_what_a_host_leaves_open_is_the_defaults(tmp_path: Path) -> None:
    config = loaded(tmp_path, LAB).config
    old = hosts.filled(config.hosts["old07"], config.defaults)
    assert (old.ssh, old.user, old.port, old.jump, old.nice, old.workdir) == (
        "10.0.3.7",
        "ann",
        2222,
        "gw.lab",
        5,
        "~/zmqrl",
    )
    node = hosts.filled(config.hosts["node02"], config.defaults)
    assert (node.ssh, node.user, node.port, node.python) == (None, "rl", None, "~/venvs/zmqrl/bin/python")
    assert hosts.filled(HostSection(nice=0), DefaultsSection(nice=5)).nice == 0


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (["node01"], {"gpu1": 0, "node01": "auto"}),
        (["gpu1"], {"gpu1": 3}),
        (["node0[12], local"], {"gpu1": 0, "local": 1, "node01": "auto", "node02": "auto"}),
        (["node[02:03]"], {"gpu1": 0, "node02": "auto", "node03": "auto"}),
        (["new", "old*"], {"gpu1": 0, "node01": "auto", "node02": "auto", "node03": "auto", "old07": 2}),
        (["*"], {"local": 1, "gpu1": 3, "node01": "auto", "node02": "auto", "node03": "auto", "old07": 2}),
    ],
)
def test_limit(tmp_path: Path, limit: list[str], left: dict[str, object]) -> None:
    assert counts(loaded(tmp_path, LAB, limit).config) == left


@pytest.mark.parametrize("term", ["node1", "", "cpu,", "[1:"])
def test_a_limit_that_names_nothing(tmp_path: Path, term: str) -> None:
    message = refused(tmp_path, LAB, [term])
    assert message.startswith(f"--limit {term.rpartition(',')[2] or repr('')}: unknown host or group")
    assert "hosts: local, gpu1, node01, node02, node03, old07; groups: cpu, new" in message
    assert ("did you mean 'node01'?" in message) == (term == "node1")


def test_a_learner_here_needs_no_line_of_its_own(tmp_path: Path) -> None:
    assert counts(loaded(tmp_path, "hosts: {a: {workers: 2}}").config) == {"a": 2}
    assert counts(loaded(tmp_path, "hosts: {a: {workers: 2}}", ["a"]).config) == {"local": 0, "a": 2}
    config = loaded(tmp_path, "learner: {host: gpu}\nhosts: {gpu: {workers: 2}}").config
    assert (config.learner.host, counts(config)) == ("gpu", {"gpu": 2})


def test_workers_flag(tmp_path: Path) -> None:
    text = "hosts: {local: {workers: 1}, node1: {workers: 1}, node2: {workers: 0}}"
    says = "--workers applies to this machine only, and other hosts are listed: node1; "
    assert refused(tmp_path, text, workers=2).startswith(says)
    assert counts(loaded(tmp_path, text, ["local"], workers=2).config) == {"local": 2}
    assert counts(loaded(tmp_path, text.replace("1: {workers: 1", "1: {workers: 0"), workers=2).config)["local"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts: {local: {ssh: 10.0.0.1}}", "hosts.yaml:1: hosts.local.ssh: '10.0.0.1': the name local means this machine"),
        ("hosts:\n  local:\n    python: /usr/bin/python3", "hosts.yaml:3: hosts.local.python: '/usr/bin/python3': the name local means this machine"),
        ("hosts: {local: {tunnel: true}}", "hosts.yaml:1: hosts.local.tunnel: true: the name local means this machine"),
        ("hosts: {local: {nice: 5}}", "hosts.yaml:1: hosts.local.nice: 5: processes on this machine inherit environment and niceness"),
        ("hosts: {local: {env: {A: b}}}", "hosts.yaml:1: hosts.local.env: {'A': 'b'}: processes on this machine inherit environment and niceness"),
        ("hosts: {local: {prologue: module load cuda}}", "hosts.yaml:1: hosts.local.prologue: 'module load cuda': it does not apply to this machine"),
        ("hosts: {local: {wrap: taskset 1}}", "hosts.yaml:1: hosts.local.wrap: 'taskset 1': it does not apply to this machine"),
        ("hosts: {a: {manual: true, wrap: taskset 1}}", "hosts.yaml:1: hosts.a.wrap: 'taskset 1': a manual host is not reached by SSH"),
        ("hosts: {a: {prologue: ' '}}", "hosts.yaml:1: hosts.a.prologue: ' ': must be one line of sh, not empty"),
        ('hosts: {a: {prologue: "a\\nb"}}', "hosts.yaml:1: hosts.a.prologue: 'a\\nb': must be one line of sh, not empty; separate commands by ';'"),
        ('defaults: {prologue: "a\\0b"}', "hosts.yaml:1: 'a\\x00b' contains a null character, which no path or command can have"),
        ("hosts: {a: {wrap: ''}}", "hosts.yaml:1: hosts.a.wrap: '': must be a command in one line, not empty"),
        ('hosts: {a: {wrap: "x\\ny"}}', "hosts.yaml:1: hosts.a.wrap: 'x\\ny': must be a command in one line"),
        ("hosts:\n  a:\n    wrap: sh -c 'x", 'hosts.yaml:3: hosts.a.wrap: "sh -c \'x": no closing quotation; quote words as in a shell'),
        ("hosts: {a: {wrap: A=b python}}", "hosts.yaml:1: hosts.a.wrap: 'A=b python': must begin with a command"),
        ("security: {curve: off}\nlearner: {host: b}\nhosts: {b: {}, a: {tunnel: true}}", "hosts.yaml:1: security.curve: 'off': host a would connect to the learner's host b"),
        ("hosts: {a: {workers: 1, manual: true, user: rl}}", "hosts.yaml:1: hosts.a.user: 'rl': a manual host is not reached by SSH"),
        ("learner: {host: a}\nhosts: {a: {manual: true}}", "hosts.yaml:2: hosts.a.manual: true: the learner runs on this host (learner.host), which is started manually"),
        ("learner: {host: a}\nhosts: {a: {tunnel: true}}", "hosts.yaml:2: hosts.a.tunnel: true: the learner runs on this host (learner.host), which cannot be reached by other hosts"),
        ("hosts: {-oProxyCommand=x: {}}", "hosts.yaml:1: hosts.-oProxyCommand=x: host names consist of letters"),
        ("hosts: {'a/b': {}}", "hosts.yaml:1: hosts.a/b: host names consist of letters"),
        ("hosts: {a: {ssh: -oProxyCommand=x}}", "hosts.yaml:1: hosts.a.ssh: '-oProxyCommand=x': must be a name or an address"),
        ("hosts: {a: {ssh: rl@b}}", "hosts.yaml:1: hosts.a.ssh: 'rl@b': must be a name or an address; the user goes into `user`"),
        ("hosts: {a: {user: '-l x'}}", "hosts.yaml:1: hosts.a.user: '-l x': invalid user name"),
        ("hosts: {a: {jump: 'b,-c'}}", "hosts.yaml:1: hosts.a.jump: 'b,-c': must be [user@]host[:port]"),
        ("hosts: {a: {python: venv/bin/python}}", "hosts.yaml:1: hosts.a.python: 'venv/bin/python': must be an absolute path, begin with ~/"),
        ("defaults: {workdir: zmqrl}", "hosts.yaml:1: defaults.workdir: 'zmqrl': must be an absolute path or begin with ~/"),
        ("hosts: {a: {env: {'A B': x}}}", "hosts.yaml:1: hosts.a.env.A B: names of environment variables consist of letters"),
        ("run: {mode: single}\nhosts: {local: {}, a: {}}", "hosts.yaml:2: hosts.a.workers: 'auto': mode single has no rollout workers; set 0, use --limit local"),
        ("security: {curve: off}\nhosts: {local: {}, a: {}}", "hosts.yaml:1: security.curve: 'off': host a would connect to the learner's host local over the network in plain text"),
        ("security: {curve: off}\nhosts: {local: {}, a: {manual: true}}", "hosts.yaml:1: security.curve: 'off': host a would connect"),
        ("security: {curve: off}\nlearner: {host: a}\nhosts: {local: {}, a: {}}", "hosts.yaml:1: security.curve: 'off': host local would connect to the learner's host a"),
        ("hosts: {a: {groups: cpu}}", "hosts.yaml:1: hosts.a.groups: 'cpu': must be a list; write [\"cpu\"]"),
        ("defaults: {user: rl}\nhosts:\n  a: {}\n  b: {ssh: A, user: rl}", "hosts.yaml:4: hosts.b.ssh: 'A': b and a are the same host; list it once"),
        ("hosts:\n  n[1:2]: {ssh: A}", "hosts.yaml:2: hosts.n2.ssh: 'A': n2 and n1 are the same host; list it once, with the total number of workers; all hosts of a range such as"),
        ("code: {sync: [./no_envs]}", "hosts.yaml:1: code.sync: 'no_envs': no such file or folder"),
        ("code: {sync: [a/m.py, m.py]}", "hosts.yaml:1: code.sync: 'm.py' and 'a/m.py': both would be imported as 'm.py'"),
        ("code: {max_mb: 0}", "hosts.yaml:1: code.max_mb: 0: must be greater than 0"),
    ],
)  # fmt: skip
def test_what_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m.py").touch()
    (tmp_path / "m.py").touch()
    assert refused(tmp_path, text).startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        "run: {mode: single}\nhosts: {local: {workers: 2}, a: {workers: 0}}",
        "run: {mode: single}\nlearner: {host: a}\nhosts: {a: {}}",
        "security: {curve: off}\nhosts: {local: {}, a: {tunnel: true}, b: {workers: 0}}",
        "security: {curve: off}\nlearner: {host: a}\nhosts: {a: {workers: 2}}",
        "hosts: {a: {ssh: 'fe80::1%eth0', jump: 'rl@gw:2222,gw2', python: python3, workdir: '~'}}",
        "hosts: {a: , b: {manual: true, workers: 2}}",
        "hosts: {a: {}, b: {ssh: a, port: 2222}, c: {ssh: a, user: ann}, d: {ssh: a, jump: gw}, e: {ssh: a, workers: 0}}",
        "defaults: {prologue: module load cuda/12, wrap: apptainer exec --nv ~/image.sif}\nhosts: {local: {}, b: {manual: true, workers: 2}}",
    ],
)
def test_what_can_be(tmp_path: Path, text: str) -> None:
    loaded(tmp_path, text)


@pytest.mark.parametrize("key", ["hosts.a.password", "defaults.pass", "ssh.passphrase", "password"])
def test_a_password_is_refused_and_not_repeated(tmp_path: Path, key: str) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: {a: {}}")
    with raises(ConfigError, key=key_of(key), value="", what="passwords are not supported") as caught:
        load(hosts_file=tmp_path / "hosts.yaml", overrides=[f"{key}=hunter2"])
    assert caught.value.fix.startswith("use SSH keys: `ssh-copy-id USER@HOST`")
    assert "hunter2" not in str(caught.value)


def test_code_to_send_is_found_next_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        (folder / "my_envs").mkdir(parents=True)
    monkeypatch.chdir(here)
    text = "code: {sync: [./my_envs, '../here/../there/my_envs/']}"
    assert "both would be imported" in refused(there, text.replace("../here/../there", "../here"))
    assert loaded(there, text).config.code.sync == (str(there / "my_envs"),) * 2
    file = there / "hosts.yaml"
    assert load(hosts_file=file, overrides=["code.sync=[my_envs]"]).config.code.sync == (str(here / "my_envs"),)


def test_a_data_set_is_found_next_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert loaded(tmp_path / "there", "replay: {load: data}").config.replay.load == str(tmp_path / "there" / "data")
    file = tmp_path / "there" / "hosts.yaml"
    assert load(hosts_file=file, overrides=["replay.load=data"]).config.replay.load == str(tmp_path / "data")


def test_a_resumed_run_takes_the_hosts_that_the_file_lists_now(tmp_path: Path) -> None:
    stored = stored_config(loaded(tmp_path, "hosts: {local: {workers: 1}, a: {workers: 1}}").config)

    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(stored))

    def resumed(file: Path | None, *flags: str) -> dict[str, object]:
        return counts(load(hosts_file=file, overrides=flags, stored=run).config)

    assert load(hosts_file=tmp_path / "hosts.yaml").config.hosts.keys() == {"local", "a"}
    (tmp_path / "hosts.yaml").write_text("hosts: {local: {workers: 2}, b: {workers: 1}}")
    assert resumed(tmp_path / "hosts.yaml") == {"local": 2, "b": 1}
    assert resumed(None, "hosts.local.workers=3") == {"local": 3, "a": 1}


def test_a_flag_reaches_one_host_of_a_range(tmp_path: Path) -> None:
    config = loaded(tmp_path, LAB, overrides=["hosts.node02.workers=0", "hosts.node[03:03].nice=3"]).config
    assert [config.hosts[f"node0{n}"].workers for n in (1, 2, 3)] == ["auto", 0, "auto"]
    assert (config.hosts["node02"].groups, config.hosts["node03"].nice) == (("cpu", "new"), 3)
    assert "host 'node02' is listed twice" in refused(tmp_path, LAB + "  node02: {}")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["gpu1"], "gpu1"),
        (["node01", "node02"], "node01, node02"),
        (["gpu1", "node08", "node09", "node10", "node12"], "gpu1, node[08:10], node12"),
        (["n9", "n10", "n11"], "n[9:11]"),
        (["local", "local2"], "local, local2"),
    ],
)
def test_names_that_follow_each_other_are_shown_as_ranges(names: list[str], text: str) -> None:
    assert hosts.ranges(names) == text
    assert [name for part in text.split(", ") if part for name in hosts.names_of_range(part)] == names
