"""Which layer wins, and what is filled in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from generate import hosts_schema
from tests.support.raising import compare, raises
from tests.support.waiting import WAIT_S
from zmqrl.config import hosts
from zmqrl.config.presets import presets
from zmqrl.data_stores.make import place_of
from zmqrl.errors import ConfigError, key_of
from zmqrl.planning import configure
from zmqrl.planning.configure import load, load_config
from zmqrl.types import MODES

ROOT = Path(__file__).parents[2]


def written(tmp_path: Path, text: str, name: str = "hosts.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_the_later_layer_wins_and_each_key_has_its_source(tmp_path: Path) -> None:
    preset = written(
        tmp_path, "run: {seed: 1, total_env_steps: 10}\nmodes: {async: {run: {seed: 2, max_wall_s: 5}}}", "mine.yaml"
    )
    file = written(tmp_path, f"run:\n  preset: {preset}\n  max_wall_s: 6\n  mode: async\nlimits: {{grace_s: 1}}")
    loaded = load(hosts_file=file, overrides=["limits.grace_s=2"])
    run = loaded.config.run
    assert (run.seed, run.total_env_steps, run.max_wall_s, run.name) == (2, 10, 6.0, "mine")
    assert loaded.config.limits.grace_s == 2.0
    expected = {("run", "seed"): f"{preset}:2", ("run", "max_wall_s"): f"{file}:3", ("limits", "grace_s"): "--set"}
    assert {key: str(loaded.sources.by_key[key]) for key in expected} == expected
    assert load(hosts_file=file, mode="sync", seed=7).config.run.seed == 7
    assert load(hosts_file=file, mode="sync").config.run.seed == 1


@pytest.mark.parametrize(
    ("key", "source"),
    [
        ("env.num_envs", "mine.yaml:2"),
        ("env.segment_steps", "hosts.yaml:3"),
        ("env.id", "--set"),
        ("hosts.a.workers", "--set"),
        ("hosts.a.nice", "hosts.yaml:5"),
        ("hosts.local.workers", "--workers"),
        ("run.init_from", "--init-from"),
        ("run.mode", "--mode"),
        ("env", "mine.yaml:1"),
    ],
)
def test_an_error_has_the_place_of_its_key(tmp_path: Path, key: str, source: str) -> None:
    written(tmp_path, "env:\n  num_envs: 3", "mine.yaml")
    file = written(tmp_path, "run: {preset: mine.yaml}\nenv:\n  segment_steps: 4\nhosts:\n  a: {user: x}")
    sets = ["env.id=Acrobot-v1", "hosts.a.workers=0"]
    sources = load(hosts_file=file, overrides=sets, mode="sync", workers=1, init_from="/x", limit=["local"]).sources
    found = sources.place(ConfigError("is bad", key=key_of(key), value="7"))
    assert found.source.removeprefix(f"{tmp_path}/") == source
    assert str(found) == f"{found.source}: {key}: 7: is bad"


@pytest.mark.parametrize("name", ["n1", "n1.lab", "n1.lab.example.org"])
def test_a_key_of_a_host_has_the_place_of_the_host(tmp_path: Path, name: str) -> None:
    hosts = f"hosts:\n  b: {{workers: 1, ssh: {name}}}\n  {name}: {{workers: 1}}"
    file = written(tmp_path, f"run: {{preset: cartpole-ppo}}\n{hosts}")
    with raises(ConfigError, key=("hosts", name, "ssh"), value=repr(name), source=f"{file}:4"):
        load(hosts_file=file)


@pytest.mark.parametrize(
    ("key", "others", "places", "sentence"),
    [
        ("run.debug", (), (), "run.debug (default): 7: is bad"),
        ("replay.capacity", (), (), "preset cartpole-dqn: replay.capacity: 7: is bad"),
        (
            "replay.ratio",
            ("replay.slack", "replay.capacity"),
            (("replay.slack", "--set"),),
            "preset cartpole-dqn: replay.ratio: 7: is bad (replay.slack: --set)",
        ),
        ("replay.slack", ("replay.capacity",), (), "--set: replay.slack: 7: is bad"),
    ],
)
def test_an_error_names_no_file_of_the_package(
    key: str, others: tuple[str, ...], places: tuple[tuple[str, str], ...], sentence: str
) -> None:
    sources = load("cartpole-dqn", overrides=["replay.slack=9000"]).sources
    found = sources.place(ConfigError("is bad", key=key_of(key), value="7", others=tuple(map(key_of, others))))
    compare(found, places=places)
    assert str(found) == sentence


def test_an_error_without_a_key_has_no_place() -> None:
    sources = load("cartpole-ppo", overrides=["env.id=Acrobot-v1"]).sources
    for error in (ConfigError("the arena needs 7 MB"), ConfigError("3", key=("no_such", "key"))):
        assert sources.place(error) is error


def test_a_preset_is_found_next_to_the_hosts_file(tmp_path: Path) -> None:
    written(tmp_path, "run: {seed: 4}", "mine.yaml")
    file = written(tmp_path, "run: {preset: mine.yaml}")
    config = load_config(hosts_file=file)
    assert config.run.seed == 4
    assert config.run.preset == str(tmp_path / "mine.yaml")


def test_a_preset_builds_on_another_one_and_its_keys_go_over_every_mode_of_that(tmp_path: Path) -> None:
    written(tmp_path, "run: {seed: 5}\nmodes: {async: {env: {num_envs: 32, segment_steps: 9}}}", "lower.yaml")
    mine = written(tmp_path, "run: {preset: lower.yaml}\nenv: {num_envs: 3}", "mine.yaml")
    file = written(tmp_path, "run: {preset: mine.yaml, mode: async}")
    for config in (load_config(str(mine), mode="async"), load_config(hosts_file=file)):
        assert (config.run.seed, config.run.name, config.run.preset) == (5, "mine", str(mine))
        assert (config.env.num_envs, config.env.segment_steps) == (3, 9)
    own = load_config(str(mine), overrides=["run.preset=pendulum-sac"])
    assert (own.algorithm["kind"], own.env.num_envs) == ("sac", 3)


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("loop.yaml", [], "run.preset: {folder}/loop.yaml refers to itself"),
        ("wrong.yaml", [], "{folder}/wrong.yaml:1: run.preset: unknown preset 'nonsense'"),
        ("missing.yaml", [], "{folder}/missing.yaml:1: run.preset: {folder}/no.yaml: file not found"),
        ("empty.yaml", [], "{folder}/empty.yaml: the file sets no key"),
        ("wrong.yaml", ["run.preset=nonsense"], "--set: run.preset: unknown preset 'nonsense'"),
        ("README.md", [], "run.preset: unknown preset 'README.md'; known: "),
        (
            "cartpole-ppo",
            ["run.preset=pendulum-sac"],
            "--set: run.preset: 'pendulum-sac' cannot be combined with the preset",
        ),
    ],
)
def test_what_a_preset_cannot_build_on(tmp_path: Path, preset: str, overrides: list[str], message: str) -> None:
    written(tmp_path, "run: {preset: loop.yaml}", "loop.yaml")
    written(tmp_path, "run: {preset: nonsense}", "wrong.yaml")
    written(tmp_path, "run: {preset: ./no.yaml}", "missing.yaml")
    written(tmp_path, "# run:", "empty.yaml")
    named = str(tmp_path / preset) if preset.endswith(".yaml") else preset
    with pytest.raises(ConfigError) as caught:
        load_config(named, overrides=overrides)
    assert message.format(folder=tmp_path) in str(caught.value)


@pytest.mark.parametrize("key", ["store.path", "code.sync", "replay.load", "inventory", "run.preset"])
def test_a_path_of_an_unknown_user(key: str) -> None:
    value: object = ["~nouser/x"] if key == "code.sync" else "~nouser/x"
    with raises(ConfigError, key=key_of(key), value="'~nouser/x'", what="no user 'nouser' on this machine"):
        place_of(load_config(overrides={key: value}).store, Path("run"), None)


def test_null_resets_and_python_values_go_the_same_way() -> None:
    assert load_config("cartpole-ppo").run.stop_at_return == 475
    assert load_config("cartpole-ppo", overrides=["run.stop_at_return=null"]).run.stop_at_return is None
    assert load_config("cartpole-ppo", overrides=["algorithm.learning_rate=null"]).algorithm["learning_rate"] == 3e-4
    assert load_config("lunarlander-dqn", overrides=["algorithm.max_grad_norm=null"]).algorithm["max_grad_norm"] is None
    config = load_config("cartpole-ppo", overrides={"run.stop_at_return": None, "network": {"hidden": (8, 8)}})
    assert (config.run.stop_at_return, config.network.hidden) == (None, (8, 8))


@pytest.mark.parametrize(("text", "value"), [("1e-3", 1e-3), ("1.5E-4", 1.5e-4), ("1", 1.0), (".5", 0.5)])
def test_numbers_as_people_write_them(text: str, value: float) -> None:
    config = load_config("cartpole-ppo", overrides=[f"algorithm.learning_rate={text}"])
    assert config.algorithm["learning_rate"] == value


def test_counts_as_people_write_them_and_off_is_a_text() -> None:
    flags = ["run.total_env_steps=1e6", "replay.capacity=20_000", "security.curve=off"]
    config = load_config("cartpole-ppo", overrides=flags)
    assert (config.run.total_env_steps, config.replay.capacity, config.security.curve) == (1_000_000, 20_000, "off")


def test_another_env_drops_what_belonged_to_the_first(tmp_path: Path) -> None:
    preset = written(tmp_path, "env: {id: A-v0, kwargs: {x: 1}, wrappers: ['a:B'], num_envs: 3}", "p.yaml")
    config = load_config(str(preset), overrides=["env.id=B-v0"])
    assert (config.env.kwargs, config.env.wrappers, config.env.num_envs) == ({}, (), 3)
    assert load_config(str(preset), overrides=["env.id=A-v0"]).env.kwargs == {"x": 1}
    config = load_config(str(preset), overrides=["env.kwargs={y: 2}", "env.id=B-v0"])
    assert config.env.kwargs == {"y": 2}  # flags are one layer: their order does not matter


def test_empty_braces_empty_a_mapping_of_the_layers_below_and_no_section_or_host(tmp_path: Path) -> None:
    text = "env: {id: A-v0, kwargs: {x: 1, deep: {y: 2}}}\nhosts: {a: {env: {K: v}, workers: 3}, local: {workers: 1}}"
    file = written(tmp_path, text)

    def kwargs(*flags: str) -> object:
        return load(hosts_file=file, overrides=flags).config.env.kwargs

    assert kwargs() == kwargs("env={}") == {"x": 1, "deep": {"y": 2}}
    assert kwargs("env.kwargs.z=3", "env.kwargs={}") == kwargs("env={kwargs: {}}") == {}
    assert kwargs("env.kwargs={}", "env.kwargs.z=3") == {"z": 3}
    assert kwargs("env.kwargs.deep={}") == {"x": 1, "deep": {}}
    assert load(hosts_file=file, overrides={"env.kwargs": {}}).config.env.kwargs == {}
    over = written(tmp_path, f"run: {{preset: {file}}}\nenv: {{kwargs: {{}}}}\nlimits: {{}}", "over.yaml")
    written(tmp_path, text.partition("\n")[0])
    assert load(hosts_file=over).config.env.kwargs == {}
    written(tmp_path, text)
    host = load(hosts_file=file, overrides=["hosts.a={}", "hosts.a.env={}"]).config.hosts["a"]
    assert (host.workers, host.env) == (3, {})


def test_another_algorithm_drops_the_fields_of_the_first() -> None:
    config = load_config("cartpole-ppo", overrides=["algorithm.gamma=0.5", "algorithm.kind=dqn"])
    assert (config.algorithm["kind"], config.algorithm["batch_size"], config.algorithm["gamma"]) == ("dqn", 128, 0.5)


def test_everything_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    held = 0
    monkeypatch.setattr(hosts, "usable_cores", lambda: 8)
    monkeypatch.setattr(configure.HostLock, "held_workers", lambda self: held)
    config = load_config("acrobot-ppo")
    assert config.hosts["local"].workers == 4  # not more than vector envs in sync
    assert load_config("acrobot-ppo", mode="async").hosts["local"].workers == 7
    held = 5
    assert load_config("acrobot-ppo", mode="async").hosts["local"].workers == 2, "other runs have 5"
    held = 30
    assert load_config("acrobot-ppo", mode="async").hosts["local"].workers == 1
    with_cores = load_config("acrobot-ppo", mode="async", overrides=["hosts.local.cores=4"])
    assert with_cores.hosts["local"].workers == 3, "whatever other runs have"
    held = 0
    assert config.run.schedule_env_steps == config.run.total_env_steps
    assert load_config("cartpole-ppo", workers=3).hosts["local"].workers == 3


def test_ranges_of_hosts(tmp_path: Path) -> None:
    config = load_config(hosts_file=written(tmp_path, "hosts: {local: {workers: 1}, 'node[08:10].lab': {workers: 0}}"))
    assert list(config.hosts) == ["local", "node08.lab", "node09.lab", "node10.lab"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("preset", presets())
def test_presets_are_valid_in_every_mode(preset: str, mode: str) -> None:
    config = load_config(preset, mode=mode)  # type: ignore[arg-type]
    assert (config.run.name, config.run.preset, config.run.mode) == (preset, preset, mode)
    assert config.env.vector_envs >= 4


def test_the_example_and_the_schema_are_current() -> None:
    assert load_config(hosts_file=ROOT / "hosts.example.yaml").run.preset == "cartpole-ppo"
    assert hosts_schema.PATH.read_text() == hosts_schema.text(), "run: python -m generate.hosts_schema"


@pytest.mark.whole
def test_no_torch_and_within_the_second() -> None:
    code = (
        "import sys, time; from pathlib import Path; from zmqrl.planning.configure import load;"
        "from zmqrl.planning.plan_run import plan_run; loaded = load('cartpole-ppo');"
        "plan_run(loaded.config, Path('no-such-run'), time.time());"
        "print('torch' in sys.modules, 'zmq' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.split() == ["False", "False"]
