"""docs/upgrade.md lists each place outside of run directories that the code has."""

from __future__ import annotations

from pathlib import Path

import pytest

from zmqrl.config.former_keys import FORMER
from zmqrl.config.kinds import RENAMED
from zmqrl.config.sections import DefaultsSection
from zmqrl.learning.package_cache import cache_folder
from zmqrl.run_files.trusted_places import trust
from zmqrl.supervision.host_lock import AGENTS
from zmqrl.wire.runtime_folder import RUNTIME_VARIABLE, run_folder_root

TEXT = (Path(__file__).parents[1] / "docs" / "upgrade.md").read_text()


def test_the_page_has_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RUNTIME_VARIABLE, "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "ZMQRL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    trust("/lab")
    places = [path for path in tmp_path.rglob("*") if path.is_file()] + [cache_folder().parent.parent]
    named = [f"`~/{place.relative_to(tmp_path)}`" for place in places]
    defaults = DefaultsSection()
    named += [f"`{defaults.workdir}`", f"`{defaults.python.removesuffix('/bin/python')}`"]
    named += [f"`{AGENTS}-UID-*`", f"`${RUNTIME_VARIABLE}`", f"`{run_folder_root().parent}/zmqrl-UID`"]
    assert [name for name in named if name not in TEXT] == []


def test_the_page_has_every_former_key() -> None:
    pairs = {**RENAMED, **{f"algorithm.{old}": f"algorithm.{new}" for old, new in FORMER.items()}}
    assert [name for pair in pairs.items() for name in pair if f"`{name}`" not in TEXT] == []
