"""The memory backend of docs/extending/: a real broker receives its segments; its errors are those of the page."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.bus_ends.far_bus import FarBus, ready, take, write
from tests.shared_memory.bus_plans import ROWS, bus_plan
from tests.support.raising import raises
from tests.support.running import ROOT
from zmqrl.config.sections import MemoryBackendSection
from zmqrl.errors import ConfigError, TransportError

PAGE = (ROOT / "docs" / "extending" / "memory-backend.md").read_text()
MODULE, KIND = "folder_backend", "folder_backend:FolderBackend"


def block(name: str) -> str:
    """The code of the page whose first line is `# name`."""
    found = re.search(rf"```\w+\n# {re.escape(name)}\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"{name} is not on the page"
    return found[1]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Imported as a user's module is, in this process and in those that it starts."""
    (tmp_path / f"{MODULE}.py").write_text(block(f"{MODULE}.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    yield importlib.import_module(MODULE)
    del sys.modules[MODULE]


@pytest.mark.whole
def test_the_example_carries_segments(example: ModuleType, tmp_path: Path) -> None:
    carried = tmp_path / "carried"
    bus = FarBus(tmp_path, backend=MemoryBackendSection(KIND, {"path": str(carried), "look_every_s": 0.02}))
    try:
        source, sink = bus.source(), bus.far_sink()
        ready(sink)
        for index in range(6):
            write(sink, index)
            assert take(source, 1, sink) == [index]
        assert bus.arena.ledger().stored == 6 * ROWS
        assert (carried / bus.plan.run_id).is_dir(), "they did not travel over the bus"
    finally:
        bus.close()


def test_its_errors_are_those_of_the_page(example: ModuleType, tmp_path: Path) -> None:
    with raises(ConfigError, key=("memory_backend", "path"), value="'relative'"):
        example.FolderBackend(example.FolderConfig("relative"), bus_plan())
    (tmp_path / "file").touch()
    with pytest.raises(TransportError, match="file"):
        example.FolderBackend(example.FolderConfig(str(tmp_path / "file")), bus_plan()).send([b"frame"])
