"""The weights of three reference runs, bit for bit: a refactoring that changes them is not one.

`tests/oracles/reference_digests.json` holds every setting that the weights depend on. OpenBLAS, MKL, torch and glibc
choose their kernels by the CPU, so digests belong to a CPU type. With the features beyond SSE2 switched off they belong
to a vendor: what is left is MKL's square root, which refines `rsqrtps`, an approximation of the vendor's own (all else
was found equal under qemu's Nehalem, Haswell and EPYC).
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.marks import long
from tests.support.runs.system_runs import PlanRun
from zmqrl.config.codec import from_json
from zmqrl.config.kinds import nested
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.planning.plan_run import plan_run

Begin = Callable[[RunPlan], PlanRun]
FIXTURE = json.loads((Path(__file__).parents[2] / "oracles" / "reference_digests.json").read_text())
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the digests are those of x86-64")


def _portable() -> dict[str, str]:
    """The environment of a process that uses no feature of the CPU beyond SSE2."""
    from numpy._core import _multiarray_umath as umath

    there = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
    return {
        "OPENBLAS_CORETYPE": "Nehalem",
        "MKL_CBWR": "COMPATIBLE",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "NPY_DISABLE_CPU_FEATURES": " ".join(there),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F,-AVX512VL,-SSE4_1,-SSE4_2",
    }


def _cpuinfo(key: str) -> str:
    found = re.search(rf"^{key}\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return "" if found is None else found.group(1)


VENDOR = _cpuinfo("vendor_id")
CPU = "-".join(map(_cpuinfo, ("vendor_id", "cpu family", "model")))


def _digest(begin: Begin, run_dir: Path, settings: dict[str, Any]) -> str:
    kept = {"evaluator": {"episodes": 0}, "hosts": {"local": {"workers": 1}}}
    config = from_json(Config, nested({**kept, **settings, "run": {**settings["run"], "mode": "single"}}))
    digest: str = begin(plan_run(config, run_dir, time.time())).done()["weights_sha256"]
    return digest


@X86
@pytest.mark.skipif(VENDOR not in FIXTURE["vendors"], reason=f"no digests of the vendor {VENDOR} are recorded")
@pytest.mark.parametrize("name", [name if name == "cartpole-ppo" else long(name) for name in FIXTURE["runs"]])
def test_on_any_cpu_of_this_vendor(name: str, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in _portable().items():
        monkeypatch.setenv(variable, value)
    assert _digest(begin, tmp_path / "run", FIXTURE["runs"][name]) == FIXTURE["vendors"][VENDOR][name]


@X86
@pytest.mark.skipif(CPU not in FIXTURE["cpus"], reason=f"no digests of the CPU type {CPU} are recorded")
@pytest.mark.parametrize("name", [name if name == "cartpole-dqn" else long(name) for name in FIXTURE["runs"]])
def test_on_this_cpu_type(name: str, tmp_path: Path, begin: Begin) -> None:
    assert _digest(begin, tmp_path / "run", FIXTURE["runs"][name]) == FIXTURE["cpus"][CPU][name]


def test_of_these_libraries() -> None:
    """The digests belong to these versions: a new one of torch or numpy records them again, in a commit of its own."""
    pins = dict(line.split("==") for line in (Path(__file__).parents[3] / "constraints.txt").read_text().splitlines())
    assert FIXTURE["versions"]["torch"] == pins["torch"]
    assert FIXTURE["versions"]["numpy"] == pins["numpy"] == np.__version__
