"""Real power cuts, on a file system of their own: `benchmarks/power_cut.py` makes more of them."""

from __future__ import annotations

import pytest

from benchmarks import power_cut
from tests.marks import long


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
    """In sync to the same bits; `Cut.faults` has the checks."""
    shorter = {"sync-ppo": 50_000, "async-dqn": 20_000}
    runs = {name: (p, mode, shorter.get(name, steps), more) for name, (p, mode, steps, more) in power_cut.RUNS.items()}
    monkeypatch.setattr(power_cut, "RUNS", runs)
    cut = session.cut(run, moment)
    assert not cut.faults, cut
    assert cut.exit_code == 0 or (cut.exit_code == 2 and not cut.had_begun), cut
