"""Algorithms that were written from the papers and the documentation pass the checks of an author.

In `bin/test` without the probes, which train; `make test-long` runs all of `check_algorithm`.
"""

import importlib
import re

import pytest

from tests.support.marks import long
from tests.support.running import ROOT
from zmqrl.testing import check_algorithm
from zmqrl.testing.probes import PROBES

MOST_LINES, MOST_LINES_WITH_ENV = 115, 145
"""With blank lines. The files that were written from the documentation alone have an env of their own."""
FOLDER = ROOT / "tests" / "strangers"
PRIVATE = re.compile(r"import .*\b_|[a-z)]\._[a-z]")
KINDS = {
    "her_from_docs": "HER",
    "r2d2_from_docs": "R2D2",
}
WITHOUT_GOALS = {"her_from_docs": {"share": 0.0}}
"""The observations of the checks have no goals."""
SMALLER = {
    **WITHOUT_GOALS,
    "r2d2_from_docs": {"burn_in": 2, "length": 4, "stride": 2},
}
"""Fields of `Config` for the short form: each tower and each step of a sequence costs time in a trace."""
PROBE_NAMES = {env.__name__ for env in PROBES}
EACH = pytest.mark.parametrize("module", KINDS)


def made(module):
    return getattr(importlib.import_module(f"tests.strangers.{module}"), KINDS[module])


@EACH
def test_it_is_short_and_uses_public_names(module):
    text = (FOLDER / f"{module}.py").read_text()
    assert len(text.splitlines()) <= (MOST_LINES_WITH_ENV if "gym.Env" in text else MOST_LINES)
    assert not PRIVATE.search(text)


@pytest.mark.whole
@pytest.mark.parametrize("module", ["her_from_docs", long("r2d2_from_docs")])
def test_it_passes_the_checks_without_the_probes(module):
    kind = made(module)
    report = check_algorithm(kind, kind.Config(**SMALLER.get(module, {})), skip=PROBE_NAMES)
    assert len(report.passed) > 20 and report.imports_torch is False


@pytest.mark.long
@EACH
def test_it_passes_all_checks(module):
    kind = made(module)
    report = check_algorithm(kind, kind.Config(**WITHOUT_GOALS.get(module, {})))
    assert any("learned within" in name for name in report.passed)
