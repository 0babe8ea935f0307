from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from zmqrl import installed as module
from zmqrl.installed import installed
from zmqrl.orchestrators.handshake import PACKAGES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """First in the search path of modules."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module, "_folders", module._folders.__wrapped__)
    return tmp_path


def test_versions_are_those_of_the_metadata() -> None:
    for package in PACKAGES:
        try:
            expected: str | None = metadata.version(package)
        except metadata.PackageNotFoundError:
            expected = None
        assert installed(package) == expected


def test_a_missing_package() -> None:
    assert installed("no-such-package") is None


def test_the_first_of_two_is_imported(folder: Path) -> None:
    (folder / "numpy-0.1.dist-info").mkdir()
    assert installed("numpy") == "0.1"


def test_a_package_of_a_distribution(folder: Path) -> None:
    (folder / "odd_package.py").write_text("")
    (folder / "odd_package-1.5.egg-info").write_text("Metadata-Version: 1.1\nName: odd_package\nVersion: 1.5\n")
    assert installed("odd_package") == "1.5"


def test_a_module_without_a_version(folder: Path) -> None:
    (folder / "plain_module.py").write_text("")
    assert installed("plain_module") is None
