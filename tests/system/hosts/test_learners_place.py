"""A place for checkpoints that only the learner's host can check: refused there, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.runs.ssh_runs import FarRun, closed_at_the_end


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(2) as lab:
        yield lab


@pytest.mark.parametrize(("store", "named"), [
    ({"path": "/proc/here"}, "store.path: owner.json cannot be written in /proc/here/"),
    ({"kind": "object", "url": "s3://lab/runs"}, "store.url: owner.json cannot be read in s3://lab/runs/"),
], ids=["directory", "object"])  # fmt: skip
def test_what_the_learners_host_refuses_ends_the_run_and_its_directory(
    lab: Lab, request: pytest.FixtureRequest, store: dict[str, Any], named: str
) -> None:
    config: dict[str, Any] = {
        "run": {"preset": "cartpole-ppo", "mode": "async", "total_env_steps": 4000},
        "evaluator": {"episodes": 0},
        "learner": {"host": "h1"},
        "store": store,
        "hosts": {"local": {"workers": 0}, **lab.hosts_yaml(1, workers=1)},
    }
    with closed_at_the_end() as runs:
        runs.append(FarRun(lab, f"refused-{request.node.callspec.id}", config))
        code, out, err = runs[0].end()
    assert code == 2, (out, err)
    assert named in err
    assert not runs[0].run_dir.exists()
