"""Real power cuts, on a file system of their own: `benchmarks/power_cut.py` makes more of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from benchmarks import power_cut
from tests.support.marks import long
from tests.support.running import ROOT

CHANGES: Mapping[str, tuple[int, Sequence[str]]] = {
    "sync-ppo": (20_000, ("algorithm.kind=tests.stand_ins.tally:Tally", "algorithm.round_s=0.1")),
    "async-dqn": (20_000, ()),
}
"""Env steps, so that the latest moment comes before the end, and settings."""


@pytest.fixture(scope="module")
def session() -> power_cut.Session:
    why = power_cut.why_not()
    if why is not None:
        pytest.skip(why)
    return power_cut.Session(seed=5)


@pytest.mark.parametrize(
    ("run", "moment"), [("sync-ppo", "middle"), long("sync-ppo", "end"), long("async-dqn", "start")]
)
def test_a_cut_is_resumed(session: power_cut.Session, monkeypatch: pytest.MonkeyPatch, run: str, moment: str) -> None:
    """In sync to the same bits; `Cut.faults` has the checks. Of sync with a learner without torch."""
    preset, mode, _, more = power_cut.RUNS[run]
    steps, changes = CHANGES[run]
    monkeypatch.setitem(power_cut.RUNS, run, (preset, mode, steps, (*more, *changes)))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cut = session.cut(run, moment)
    assert not cut.faults, cut
    assert cut.exit_code == 0 or (cut.exit_code == 2 and not cut.had_begun), cut
