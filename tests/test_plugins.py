"""What is reported about a kind that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from zmqrl.data_stores.base import DataStore
from zmqrl.errors import ConfigError
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.plugins import load
from zmqrl.segment_transports.base import SegmentTransport


@pytest.mark.parametrize(("base", "missing"), [
    (SegmentTransport, "receive, send"),
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
    with pytest.raises(ConfigError) as refused:
        load("incomplete:Part", "zmqrl.none", base)
    assert str(refused.value).startswith(f"'incomplete:Part' is not a complete {base.__name__}: ")
    assert str(refused.value).endswith(missing)


def test_a_missing_module_comes_with_the_fix() -> None:
    with pytest.raises(
        ConfigError, match=r"No module named 'zip_store'; run the command in .*hosts\.HOST\.env\.PYTHONPATH"
    ):
        load("zip_store:Zip", "zmqrl.data_stores", DataStore)


def test_another_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="'pathlib:Path' is not a subclass of DataStore"):
        load("pathlib:Path", "zmqrl.data_stores", DataStore)
