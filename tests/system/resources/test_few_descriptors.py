"""A run whose processes need more descriptors than the soft limit of the shell that starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.descriptor_limit import descriptor_limit
from tests.support.running import Run

pytestmark = pytest.mark.whole
WORKERS, LIMIT = 6, 46
"""The host agent and the broker need 51 each."""


def test_the_soft_limit_does_not_matter(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = ["--workers", WORKERS, "--mode", "async", "--set", "run.total_env_steps=6000", "--run-dir", run_dir]
    with descriptor_limit(LIMIT):
        run = Run(Run.start("-m", "zmqrl", "train", "cartpole-ppo", *flags), run_dir)
    summary = run.done()
    assert (summary["restarts"], summary["env_steps"] >= 6000) == (0, True)
