"""The digest of what acting computes: equal where results are equal, another with other kernels of BLAS or numpy."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.support.yardstick import loop_s
from zmqrl.acting.digest import acting_digests

MOST_LOOPS = 100
PRINT = "from zmqrl.acting.digest import acting_digests; print(acting_digests()['numpy'])"


def digest(**environment: str) -> str:
    """In a process with these variables."""
    set_for = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-c", PRINT], env=set_for, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def here() -> str:
    return digest()


def test_it_is_the_same_in_another_process(here: str) -> None:
    assert digest() == here


@pytest.mark.parametrize(
    "variables",
    [
        {"OPENBLAS_CORETYPE": "Prescott"},  # a processor without AVX
        {"OPENBLAS_CORETYPE": "Sandybridge"},
        {"NPY_DISABLE_CPU_FEATURES": "FMA3 AVX2 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"},
    ],
)
def test_other_kernels_have_another_digest(here: str, variables: dict[str, str]) -> None:
    assert digest(**variables) != here


def test_it_takes_milliseconds() -> None:
    acting_digests()
    acting_digests.cache_clear()
    begun = time.process_time()
    found = acting_digests()
    assert time.process_time() - begun < MOST_LOOPS * loop_s()
    assert found["numpy"] != found["torch"], "that of torch depends on the processor and on the version of torch"
