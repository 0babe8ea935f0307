"""The suite of `zmqrl.testing` over every orchestrator of the package."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.contracts.suites import name_of
from tests.lab import Lab, lab_or_skip
from tests.lab.slurm import Slurm, slurm_or_skip
from tests.support.kubernetes.cluster import IMAGE, Kubernetes, kubernetes_or_skip
from tests.support.marks import long
from tests.support.running import ROOT, RUN_S, environment
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.plugins import modules
from zmqrl.testing import orchestrator
from zmqrl.testing.deployed import Hosts, HostsMaker
from zmqrl.testing.orchestrator import ORCHESTRATOR

pytestmark = pytest.mark.whole
HELD_BY_LOCAL_RUNS = (
    orchestrator.a_stop_command_ends_the_run,
    orchestrator.nothing_outlives_a_killed_launcher,
    orchestrator.the_bits_are_those_of_one_machine,
)
"""Here also by tests/cli/test_runs.py, and by test_run_ends.py and test_determinism.py of tests/system."""
HELD_BY_RUNS = (
    *HELD_BY_LOCAL_RUNS,
    orchestrator.a_lost_host_is_deployed_again,
    orchestrator.doctor_examines_every_host,
    orchestrator.down_ends_a_run_and_reports_it,
)
"""Over SSH also by test_ssh_runs.py, test_host_environment.py, test_rejoin.py of tests/system/hosts, doctor, down."""
HELD_BY_SLURM_RUNS = (
    *HELD_BY_RUNS,
    orchestrator.undeploy_ends_a_running_run,
    orchestrator.undeploy_verifies_after_an_agent_was_killed,
    orchestrator.a_killed_worker_is_started_again,
    orchestrator.events_come_in_order,
)
"""On Slurm also by tests/system/hosts/test_slurm.py."""
OF_COMMAND = (
    orchestrator.config_is_a_frozen_dataclass,
    orchestrator.construction_starts_nothing,
    orchestrator.cores_answer_for_every_host,
)
"""Checks whose subject differs from that of an own kind over a PipedShell, which tests/test_extending.py runs."""
CONNECTS_TO_NOTHING = (orchestrator.config_is_a_frozen_dataclass, orchestrator.construction_starts_nothing)
"""They need no process that has the network of a lab."""
OF_OTHERS = (
    orchestrator.a_lost_host_is_deployed_again,
    orchestrator.cores_answer_for_every_host,
    orchestrator.down_ends_a_run_and_reports_it,
)
"""The kind local has another host in tests alone."""
Check: TypeAlias = Callable[[HostsMaker], None]
RunCheck: TypeAlias = Callable[[Check], None]


def without(held: Collection[Check]) -> list[Any]:
    """The suite; `make test-long` alone runs what whole runs hold too."""
    return [long(check) if check in held else check for check in ORCHESTRATOR]


@pytest.fixture
def local_hosts(tmp_path: Path) -> RunCheck:
    hosts = Hosts(tmp_path, {"orchestrator": {"kind": "local"}, "hosts": {"local": {"workers": 2}}})
    several = Hosts(tmp_path, {**hosts.settings, "hosts": {"local": {"workers": 1}, "node1": {"workers": 1}}})
    return lambda check: check(lambda: several if check in OF_OTHERS else hosts)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(2) as lab:
        yield lab


@pytest.fixture
def ssh_hosts(lab: Lab, tmp_path: Path) -> RunCheck:
    """Learner on this machine, a worker on another host: in a process that has the lab's network and ~/.ssh."""
    settings = {
        "orchestrator": {"kind": "ssh"},
        "hosts": {"local": {"workers": 0}, **lab.hosts_yaml(1, workers=1)},
    }

    def run(check: Check) -> None:
        if check in CONNECTS_TO_NOTHING:
            check(lambda: Hosts(tmp_path, settings))
            return
        folder = tempfile.mkdtemp(dir=lab.shared)
        argv = [sys.executable, "-m", "tests.contracts.one_check", check.__name__, folder, json.dumps(settings)]
        with lab.run_here(
            argv, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                out, _ = process.communicate(timeout=RUN_S)
            finally:
                process.kill()
        assert process.returncode == 0, out

    return run


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm_or_skip(1) as cluster:
        yield cluster


@pytest.fixture
def slurm_hosts(cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunCheck]:
    """A job for a worker's node; the learner is on this machine."""
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    nodes = {node: {"workers": 1} for node in cluster.nodes}
    hosts = Hosts(tmp_path, {"orchestrator": {"kind": "slurm"}, "hosts": {"local": {"workers": 0}, **nodes}})
    yield lambda check: check(lambda: hosts)
    cluster.await_idle()


@pytest.fixture
def command_hosts(tmp_path: Path) -> RunCheck:
    """A worker behind `env`; the learner is on this machine."""
    host = {"workers": 1, "python": sys.executable, "workdir": str(tmp_path / "far")}
    kind = {"kind": "command", "run": ["env", "ON={host}"]}
    hosts = Hosts(tmp_path, {"orchestrator": kind, "hosts": {"local": {"workers": 0}, "far": host}})
    return lambda check: check(lambda: hosts)


@pytest.fixture(scope="module")
def pods() -> Iterator[Kubernetes]:
    with kubernetes_or_skip({"n1": 8, "n2": 8}) as cluster:
        yield cluster


@pytest.fixture
def kubernetes_hosts(pods: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunCheck]:
    """A worker in a pod; the learner is on this machine."""
    for name, value in pods.environment.items():
        monkeypatch.setenv(name, value)
    host = {"workers": 1, "python": sys.executable, "workdir": str(tmp_path / "pod")}
    kind = {"kind": "kubernetes", "image": IMAGE}
    hosts = Hosts(tmp_path, {"orchestrator": kind, "hosts": {"local": {"workers": 0}, "w1": host}})
    yield lambda check: check(lambda: hosts)
    pods.await_empty()


@pytest.mark.parametrize("check", without(HELD_BY_LOCAL_RUNS), ids=name_of)
def test_local(check: Check, local_hosts: RunCheck) -> None:
    local_hosts(check)


@pytest.mark.parametrize("check", without(HELD_BY_RUNS), ids=name_of)
def test_ssh(check: Check, ssh_hosts: RunCheck) -> None:
    ssh_hosts(check)


@pytest.mark.parametrize("check", without(HELD_BY_SLURM_RUNS), ids=name_of)
def test_slurm(check: Check, slurm_hosts: RunCheck) -> None:
    slurm_hosts(check)


@pytest.mark.parametrize("check", without(set(ORCHESTRATOR) - set(OF_COMMAND)), ids=name_of)
def test_command(check: Check, command_hosts: RunCheck) -> None:
    command_hosts(check)


@pytest.mark.parametrize("check", without(ORCHESTRATOR), ids=name_of)
def test_kubernetes(check: Check, kubernetes_hosts: RunCheck) -> None:
    kubernetes_hosts(check)


TESTS = {
    "local": test_local,
    "ssh": test_ssh,
    "slurm": test_slurm,
    "command": test_command,
    "kubernetes": test_kubernetes,
}
"""Kind to the test that applies the suite to it."""


def test_every_kind_has_a_test() -> None:
    assert set(modules("zmqrl.orchestrators", Orchestrator)) == set(TESTS)
