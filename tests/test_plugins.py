"""What is reported about a kind that cannot be used."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.config.sections import NetworkSection
from zmqrl.data_stores.base import DataStore
from zmqrl.errors import ConfigError
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.networks.build import tower
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.plugins import load, modules
from zmqrl.types import SpaceSpec


@pytest.mark.parametrize(("base", "missing"), [
    (MemoryBackend, "receive, send"),
    (DataStore, "best, newest, newest_full, place, read, retire, save, save_best, save_full"),
    (Orchestrator, "command, deploy, monitor, undeploy"),
], ids=lambda case: getattr(case, "__name__", ""))  # fmt: skip
def test_methods_that_are_not_defined_are_named(
    base: type, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = f"from {base.__module__} import {base.__name__}\n"
    (tmp_path / "incomplete.py").write_text(f"{origin}class Part({base.__name__}):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "incomplete", raising=False)
    what = f"is not a complete {base.__name__}: these methods are not defined: {missing}"
    with raises(ConfigError, value="'incomplete:Part'", what=what):
        load("incomplete:Part", "zmqrl.none", base)


class Part:
    """A base of kinds."""


def test_a_kind_may_be_in_a_package_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = tmp_path / "own_parts" / "family"
    family.mkdir(parents=True)
    text = f"from {__name__} import Part\n\n\nclass {{}}(Part):\n    pass\n"
    for path, content in {
        family.parent / "__init__.py": "",
        family.parent / "near.py": text.format("Near"),
        family / "__init__.py": "",
        family / "inner.py": text.format("Inner"),
        family / "shared.py": "",
    }.items():
        path.write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    assert modules("own_parts", Part) == ("inner", "near")
    assert load("inner", "own_parts", Part).__module__ == "own_parts.family.inner"


def test_a_missing_module_comes_with_the_fix() -> None:
    with raises(
        ConfigError, key=(), what="'zip_store:Zip' cannot be loaded as a DataStore: No module named 'zip_store'"
    ):
        load("zip_store:Zip", "zmqrl.data_stores", DataStore)


def test_another_class_is_refused() -> None:
    with raises(ConfigError, value="'pathlib:Path'", what="is not a subclass of DataStore: found class Path"):
        load("pathlib:Path", "zmqrl.data_stores", DataStore)


@pytest.mark.parametrize(("name", "shown"), [
    ("JSONDecoder", "class JSONDecoder"),
    ("decoder", "an object of type module"),
    ("lods", "module 'json' has no 'lods'; did you mean 'loads'?"),
    ("loads", "function loads"),
])  # fmt: skip
def test_what_was_found_instead_is_shown_by_name_and_form(name: str, shown: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(f"json:{name}", "zmqrl.data_stores", DataStore)
    assert str(refused.value).endswith(f": {shown}") or str(refused.value).endswith(f": found {shown}")


@pytest.mark.parametrize(("text", "cause"), [
    ("\nx = (\n", r"SyntaxError: '\(' was never closed \(.*broken_kind\.py:2\)"),
    ("raise RuntimeError('no licence')", r"RuntimeError: no licence \(.*broken_kind\.py:1, in <module>\)"),
    ("import pathlib\npathlib.nothing", r"AttributeError: .* \(.*broken_kind\.py:2, in <module>\)"),
])  # fmt: skip
def test_an_error_of_a_module_comes_with_its_file_and_line(
    text: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_kind.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_kind", raising=False)
    with raises(ConfigError, key=()) as caught:
        load("broken_kind:Part", "zmqrl.data_stores", DataStore)
    assert re.fullmatch(f"'broken_kind:Part' cannot be loaded as a DataStore: {cause}", caught.value.what)
    network, space = NetworkSection("broken_kind:Net"), SpaceSpec("box", (5,), "float32")
    with raises(ConfigError, key=("network", "kind")) as caught:
        tower("q", network, space, 3, output_gain=1.0)
    assert re.fullmatch(f"'broken_kind:Net' cannot be loaded: {cause}", caught.value.what)
