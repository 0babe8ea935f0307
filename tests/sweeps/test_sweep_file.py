"""The file of a sweep: which trials follow from it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.errors import ConfigError
from zmqrl.sweeps.sweep_file import Range, Sweep, SweepFile, read_sweep

RANDOM = "method: random\ntrials: 200\nparameters: "


def read(folder: Path, text: str) -> SweepFile:
    (folder / "f.yaml").write_text(f"preset: cartpole-ppo\n{text}\n")
    return read_sweep(folder / "f.yaml")


def test_a_grid_has_all_combinations_over_what_is_set_for_all(tmp_path: Path) -> None:
    keys = read(tmp_path, "parameters: {a.b: [1, 2], network.hidden: [[64, 64], [32]]}\nset: {run: {x: 1}, y: null}")
    assert keys.count == 4
    assert [Sweep(keys, "/", "/q").overrides(keys.parameters_of(trial)) for trial in (0, 3)] == [
        ("run.x=1", "y=null", "a.b=1", "network.hidden=[64, 64]"),
        ("run.x=1", "y=null", "a.b=2", "network.hidden=[32]"),
    ]


def test_a_list_has_its_items(tmp_path: Path) -> None:
    keys = read(tmp_path, "method: list\nparameters: [{a.b: 1}, {a: {c: x}}]")
    assert keys.count == 2
    assert Sweep(keys, "/", "/q").overrides(keys.parameters_of(1)) == ('a.c="x"',)


def test_random_trials_follow_from_the_seed_and_stay_in_their_intervals(tmp_path: Path) -> None:
    text = f"{RANDOM}{{a: [x, y], b: {{low: 1e-4, high: 1, log: true}}, c: {{low: 1, high: 3, integer: true}}, d: "
    keys = read(tmp_path, f"{text}{{low: -2, high: 2}}}}")
    drawn = [keys.parameters_of(trial) for trial in range(keys.count)]
    assert drawn == [keys.parameters_of(trial) for trial in range(200)]
    assert {each["a"] for each in drawn} == {"x", "y"}
    assert {each["c"] for each in drawn} == {1, 2, 3}
    assert 60 < sum(each["b"] < 1e-2 for each in drawn) < 140  # half of them, as the logarithm is uniform
    assert all(1e-4 <= each["b"] < 1 and -2 <= each["d"] < 2 for each in drawn)
    assert keys.parameters_of(0) != SweepFile("p", keys.parameters, "random", seed=2).parameters_of(0)


def test_logarithms_of_whole_numbers_have_both_ends() -> None:
    keys = SweepFile("p", {"a": Range(1, 8, log=True, integer=True)}, "random")
    assert {keys.parameters_of(trial)["a"] for trial in range(300)} == set(range(1, 9))


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("", "parameters", 1),
        ("parameters: []", "parameters", 2),
        ("parameters: {a.b: []}", "parameters.a.b", 2),
        ("parameters: {a: 3}", "parameters.a", 2),
        ("parameters: {a: {low: 1, high: 2}}", "parameters.a", 2),
        ("method: list\nparameters: {a: [1]}", "parameters", 3),
        (f"{RANDOM}[{{a: 1}}]", "parameters", 4),
        (f"{RANDOM}{{a: {{low: 2, high: 1}}}}", "parameters.a", 4),
        (f"{RANDOM}{{a: {{low: 1}}}}", "parameters.a", 4),
        (f"{RANDOM}{{a: {{low: 0, high: 1, log: true}}}}", "parameters.a", 4),
        (f"{RANDOM}{{a: {{low: 0.5, high: 8, log: true, integer: true}}}}", "parameters.a", 4),
        (f"{RANDOM}{{a: {{low: 0, hihg: 1}}}}", "parameters.a.hihg", 4),
        ("parameters: {a: {b: [1, 2]}}", "parameters.a", 2),
        (f"{RANDOM}\n  a: {{low: 1, high: 2, log: yes please}}", "parameters.a.log", 5),
        ("parameters: {a: [1]}\ntrials: 3", "trials", 3),
        ("method: random\nparameters: {a: [1]}\nbatch: 3", "batch", 4),
        ("set: {a: {b: 1}}\nparameters: {a.b: [1]}", "parameters.a.b", 3),
        ("parameters: {a: [1, 3e-4, 0.0003]}", "parameters.a", 2),
        ("parameters: {run.seed: [1]}", "parameters", 2),
        ("method: list\nparameters: [{a: 1}, {run.seed: 1}]", "parameters", 3),
        ("parameters: {a: [1]}\nseedz: 2", "seedz", 3),
        ("parameters: {a: [1]}\nmethod: tpe", "method", 3),
        ("parameters: {a: [1]}\nrungs: [20, 30]", "rungs", 3),
        ("parameters: {a: [1]}\nrungs: [20, 20]", "rungs", 3),
        ("parameters: {a: [1]}\nneeds: {cores: 70_000}", "needs.cores", 3),
        ("parameters: {a: [1]}\nneeds: {gpus: 2000}", "needs.gpus", 3),
        (f"parameters: {{a: {list(range(101))}, b: {list(range(101))}}}", "parameters", 2),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, key: str, line: int) -> None:
    parts = ("parameters", "a.b") if key == "parameters.a.b" else tuple(key.split("."))
    with raises(ConfigError, key=parts, source=f"{tmp_path / 'f.yaml'}:{line}"):
        read(tmp_path, text)
