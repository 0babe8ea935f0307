"""What a network does to a run over several hosts: cuts, delay, loss."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from lab import Lab, lab_or_skip
from lab_runs import LEASE_S, LOST_S, assert_same, lab_run, small_run

from zmqrl.config.plan import RunPlan  # noqa: F401

STEPS = 20_000
DEAD_S = LEASE_S + 5.0


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """The laptop has the learner; h1 and h2 have workers."""
    with lab_or_skip(4, isolated=True) as lab:
        yield lab


@pytest.fixture(scope="module")
def undisturbed(lab: Lab) -> dict[str, Any]:
    """Of one machine."""
    with lab_run(lab, "undisturbed", small_run({"local": {"workers": 1}}, STEPS)) as run:
        return run.done()


def test_a_cut_shorter_than_the_lease(lab: Lab, undisturbed: dict[str, Any]) -> None:
    with lab_run(lab, "short", small_run(lab.hosts_yaml(1, 2, workers=1), STEPS)) as run:
        run.wait_for_version(10)
        lab.link(1, False)
        run.wait_for(lambda: any(w["state"] == "lost" for w in run.status()["workers"]) or True)
        import time

        time.sleep(LOST_S + 0.5)
        lab.link(1, True)
        at = run.version
        took_s = run.wait_for(lambda: run.version > at + 1)
        print("short cut: goes on after", round(took_s, 2), run.host("h1"))
        print(run.said)
        assert_same(run.done(), undisturbed)
        print(run.said)


def test_a_cut_longer_than_the_lease(lab: Lab, undisturbed: dict[str, Any]) -> None:
    with lab_run(lab, "long", small_run(lab.hosts_yaml(1, 2, workers=1), STEPS)) as run:
        run.wait_for_version(10)
        lab.link(1, False)
        took_s = run.wait_for(lambda: not run.processes_on(1))
        print("dead after", took_s)
        lab.link(1, True)
        assert took_s < DEAD_S
        assert_same(run.done(), undisturbed)
        print(run.said)
