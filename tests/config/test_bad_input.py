# ruff: noqa: E501  # a case a line: the input and its message
"""Each class of bad input is one ConfigError that names file, line, key, value and the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load


def refused(tmp_path: Path, text: str, *flags: str) -> str:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(hosts_file=path, overrides=flags)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(path), "hosts.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: {seed: 1}\nreply: {}", "hosts.yaml:2: reply: unknown key; did you mean 'replay'?"),
        ("run:\n  sead: 3", "hosts.yaml:2: run.sead: unknown key (value 3); did you mean 'seed'?"),
        ("seed: 3", "hosts.yaml:1: seed: unknown key (value 3); did you mean run.seed?"),
        ("algorithm:\n  kind: ppo\n  learning_rat: 1", "hosts.yaml:3: algorithm.learning_rat: unknown key (value 1); did you mean 'learning_rate'?"),
        ("run:\n  seed: two", "hosts.yaml:2: run.seed: 'two': must be a valid integer"),
        ("run: {seed: true}", "hosts.yaml:1: run.seed: true: must be a valid integer"),
        ("run: {seed: '1'}", "hosts.yaml:1: run.seed: '1': must be a valid integer"),
        ("run: {debug: 1}", "hosts.yaml:1: run.debug: 1: must be true or false; write true"),
        ("run: {seed: }", "hosts.yaml:1: run.seed: null: must be a valid integer"),
        ("run: {total_env_steps: -5}", "hosts.yaml:1: run.total_env_steps: -5: must be greater than or equal to 1"),
        ("run: {mode: asink}", "hosts.yaml:1: run.mode: 'asink': must be 'single', 'sync', 'pipelined', 'async' or 'offline'; did you mean 'async'?"),
        ("hosts:\n  local: {workers: many}", "hosts.yaml:2: hosts.local.workers: 'many': must be a valid integer, or 'auto'"),
        ("env: 3", "hosts.yaml:1: env: 3: must be a mapping with the keys id, num_envs, vector_envs, segment_steps, kwargs, wrappers, schedule, report, frame_stack, max_episode_steps, recovery"),
        ("run: {seed: {a: 1}}", "hosts.yaml:1: run.seed: must be a valid integer, not a section"),
        ("algorithm: {learning_rate: .inf}", "hosts.yaml:1: algorithm.learning_rate: inf: a number must be finite"),
        ("algorithm: {kind: ppoo}", "hosts.yaml:1: algorithm.kind: unknown algorithm 'ppoo'"),
        ("run: {preset: cartpol-ppo}", "hosts.yaml:1: run.preset: unknown preset 'cartpol-ppo'; did you mean 'cartpole-ppo'?"),
        ("modes: {asnc: {}}", "hosts.yaml:1: modes.asnc: unknown key; did you mean 'async'?"),
        ("modes: {sync: {run: {mode: async}}}", "hosts.yaml:1: modes.sync.run.mode: 'async': a section of `modes` cannot set the mode"),
        ("modes: {sync: 3}", "hosts.yaml:1: modes.sync: 3: must be a mapping"),
        ("run: {preset: ./no.yaml}", "hosts.yaml:1: run.preset: "),
        ("run: {name: a/b}", "hosts.yaml:1: run.name: 'a/b': may contain only letters, digits"),
        ("a: 1\na: 2", "hosts.yaml:2: duplicate key 'a' (first at hosts.yaml:1)"),
        ("run:\n  seed: [1", "hosts.yaml:2: invalid YAML: the list that begins here has no ']', or lacks a comma"),
        ("hosts: [a]", "hosts.yaml:1: hosts: ['a']: must be a mapping (key: value)"),
        ("host: {}", "hosts.yaml:1: host: unknown key; did you mean 'hosts'?"),
        ("network: {modul: x}", "hosts.yaml:1: network.modul: unknown key (value 'x'); known keys of network: "),
        ("network: {module: x}", "hosts.yaml:1: network.module: unknown key (value 'x'); in zmqrl it is network.kind (a torch.nn.Module of your own: "),
        ("env: {id: a,\n  kwargs: {b: 1}\nrun:\n  seed: 1", "hosts.yaml:1: invalid YAML: the mapping that begins here has no '}', or lacks a comma"),
        ("hosts: {node[01:02]: {}}", "hosts.yaml:1: invalid YAML: the mapping that begins here has no '}', or lacks a comma; quote names such as"),
        ('run: {name: "a}\n', "hosts.yaml:1: invalid YAML: the quotation mark that begins here has no second one"),
        ("run:\n  preset:cartpole-ppo\n  mode: sync", "hosts.yaml:3: invalid YAML: unexpected ':'; check the indentation, and that the line"),
        ("run: {seed: 1}}", "hosts.yaml:1: invalid YAML: unexpected '}'; check the indentation and the brackets"),
        ("run:\n  name: @x", "hosts.yaml:2: invalid YAML: the text begins with '@'; put it in quotes"),
        ("run:\n  name: *x", "hosts.yaml:2: invalid YAML: the text begins with '*'; put it in quotes"),
        ("run:\n  name: *", "hosts.yaml:2: invalid YAML: the text begins with '*'; put it in quotes"),
        ("run:\n  mode: sync\n  seed:3\nenv: {}", "hosts.yaml:3: invalid YAML: the line lacks a ':' with a blank after it"),
        ("hosts:\n  local {workers: 2}", "hosts.yaml:2: a colon is missing: write `local: {`"),
        ("run: {}\n  seed: 3", "hosts.yaml:2: invalid YAML: unexpected indentation; all keys of a section begin in the same column"),
        ("run:\n  name: 'a' b", "hosts.yaml:2: invalid YAML: unexpected text after a value; put the whole value in quotes"),
        ("{run: {}} b", "hosts.yaml:1: invalid YAML: unexpected text after a value; put the whole value in quotes"),
        ("hosts:\n  a: &d {workers: 1}\n  b: {<<: *d}", "hosts.yaml:3: merge keys (`<<: *name`) are not supported: write the keys themselves"),
        ("run: {'<<': 1}", "hosts.yaml:1: run.<<: unknown key"),
        ("hosts:\n  - a\n  b: 2", "hosts.yaml:3: invalid YAML: a key in a list; check the indentation"),
        ("code:\n  sync: - a", "hosts.yaml:2: invalid YAML: unexpected '- '; write each item of a list on its own line"),
        ("run: {}\n---\nenv: {}", "hosts.yaml:2: invalid YAML: a second document begins here; remove the line"),
        ("- 1", "hosts.yaml:1: expected a mapping `section: ...`, found [1]"),
        ("run: !!python/object:os.system {}", "hosts.yaml:1: the tag 'tag:yaml.org,2002:python/object:os.system' is not"),
        ("run: &a {seed: *a}", "hosts.yaml:1: the value contains itself"),
        ("hosts: {'n[1:x]': {}}", "hosts.yaml:1: hosts.n[1:x]: write a range as node[01:16]"),
        ("hosts:\n  node1:\n  workers: 3", "hosts.yaml:3: hosts.workers: 3: 'workers' is read as the name of a host; indent the key below its host"),
        ("hosts:\n  a b: {}", "hosts.yaml:2: hosts.a b: host names consist of"),
        ("learner: {host: gpu}\nhosts: {gpu1: {}}", "hosts.yaml:1: learner.host: 'gpu': unknown host; did you mean 'gpu1'? hosts: local, gpu1"),
    ],
)  # fmt: skip
def test_of_a_file(tmp_path: Path, text: str, message: str) -> None:
    assert refused(tmp_path, text).startswith(message)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("run.sead=1", "--set: run.sead: unknown key (value 1); did you mean 'seed'?"),
        ("run.seed=x", "--set: run.seed: 'x': must be a valid integer"),
        ("run.seed", "--set run.seed: write --set key=value"),
        ("modes.sync.foo=0", "--set modes.sync: foo: unknown key (value 0)"),
        ("modes.sync.env.num_envs=0", "--set modes.sync: env.num_envs: 0: must be"),
        ("run..seed=1", "--set run..seed: 'run..seed' is not a dotted key"),
        ("run.seed=[1", "--set run.seed=[1: invalid YAML"),
    ],
)
def test_of_a_flag(flag: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("cartpole-ppo", overrides=[flag])
    assert str(caught.value).startswith(message)


def test_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    with raises(ConfigError, key=(), what="file not found", source=str(tmp_path / "no.yaml")):
        load(hosts_file=tmp_path / "no.yaml")
    with raises(ConfigError, key=(), what="cannot be read: Is a directory", source=str(tmp_path)):
        load(hosts_file=tmp_path)


def test_of_too_many_aliases(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "more than 20000 values" in refused(tmp_path, "\n".join(lines))


def test_of_a_tab(tmp_path: Path) -> None:
    assert refused(tmp_path, "run:\n\tseed: 1").endswith(
        "hosts.yaml:2: invalid YAML: the line is indented with a tab; use spaces"
    )
