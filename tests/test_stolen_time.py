from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stolen_time import ATTEMPTS, CpuTime, RunAgain

pytest_plugins = ["pytester"]

FAILS = """
import pytest
attempts = []
@pytest.mark.timed
def test_bound(tmp_path):
    attempts.append(tmp_path)
    assert len(attempts) > FAILS
def test_other():
    pass
"""


@pytest.fixture(autouse=True)
def timed_is_known(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = timed: has a bound\n    whole: a run\n")


def readings(withheld: int) -> Iterator[CpuTime]:
    """Each 100 ticks later, of which so many were withheld."""
    taken = 0
    while True:
        yield CpuTime(taken * (100 - withheld), taken * withheld)
        taken += 1


def run(pytester: pytest.Pytester, fails: int, withheld: int, mark: str = "timed") -> pytest.RunResult:
    """One test that fails `fails` times, and another one."""
    pytester.makepyfile(FAILS.replace("FAILS", str(fails)).replace("mark.timed", f"mark.{mark}"))
    measured = readings(withheld)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", plugins=[RunAgain(lambda: next(measured))])


def test_a_bound_missed_while_cpu_time_was_withheld_is_judged_again(pytester: pytest.Pytester) -> None:
    result = run(pytester, fails=1, withheld=30)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*timed tests that were run again*", "*test_bound: 30% of the CPU time was*"])


def test_a_bound_missed_each_time_fails(pytester: pytest.Pytester) -> None:
    run(pytester, fails=ATTEMPTS, withheld=30).assert_outcomes(passed=1, failed=1)


def test_a_bound_missed_on_a_machine_that_runs_fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, fails=1, withheld=2)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line("*run again*")


def test_a_test_without_a_bound_fails(pytester: pytest.Pytester) -> None:
    run(pytester, fails=1, withheld=30, mark="whole").assert_outcomes(passed=1, failed=1)


def test_the_machine_is_measured() -> None:
    before = CpuTime.now()
    assert before.used > 0 and 0 <= CpuTime.now().withheld_since(before) <= 1
