"""The suite of `zmqrl.testing` over every data store of the package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.contracts.suites import name_of
from tests.data_stores.memory_store import MemoryStore
from tests.support.s3_server import BUCKET, S3Server
from zmqrl.data_stores import directory
from zmqrl.data_stores.base import DataStore
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.data_stores.object import ObjectStore
from zmqrl.plugins import modules
from zmqrl.testing.data_store import DATA_STORE, KEEP, StoreMaker

Check: TypeAlias = Callable[[StoreMaker], None]


@pytest.mark.parametrize("check", DATA_STORE, ids=name_of)
def test_directory(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SUPERSEDED_FOR_S", 0.0)
    check(lambda: DirectoryStore(str(tmp_path / "checkpoints"), KEEP))


@pytest.mark.parametrize("check", DATA_STORE, ids=name_of)
def test_memory(check: Check, tmp_path: Path) -> None:
    held = MemoryStore(str(tmp_path), KEEP)
    check(lambda: held)


@pytest.mark.parametrize("check", DATA_STORE, ids=name_of)
def test_object(check: Check, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    check(lambda: ObjectStore(f"s3://{BUCKET}/{tmp_path.name}", KEEP))


@pytest.mark.parametrize("check", DATA_STORE, ids=name_of)
def test_object_in_files(check: Check, tmp_path: Path) -> None:
    check(lambda: ObjectStore(f"file://{tmp_path}/objects", KEEP))


TESTS = {"directory": test_directory, "object": test_object}
"""Kind to the test that applies the suite to it."""


def test_every_kind_has_a_test() -> None:
    assert set(modules("zmqrl.data_stores", DataStore)) == set(TESTS)
