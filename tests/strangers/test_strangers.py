"""Algorithms that were written from the papers and the documentation pass the checks of an author.

In `bin/test` without the probes, which train; `make test-long` runs all of `check_algorithm`.
"""

import importlib
import re

import pytest

from tests.support.running import ROOT
from zmqrl.networks.spec import LayerSpec
from zmqrl.testing import LAYER, Layer, check_algorithm
from zmqrl.testing.probes import PROBES

MOST_LINES = 115
FOLDER = ROOT / "tests" / "strangers"
PRIVATE = re.compile(r"import .*\b_|[a-z)]\._[a-z]")
KINDS = {
    "munchausen": "Munchausen",
    "impala": "IMPALA",
    "iqn": "IQN",
    "c51": "C51",
    "her": "HER",
    "rainbow": "Rainbow",
    "rnd": "RND",
    "apex": "Apex",
    "r2d2": "R2D2",
}
SMALLER = {"r2d2": {"burn_in": 2, "length": 4}}
"""Fields of `Config` for the short form: each tower and each step of a sequence costs time in a trace."""
PROBE_NAMES = {env.__name__ for env in PROBES}
EACH = pytest.mark.parametrize("module", KINDS)


def made(module):
    return getattr(importlib.import_module(f"tests.strangers.{module}"), KINDS[module])


@EACH
def test_it_is_short_and_uses_public_names(module):
    text = (FOLDER / f"{module}.py").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert not PRIVATE.search(text)


@pytest.mark.whole
@EACH
def test_it_passes_the_checks_without_the_probes(module):
    kind = made(module)
    report = check_algorithm(kind, kind.Config(**SMALLER.get(module, {})), skip=PROBE_NAMES)
    assert len(report.passed) > 20 and report.imports_torch is False


@pytest.mark.long
@EACH
def test_it_passes_all_checks(module):
    report = check_algorithm(made(module))
    assert any("learned within" in name for name in report.passed)


def test_appo_passes_the_checks_without_the_probes():
    kind = made("impala")
    check_algorithm(kind, kind.Config(clip=0.2, epochs=2, minibatch_size=32), skip=PROBE_NAMES)


@pytest.mark.parametrize("check", LAYER, ids=lambda check: check.__name__)
def test_the_layer_of_iqn(check):
    options = (("quantiles", 4.0), ("cosines", 6.0))
    spec = LayerSpec("tests.strangers.implicit_quantiles:Quantiles", "q.2", 8, 12, options=options)
    check(lambda: Layer(spec, inputs=(8,)))
