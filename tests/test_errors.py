"""An error of the configuration is data; its sentence is rendered from the fields."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.raising import compare, raises
from zmqrl.errors import (
    DEFAULT,
    ArenaTooLarge,
    ConfigError,
    DamagedCheckpoints,
    EnvFault,
    FolderOfRuns,
    HostUnreachable,
    StoreError,
    StoreRefused,
    UntrustedRun,
    WireError,
    ZmqrlError,
)
from zmqrl.supervision.served_call import CheckEnded, Subject

HOST = ("hosts", "n1.lab", "ssh")
TWICE = {"key": HOST, "value": "'a'"}


@pytest.mark.parametrize(
    ("what", "fields", "sentence"),
    [
        ("it is full", {}, "it is full"),
        ("it is full", {"fix": "remove it"}, "it is full; remove it"),
        ("listed twice", {"key": HOST}, "hosts.n1.lab.ssh: listed twice"),
        ("listed twice", {**TWICE, "fix": "omit it"}, "hosts.n1.lab.ssh: 'a': listed twice; omit it"),
        ("listed twice", {"key": HOST, "source": "a.yaml:3"}, "a.yaml:3: hosts.n1.lab.ssh: listed twice"),
        ("listed twice", {**TWICE, "source": DEFAULT}, "hosts.n1.lab.ssh (default): 'a': listed twice"),
        ("file not found", {"key": (), "source": "a.yaml"}, "a.yaml: file not found"),
        ("", {"key": ("n[1:x]",), "fix": "write n[1:2]"}, "n[1:x]: write n[1:2]"),
        ("unknown host", {"key": ("--on",), "value": "a"}, "--on a: unknown host"),
        ("unknown host", {"key": ("--on",)}, "--on: unknown host"),
        ("unknown host", {"key": ("on",), "value": "'a'"}, "on: 'a': unknown host"),
        ("is large", {"key": ("run", "seed"), "value": "3", "is_subject": True}, "run.seed: 3 is large"),
        ("is large", {**TWICE, "is_subject": True, "source": DEFAULT}, "hosts.n1.lab.ssh (default): 'a' is large"),
        ("exists", {"key": ("--run-dir",), "value": "a", "is_subject": True}, "--run-dir a exists"),
        ("listed twice", {"key": ("--on",), "source": "a.yaml:3"}, "a.yaml:3: --on: listed twice"),
    ],
)  # fmt: skip
def test_a_sentence_is_rendered_from_the_fields(what: str, fields: dict[str, Any], sentence: str) -> None:
    assert str(ConfigError(what, **fields)) == sentence


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (StoreError("v0-7 was not found"), "v0-7 was not found"),
        (StoreError("cannot be written", name="v0-7", place="/a"), "v0-7 cannot be written in /a"),
        (StoreError("cannot be read", place="/a", cause="EIO", fix="see b"), "/a cannot be read: EIO; see b"),
        (StoreRefused("cannot be read", name="b", fix="set it"), "b cannot be read; set it"),
        (DamagedCheckpoints("has 1 checkpoint", ("b",), place="/a", cause="b: empty"), "/a has 1 checkpoint: b: empty"),
        (EnvFault("step returned NaN"), "step returned NaN"),
        (EnvFault("reset raised KeyError: 1", subject="A", place="a.py:3"), "A: reset raised KeyError: 1 (a.py:3)"),
        (CheckEnded("not finished", Subject("'a'", ("env", "id")), "start", True, "a.py:3, in f", "\n   b"),
         "env.id: 'a': start: not finished (a.py:3, in f)\n   b"),
        (WireError("host", "far sends for local"), "host: far sends for local"),
    ],
)  # fmt: skip
def test_a_sentence_of_another_error_is_rendered_from_its_fields(error: ZmqrlError, sentence: str) -> None:
    assert str(error) == sentence


def test_the_sources_of_other_keys_are_at_the_end() -> None:
    places = (("replay.capacity", "a.yaml:3"), ("run.mode", "--mode"))
    error = ConfigError("too large", key=("run", "seed"), source=DEFAULT).replaced(places=places)
    assert str(error) == "run.seed (default): too large (replay.capacity: a.yaml:3, run.mode: --mode)"


@pytest.mark.parametrize(
    ("sentence", "key", "what"),
    [
        ("store.folder: 'a': is missing", ("store", "folder"), "'a': is missing"),
        ("min_workers: 3: too many", ("min_workers",), "3: too many"),
        ("the arena needs 7 MB: too much", (), "the arena needs 7 MB: too much"),
        ("--on a: unknown", (), "--on a: unknown"),
    ],
)
def test_a_sentence_of_a_kind_of_a_user_has_the_key_that_it_begins_with(
    sentence: str, key: tuple[str, ...], what: str
) -> None:
    error = ConfigError(sentence)
    compare(error, key=key, what=what)
    assert str(error) == sentence


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("listed twice", key=HOST, value="'a'", fix="omit it", others=(("run", "mode"),), source="a.yaml:3"),
        HostUnreachable("no answer", key=("--resume",), value="a"),
        ArenaTooLarge("the arena needs 7 MB"),
        FolderOfRuns("a is a folder of 2 runs", ("a/1", "a/2")),
        UntrustedRun("a is of another user", "a", ("env.id: a:B",)),
        CheckEnded("not finished", Subject("'a'", ("env", "id")), "start", True, "a.py:3, in f"),
    ],
)
def test_an_error_with_one_other_field_keeps_its_class_and_the_others(error: ConfigError) -> None:
    other = error.replaced(source="b.yaml:1")
    assert type(other) is type(error) and other is not error
    assert vars(other) == {**vars(error), "source": "b.yaml:1"}
    assert vars(other.replaced(source=error.source)) == vars(error)


def placed() -> None:
    try:
        try:
            raise ValueError("3")
        except ValueError as error:
            raise ConfigError("listed twice") from error
    except ConfigError as error:
        raise error.replaced(source="a.yaml") from error.__cause__


def test_an_error_with_other_fields_keeps_its_cause_and_its_traceback() -> None:
    with raises(ConfigError, source="a.yaml", what="listed twice") as caught:
        placed()
    assert isinstance(caught.value.__cause__, ValueError)
    assert [entry.name for entry in caught.traceback][-2:] == ["placed", "placed"]


def test_an_error_without_a_key_gets_that_of_its_caller() -> None:
    found = ConfigError("unknown name", fix="known: a").of(("run", "preset"), source="a.yaml:1", fix="or a path")
    compare(found, key=("run", "preset"), source="a.yaml:1", what="unknown name", fix="known: a; or a path")
    assert str(found.of(("run", "preset"), source="b.yaml:2")) == f"b.yaml:2: run.preset: {found}"
    other = ConfigError("too small", key=("run", "seed"))
    assert str(other.of(("--resume",))) == "--resume: run.seed: too small"
    path = ConfigError("is not a class", key=(), value="'a:b'", is_subject=True)
    assert str(path.of(("store", "kind"))) == "store.kind: 'a:b' is not a class"
    assert str(path.of(("network", "runtime"), "'onnx'")) == "network.runtime: 'onnx': 'a:b' is not a class"


def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AssertionError):
        ConfigError("listed twice").replaced(place="a.yaml:3")


def test_fields_that_differ_are_found() -> None:
    with pytest.raises(AssertionError), raises(ConfigError, key=("run", "seed")):
        raise ConfigError("listed twice", key=HOST)
