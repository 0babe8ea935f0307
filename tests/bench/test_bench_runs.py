"""The runs behind the benchmarks can be planned: a stricter check of configurations applies to them too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import zmqrl.bench
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load

pytestmark = pytest.mark.whole
FILES = sorted(Path(zmqrl.bench.__file__).parent.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_run_of_a_benchmark_is_planned(file: Path, tmp_path: Path) -> None:
    loaded = load(str(file), overrides=["hosts.local.workers=2"])
    assert checked_plan(loaded.config, tmp_path / "run", time.time(), sources=loaded.sources).total_workers == 2
