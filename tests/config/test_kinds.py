# ruff: noqa: E501  # a case a line: the input and its message
"""Each kind has its own keys, and those of a user's kind are checked as strictly as those of the package."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from generate import hosts_schema
from tests.support.raising import raises
from zmqrl.algorithms.ppo import PPO
from zmqrl.algorithms.start.make import completed
from zmqrl.config.codec import to_json
from zmqrl.config.kinds import SECTIONS, flat, nested
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load, load_config

HERE = __name__


@dataclass(frozen=True)
class ShelfConfig:
    """A user's, who knows nothing of FORBID_UNKNOWN."""

    floor: int
    room: str = "north"

    def __post_init__(self) -> None:
        if self.room == "attic" and self.floor < 3:
            raise ValueError("the attic is on floor 3")


class Shelf(DirectoryStore):
    """A user's store."""

    Config = ShelfConfig


@dataclass(frozen=True)
class MineConfig:
    """A user's."""

    gamma: float = 0.9


class Mine(PPO):
    """A user's algorithm."""

    Config = MineConfig


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orchestrator:\n  kind: slurm\n  partitoin: cpu", ":3: orchestrator.partitoin: unknown key (value 'cpu'); did you mean 'partition'?"),
        ("orchestrator:\n  partition: cpu", ":2: orchestrator.partition: unknown key (value 'cpu'); known keys of orchestrator: kind"),
        ("orchestrator: {kind: slurn}", ":1: orchestrator.kind: unknown orchestrator 'slurn'; known: command, kubernetes, local, slurm, ssh;"),
        ("orchestrator: {kind: slurm, exclusive: 3}", ":1: orchestrator.exclusive: 3: must be true or false"),
        ("store:\n  pth: /x", ":2: store.pth: unknown key (value '/x'); did you mean 'path'?"),
        ("store: {keeep: 3}", ":1: store.keeep: unknown key (value 3); did you mean 'keep'?"),
        ("store: {kind: object}", ":1: store.url: required key is missing"),
        ("store: {kind: object, url: s3://b, path: /x}", ":1: store.path: unknown key (value '/x');"),
        ("store: {options: {path: /x}}", ":1: store.options: unknown key;"),
        ("memory_backend: {kind: zmq, x: 1}", ":1: memory_backend.x: unknown key (value 1);"),
        (f"store: {{kind: '{HERE}:Shelf', floor: 2, rooom: s}}", ":1: store.rooom: unknown key (value 's'); did you mean 'room'?"),
        (f"store: {{kind: '{HERE}:Shelf', floor: two}}", ":1: store.floor: 'two': must be a valid integer"),
        (f"store: {{kind: '{HERE}:Shelf', floor: 2, room: attic}}", ":1: store: the attic is on floor 3"),
        (f"store: {{kind: '{HERE}:Shelf'}}", ":1: store.floor: required key is missing"),
        (f"algorithm: {{kind: '{HERE}:Mine', gama: 1}}", ":1: algorithm.gama: unknown key (value 1); did you mean 'gamma'?"),
    ],
)  # fmt: skip
def test_a_key_that_the_kind_does_not_have_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(hosts_file=path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_options_of_every_layer_and_the_default_of_each_key(tmp_path: Path) -> None:
    path = written(
        tmp_path, f"store: {{kind: '{HERE}:Shelf', floor: 2, keep: 3}}\norchestrator: {{kind: slurm, qos: a}}"
    )
    config = load_config(hosts_file=path, overrides=["store.room=south", "orchestrator.partition=cpu"])
    assert (config.store.keep, config.store.options) == (3, {"floor": 2, "room": "south"})
    options = config.orchestrator.options
    assert (options["qos"], options["partition"], options["exclusive"]) == ("a", "cpu", False)


def test_another_kind_drops_the_options_of_the_first_and_keeps_what_is_common(tmp_path: Path) -> None:
    path = written(tmp_path, f"store: {{kind: '{HERE}:Shelf', floor: 2, keep: 3}}")
    store = load_config(hosts_file=path, overrides=["store.kind=directory", "store.path=/x"]).store
    assert (store.keep, store.options) == (3, {"path": "/x", "mirror": None})


def test_the_stored_form_has_the_options_next_to_the_kind(tmp_path: Path) -> None:
    path = written(tmp_path, "store: {path: /x}\norchestrator: {kind: slurm, gres: 'gpu:1'}")
    config = to_json(load_config(hosts_file=path))
    stored = json.loads(json.dumps(flat(config)))
    assert (stored["store"]["path"], stored["orchestrator"]["gres"]) == ("/x", "gpu:1")
    assert not any("options" in stored[section] for section in SECTIONS)
    assert nested(stored) == json.loads(json.dumps(config))


# --- the former section segment_transport

CARRIER = "tests.memory_backends.faulty_backend:FaultyBackend"


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        (f"segment_transport: {{kind: '{CARRIER}', folder: /x}}", []),
        (f"memory_backend: {{kind: zmq}}\nsegment_transport: {{kind: '{CARRIER}', folder: /x}}", []),
        (f"modes: {{sync: {{segment_transport: {{kind: '{CARRIER}', folder: /x}}}}}}", []),
        (f"memory_backend: {{kind: '{CARRIER}', folder: /y}}", ["segment_transport.folder=/x"]),
    ],
)
def test_a_former_section_is_accepted_and_reported_once(
    tmp_path: Path, text: str, overrides: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, text)
    for _ in range(2):
        backend = load_config(hosts_file=path, overrides=overrides).memory_backend
        assert (backend.kind, backend.options["folder"]) == (CARRIER, "/x")
    (record,) = caplog.records
    assert record.args is not None and record.args[1:3] == ("segment_transport", "memory_backend")


def test_a_stored_former_section_is_the_section_of_today() -> None:
    stored = {"memory_backend": {"kind": "zmq"}, "segment_transport": {"kind": CARRIER, "folder": "/x"}}
    assert nested(stored) == {"memory_backend": {"kind": CARRIER, "options": {"folder": "/x"}}}
    assert nested({"memory_backend": {"kind": "zmq"}}) == {"memory_backend": {"kind": "zmq", "options": {}}}


# --- the former keys learning_rate_schedule and clip_schedule

FORMER = "algorithm: {kind: ppo, learning_rate: 1e-3, learning_rate_schedule: linear, clip_schedule: constant}"
FALLING, CLIP = {"start": 1e-3, "end": 0.0, "fraction": 1.0, "shape": "linear"}, 0.2


@pytest.mark.parametrize(
    ("text", "overrides", "rate", "clip"),
    [
        (FORMER, [], FALLING, CLIP),
        (FORMER, ["algorithm.learning_rate=2e-3"], {**FALLING, "start": 2e-3}, CLIP),
        ("algorithm: {kind: ppo, clip_schedule: linear}", [], 3e-4, {**FALLING, "start": 0.2}),
        ("algorithm: {kind: ppo, learning_rate: {start: 1e-3}, learning_rate_schedule: constant}", [], FALLING, CLIP),
        ("run: {preset: cartpole-ppo}", ["algorithm.clip_schedule=constant"], FALLING, CLIP),
    ],
)
def test_a_former_key_is_accepted_and_reported_once(
    tmp_path: Path, text: str, overrides: list[str], rate: Any, clip: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, text)
    for _ in range(2):
        algorithm = load_config(hosts_file=path, overrides=overrides).algorithm
        assert (algorithm["learning_rate"], algorithm["clip"]) == (rate, clip)
    former = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert 1 <= len(former) == len(set(former))


def test_a_stored_former_key_is_the_key_of_today() -> None:
    stored = {"kind": "ppo_gru", "learning_rate": 1e-3, "learning_rate_schedule": "linear", "clip_schedule": "constant"}
    found = completed(stored)
    assert (found["learning_rate"], found["clip"]) == (FALLING, CLIP)
    assert completed(found) == found


def test_a_former_key_with_another_value_is_unknown(tmp_path: Path) -> None:
    with raises(ConfigError, key=("algorithm", "clip_schedule")):
        load_config(hosts_file=written(tmp_path, "algorithm: {kind: ppo, clip_schedule: cosine}"))


# --- the JSON schema


def accepts(shape: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether a section passes, as far as names of keys and kinds go."""
    known = shape.get("properties", {})
    if any(key not in known for key in given) and shape.get("additionalProperties", True) is False:
        return False
    if any(key not in given for key in shape.get("required", ())):
        return False
    for key, rule in known.items():
        rule = rule if isinstance(rule, dict) else {}
        if key in given and "const" in rule and given[key] != rule["const"]:
            return False
        if key in given and "pattern" in rule and not re.search(rule["pattern"], given[key]):
            return False
    return "anyOf" not in shape or any(accepts(option, given) for option in shape["anyOf"])


@pytest.mark.parametrize(
    ("section", "given", "accepted"),
    [
        ("store", {}, True),
        ("store", {"path": "/x", "keep": 3}, True),
        ("store", {"kind": "directory", "mirror": "s3://b"}, True),
        ("store", {"kind": "object", "url": "s3://b"}, True),
        ("store", {"kind": "object"}, False),
        ("store", {"url": "s3://b"}, False),
        ("store", {"kind": "object", "url": "s3://b", "path": "/x"}, False),
        ("store", {"kind": "tape"}, False),
        ("store", {"kind": "mine:Tape", "reel": 3}, True),
        ("orchestrator", {"kind": "slurm", "partition": "cpu"}, True),
        ("orchestrator", {"kind": "ssh", "partition": "cpu"}, False),
        ("orchestrator", {"partition": "cpu"}, False),
        ("algorithm", {"kind": "dqn", "n_step": 3}, True),
        ("algorithm", {"n_step": 3}, False),
    ],
)  # fmt: skip
@pytest.mark.whole
def test_an_editor_sees_the_keys_of_each_kind(section: str, given: dict[str, Any], accepted: bool) -> None:
    shape = hosts_schema.schema()["$defs"][section]
    assert accepts(shape, given) == accepted


def test_the_schema_has_the_type_of_an_option() -> None:
    (slurm,) = [
        option
        for option in hosts_schema.schema()["$defs"]["orchestrator"]["anyOf"]
        if option["properties"]["kind"].get("const") == "slurm"
    ]
    assert slurm["properties"]["exclusive"]["type"] == "boolean"
